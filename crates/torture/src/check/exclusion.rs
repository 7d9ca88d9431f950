//! (c) Believed holds of one name do not overlap: exclusive ones with none, permits up to their number. A sweep over the
//! windows in the order of their beginnings.

use super::read::{Attempt, History};
use super::slice::{self, millis, who};
use super::spells::Spells;
use super::windows::Window;
use super::{Finding, Property, Verdict};
use crate::history::{Nanos, Op, Wanted};

/// Judges the believed windows of every name. One finding for each window that begins where it may not.
pub(super) fn check(history: &History, spells: &Spells<'_>, verdict: &mut Verdict) {
    for (name, attempts) in history.names() {
        let of = |attempt: &&'_ Attempt| Window::of(attempt, spells).is_some_and(|window| window.from < window.until);
        let mut windows: Vec<Window<'_>> =
            attempts.into_iter().filter(of).filter_map(|attempt| Window::of(attempt, spells)).collect();
        windows.sort_by_key(|window| window.from);
        let mut open: Vec<Window<'_>> = Vec::new();
        for window in windows {
            open.retain(|other| other.until > window.from);
            let rivals = rivals(&open, &window);
            if !rivals.is_empty() {
                let end = rivals.iter().map(|rival| rival.until).fold(window.until, Nanos::min);
                overlap(history, spells, verdict, name, &rivals, &window, end - window.from);
            }
            open.push(window);
        }
    }
}

/// The open windows that leave no room for another one. Of those that would each be enough, the one that lasts longest.
fn rivals<'a>(open: &[Window<'a>], window: &Window<'a>) -> Vec<Window<'a>> {
    let longest = |of: &dyn Fn(Wanted) -> bool| {
        let all = open.iter().filter(|other| of(other.attempt.wanted));
        all.max_by_key(|other| other.until).copied().into_iter().collect::<Vec<_>>()
    };
    let exclusive = |wanted: Wanted| wanted == Wanted::Exclusive;
    let permit = |wanted: Wanted| matches!(wanted, Wanted::Permit(_));
    match window.attempt.wanted {
        Wanted::Exclusive => longest(&|_| true),
        Wanted::Shared => longest(&exclusive),
        Wanted::Permit(limit) => {
            let permits: Vec<_> = open.iter().filter(|other| permit(other.attempt.wanted)).copied().collect();
            if permits.len() >= limit as usize { permits } else { longest(&exclusive) }
        }
    }
}

fn overlap(
    history: &History,
    spells: &Spells<'_>,
    verdict: &mut Verdict,
    name: &str,
    rivals: &[Window<'_>],
    window: &Window<'_>,
    lasted: Nanos,
) {
    let ops: Vec<Op> = rivals.iter().chain([window]).map(|window| window.attempt.op).collect();
    let excuse = spells.excuse(window.from, name, &ops);
    let mut lines = slice::granted(history, window.attempt);
    rivals.iter().for_each(|rival| lines.extend(slice::hold(history, rival.attempt)));
    lines.extend(excuse.map(|spell| slice::fault(history, spell)));
    let late = who(window.attempt.op);
    let sentence = match rivals {
        [rival] => {
            let early = who(rival.attempt.op);
            format!("{early} and {late} believed to hold '{name}' at once for {}", millis(lasted))
        }
        _ => format!("{late} had a permit of '{name}' beside {} others for {}", rivals.len(), millis(lasted)),
    };
    verdict.counts.overlaps += 1;
    verdict.counts.overlaps_excused += u64::from(excuse.is_some());
    verdict.counts.overlap_max_us = verdict.counts.overlap_max_us.max(lasted / 1_000);
    let (property, slice) = (Property::Exclusion, slice::slice(history, lines));
    verdict.findings.push(Finding { property, sentence, slice, excused: excuse.is_some() });
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, findings, of};
    use super::*;
    use crate::history::{Class, Ending};

    #[test]
    fn holds_one_after_another_are_clean() {
        let mut s = Sample::new();
        s.held(1, "a", (0, 10, 50), 5);
        s.held(2, "a", (20, 50, 90), 6);
        s.held(3, "b", (20, 60, 90), 1);
        assert_eq!(s.verdict().findings, []);
    }

    #[test]
    fn two_exclusive_holders_are_found_with_the_length_of_their_overlap() {
        let mut s = Sample::new();
        s.held(1, "a", (0, 10, 50), 5);
        s.held(2, "a", (20, 30, 90), 6);
        let verdict = s.verdict();
        assert_eq!(
            findings(&of(&verdict, Property::Exclusion)),
            "(c) worker 0, op 1 and worker 0, op 2 believed to hold 'a' at once for 20.000 ms\n\
             | +0.010000s worker 0, op 1: has 'a', token 5, until +1.010000s\n\
             | +0.030000s worker 0, op 2: has 'a', token 6, until +1.030000s\n\
             | +0.050000s worker 0, op 1: releases 'a'\n"
        );
        assert_eq!((verdict.counts.overlaps, verdict.counts.overlap_max_us), (1, 20_000));
    }

    #[test]
    fn a_window_ends_with_what_the_guard_said_last() {
        // Until its lease's end: 1,010.
        let mut s = Sample::new();
        s.asked(1, 0, "a").granted(1, 10, 5);
        s.held(2, "a", (20, 1_010, 1_020), 6);
        assert_eq!(s.verdict().findings, []);
        s.kept(1, 500, 1_500);
        assert_eq!(s.verdict().violations(Property::Exclusion), 1);
        // Lost, dropped, killed, or aborted by another task of the process: each ends the belief.
        let clean = |change: &dyn Fn(&mut Sample)| {
            let mut s = Sample::new();
            s.asked(1, 0, "a").granted(1, 10, 5);
            s.held(1 << 32, "a", (20, 300, 320), 6);
            change(&mut s);
            s.verdict().violations(Property::Exclusion) == 0
        };
        assert!(!clean(&|_| ()));
        assert!(clean(&|s| s.lost(1, 200, "broken")));
        assert!(clean(&|s| s.ending(1, 200, Ending::Drop)));
        assert!(clean(&|s| s.fault(1, Class::KillWorker, "worker 0", "kill", (200, 201))));
        assert!(!clean(&|s| s.fault(1, Class::KillWorker, "worker 2", "kill", (200, 201))));
        assert!(clean(&|s| {
            s.asked(9, 0, "b").granted(9, 10, 5);
            s.ending(9, 200, Ending::Abort);
        }));
    }

    #[test]
    fn readers_share_and_do_not_meet_a_writer() {
        let mut s = Sample::new();
        for op in 1..=3 {
            s.wants(op, "a", Wanted::Shared).held(op, "a", (0, 10 * op, 100), op);
        }
        assert_eq!(s.verdict().findings, []);
        s.held(4, "a", (0, 50, 60), 9);
        assert_eq!(s.verdict().violations(Property::Exclusion), 1);
        let mut s = Sample::new();
        s.held(4, "a", (0, 50, 60), 9);
        s.wants(1, "a", Wanted::Shared).held(1, "a", (0, 59, 100), 9);
        assert_eq!(s.verdict().violations(Property::Exclusion), 1);
    }

    #[test]
    fn one_permit_too_many_is_found_with_all_of_them() {
        let mut s = Sample::new();
        for op in 1..=3 {
            s.wants(op, "a", Wanted::Permit(3)).held(op, "a", (0, 10 * op, 100), op);
        }
        s.wants(4, "a", Wanted::Permit(3)).held(4, "a", (0, 101, 110), 4);
        assert_eq!(s.verdict().findings, []);
        s.wants(5, "a", Wanted::Permit(3)).held(5, "a", (0, 90, 95), 5);
        let verdict = of(&s.verdict(), Property::Exclusion);
        assert_eq!(verdict.findings.len(), 1);
        assert_eq!(verdict.findings[0].sentence, "worker 0, op 5 had a permit of 'a' beside 3 others for 5.000 ms");
        assert_eq!(verdict.findings[0].slice.len(), 7);
    }

    #[test]
    fn a_fault_excuses_for_three_ttls_and_only_where_it_was() {
        let excused = |class, target: &str, begin_end| {
            let mut s = Sample::new();
            s.meta.excuses = vec![Class::Clock, Class::Admin];
            s.held(1, "a", (0, 8_010, 8_050), 5);
            s.held(2, "a", (20, 8_030, 8_090), 6);
            s.held(3, "b", (20, 30, 90), 6);
            s.fault(1, class, target, "DEL", begin_end);
            s.verdict().violations(Property::Exclusion) == 0
        };
        assert!(excused(Class::Clock, "node 1", (8_000, 8_020)));
        assert!(excused(Class::Clock, "node 1", (100, 5_030)), "its TTL is one second");
        assert!(!excused(Class::Clock, "node 1", (100, 5_029)));
        assert!(!excused(Class::Clock, "node 1", (8_031, 8_040)), "it came later");
        assert!(!excused(Class::Delay, "node 1", (8_000, 8_020)), "it costs nothing here");
        assert!(excused(Class::Admin, "a", (8_000, 8_020)));
        assert!(!excused(Class::Admin, "b", (8_000, 8_020)), "another lock was broken");
        assert!(excused(Class::Admin, "all", (8_000, 8_020)));
        assert!(excused(Class::Admin, "all", (7_030, 7_030)));
        assert!(!excused(Class::Admin, "all", (7_029, 7_029)), "what it took away was believed in for a TTL");
        assert!(!excused(Class::Admin, "clients", (8_000, 8_020)), "no lock was taken away");
        assert!(excused(Class::Clock, "worker 0", (8_000, 8_020)));
        assert!(!excused(Class::Clock, "worker 7", (8_000, 8_020)));
    }
}
