//! (g) The lock is linearizable: each acquisition and each end can be given one moment inside its call, so that the lock
//! was free at each acquisition and its token was the highest so far.
//!
//! An attempt without a clear answer may or may not have been granted. If it was, an order with it is also one without
//! it. So such attempts are not in the search, nor is a grant whose lease was over when its answer was read. A token that
//! fell by a fault that excuses it counts for (b); here its holder still has to be alone.

use super::calls::Hold;
use super::read::{Attempt, History};
use super::search::search;
use super::slice::{self, who};
use super::spells::{Spell, Spells};
use super::windows::Window;
use super::{Finding, Property, Verdict};
use crate::history::Op;

/// Searches an order for every name.
pub(super) fn check(history: &History, spells: &Spells<'_>, verdict: &mut Verdict) {
    for (name, attempts) in history.names() {
        let breaks = spells.breaks(name);
        let granted: Vec<&Attempt> =
            attempts.into_iter().filter(|attempt| attempt.grant.is_some() && !attempt.was_over()).collect();
        let mut holds: Vec<Hold> =
            granted.iter().filter_map(|attempt| hold(history, attempt, spells, &breaks)).collect();
        let highest = highest(&granted);
        for (hold, attempt) in holds.iter_mut().zip(&granted) {
            if has_fallen(spells, attempt, &granted, &highest) {
                hold.token = 0;
            }
        }
        let outcome = search(&holds);
        verdict.counts.not_searched += outcome.left_out as u64;
        verdict.counts.searched += (holds.len() - outcome.left_out) as u64;
        for stuck in outcome.stuck {
            let attempt = granted[stuck.hold];
            let rivals: Vec<&Attempt> = stuck.rivals.iter().map(|rival| granted[*rival]).collect();
            let ops: Vec<Op> = rivals.iter().chain([&attempt]).map(|attempt| attempt.op).collect();
            let excuse = spells.excuse(holds[stuck.hold].granted, name, &ops);
            let mut lines = vec![slice::asked(attempt)];
            lines.extend(slice::granted(history, attempt));
            rivals.iter().for_each(|rival| lines.extend(slice::hold(history, rival)));
            lines.extend(excuse.map(|spell| slice::fault(history, spell)));
            let others: Vec<String> = rivals.iter().map(|rival| who(rival.op)).collect();
            let sentence = format!(
                "in no order of the calls on '{name}' does the grant to {} fit beside {}",
                who(attempt.op),
                if others.is_empty() { "the others".to_owned() } else { others.join(" and ") }
            );
            let (property, slice) = (Property::Linear, slice::slice(history, lines));
            verdict.findings.push(Finding { property, sentence, slice, excused: excuse.is_some() });
        }
    }
}

/// The highest token of each attempt and all before it.
fn highest(granted: &[&Attempt]) -> Vec<u64> {
    let tokens = granted.iter().map(|attempt| attempt.grant.as_ref().map_or(0, |grant| grant.token));
    let rising = |top: &mut u64, token: u64| {
        *top = token.max(*top);
        Some(*top)
    };
    tokens.scan(0, rising).collect()
}

/// Whether a token is lower than an earlier one by a fault that excuses it. `highest` is [`highest`] of all.
fn has_fallen(spells: &Spells<'_>, attempt: &Attempt, granted: &[&Attempt], highest: &[u64]) -> bool {
    let Some(grant) = attempt.grant.as_ref() else { return false };
    // They are in the order in which they were asked for.
    let earlier = granted.partition_point(|other| other.asked < grant.at);
    // Nearly all tokens are the highest so far.
    if earlier == 0 || highest[earlier - 1] <= grant.token {
        return false;
    }
    let higher = |other: &&&Attempt| other.grant.as_ref().is_some_and(|other| other.token > grant.token);
    granted[..earlier].iter().filter(higher).any(|other| spells.fallen(other, attempt).is_some())
}

/// A granted attempt as the search sees it. It may end when the worker stops counting on it, or when an operator breaks
/// the lock; a break may reach the server later than its answer reaches the nemesis. One that `lockkeeper run` has lost may
/// have ended at any time.
fn hold(history: &History, attempt: &Attempt, spells: &Spells<'_>, breaks: &[&Spell<'_>]) -> Option<Hold> {
    let grant = attempt.grant.as_ref()?;
    let window = Window::of(attempt, spells)?;
    let meets = |spell: &&&Spell<'_>| {
        let in_time = spell.fault.at <= window.until && spell.until + history.ttl() >= attempt.asked;
        in_time && spell.broke(grant.token)
    };
    let free = match breaks.iter().find(meets) {
        _ if attempt.was_lost_by_run() => attempt.asked,
        Some(spell) => spell.fault.at.min(window.until),
        None => window.until,
    };
    Some(Hold { wanted: attempt.wanted, token: grant.token, asked: attempt.asked, granted: grant.at, free })
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, findings, of};
    use super::*;
    use crate::history::{Class, Ending, Forgets};

    #[test]
    fn holds_with_an_order_are_clean() {
        let mut s = Sample::new();
        s.held(1, "a", (0, 10, 50), 5);
        s.asked(2, 5, "a");
        s.held(3, "a", (7, 51, 90), 6);
        let verdict = s.verdict();
        assert_eq!(
            (verdict.findings.as_slice(), verdict.counts.searched, verdict.counts.not_searched),
            (&[][..], 2, 0)
        );
    }

    #[test]
    fn a_grant_that_was_over_when_its_answer_was_read_is_in_no_others_way() {
        let mut s = Sample::new();
        s.asked(1, 0, "a");
        s.granted_late(1, 5_000, 5);
        s.lost(1, 5_001, "Expired");
        s.held(2, "a", (20, 2_030, 2_090), 6);
        assert_eq!(of(&s.verdict(), Property::Linear).findings, []);
    }

    #[test]
    fn a_command_that_was_started_after_its_lock_was_lost_has_a_place_before_later_holders() {
        let run = |code: &str| {
            let mut s = Sample::new();
            s.asked(1, 0, "a").granted(1, 5_000, 5);
            s.ending(1, 5_020, Ending::Release);
            s.ended(1, 5_030, code);
            s.held(2, "a", (20, 2_030, 2_090), 6);
            of(&s.verdict(), Property::Linear).findings.len()
        };
        assert_eq!(run("exit code Some(76)"), 0);
        assert_eq!(run("released"), 1);
    }

    #[test]
    fn a_grant_without_a_place_is_found() {
        let mut s = Sample::new();
        s.held(1, "a", (0, 10, 50), 5);
        s.held(2, "a", (20, 30, 90), 6);
        assert_eq!(
            findings(&of(&s.verdict(), Property::Linear)),
            "(g) in no order of the calls on 'a' does the grant to worker 0, op 2 fit beside worker 0, op 1\n\
             | +0.010000s worker 0, op 1: has 'a', token 5, until +1.010000s\n\
             | +0.020000s worker 0, op 2: asks for 'a', exclusive\n\
             | +0.030000s worker 0, op 2: has 'a', token 6, until +1.030000s\n\
             | +0.050000s worker 0, op 1: releases 'a'\n"
        );
    }

    #[test]
    fn an_operator_may_end_a_hold_and_an_excusing_fault_explains_it() {
        let run = |class| {
            let mut s = Sample::new();
            s.meta.excuses = vec![Class::Clock];
            s.held(1, "a", (0, 10, 50), 5);
            s.held(2, "a", (20, 30, 90), 6);
            s.fault(1, class, "a", "break", (15, 16));
            of(&s.verdict(), Property::Linear).findings
        };
        assert_eq!(run(Class::Admin), []);
        assert!(run(Class::Clock)[0].excused);
        assert!(!run(Class::Delay)[0].excused);
    }

    #[test]
    fn a_token_that_may_fall_needs_no_order_and_any_other_does() {
        let run = |clock: &str, asked: u64| {
            let mut s = Sample::new();
            s.meta.excuses = vec![Class::Clock];
            s.meta.forgets = Forgets::By(vec![Class::WipeNode]);
            s.held(1, "a", (500, 600, 700), 6);
            // Long after the faults: no lease of their time is believed in any more.
            s.held(2, "a", (9_000, 9_100, 9_200), 5);
            s.held(3, "a", (asked, asked + 20, asked + 200), 4);
            s.fault(1, Class::Clock, "node 0", clock, (100, 800));
            s.fault(2, Class::WipeNode, "node 0", "wiped", (1_000, 1_100));
            of(&s.verdict(), Property::Linear).findings.iter().map(|finding| finding.excused).collect::<Vec<_>>()
        };
        assert_eq!(run("+19 s", 9_201), [false; 0]);
        assert_eq!(run("+19 s", 9_110), [false], "its holder is not alone");
        assert_eq!(run("+8 s", 9_201), [false, false], "the clock has caught up");
        assert_eq!(run("-9 s", 9_201), [false, false]);
    }
}
