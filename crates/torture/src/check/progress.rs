//! (d) Once all faults are healed, a name that a caller waits for is granted within the TTL and the store's bound. After that
//! time no caller is told that a lock is busy which no worker has. Where waiters are served in order, overtakings without a
//! fault are counted: from outside it is not seen when a keeper took its place in line.

use super::read::{Attempt, History};
use super::slice::{self, millis};
use super::spells::Spells;
use super::windows::Window;
use super::{Finding, Property, Verdict};
use crate::history::{Ending, Nanos, Op, Wanted, worker_of};
use std::collections::{BTreeSet, HashMap};

/// Judges the first grant of each name after healing, and the order before the first fault.
pub(super) fn check(history: &History, spells: &Spells<'_>, verdict: &mut Verdict) {
    for (name, attempts) in history.names() {
        healed(history, spells, verdict, name, &attempts);
        if history.meta.fifo {
            order(history, spells, verdict, &attempts);
        }
    }
}

fn healed(history: &History, spells: &Spells<'_>, verdict: &mut Verdict, name: &str, attempts: &[&Attempt]) {
    let healed = history.meta.healed;
    let waited_until = |attempt: &Attempt| {
        let gone = attempt.resolved().into_iter().chain(spells.death(attempt.op)).min();
        gone.unwrap_or_else(|| history.workers.get(&worker_of(attempt.op)).map_or(0, |worker| worker.last))
    };
    let waits =
        |attempt: &&&Attempt| history.plain(attempt.op) && attempt.asked <= healed && waited_until(attempt) > healed;
    let held = |attempt: &&&Attempt| attempt.grant.as_ref().is_some_and(|grant| grant.at <= healed);
    let ends = attempts.iter().filter(held).map(|attempt| (end(history, spells, attempt), *attempt));
    let last = ends.filter(|(end, _)| *end > healed).max_by_key(|(end, _)| *end);
    let free = last.map_or(healed, |(end, _)| end);
    let limit = history.ttl() + history.meta.bound_ms * 1_000_000;
    let grants = attempts.iter().filter_map(|attempt| attempt.grant.as_ref().map(|grant| (grant.at, *attempt)));
    let next = grants.filter(|(at, _)| *at > healed).min_by_key(|(at, _)| *at);
    let waiting = attempts.iter().filter(waits).max_by_key(|attempt| waited_until(attempt));
    if next.is_some_and(|(at, _)| at <= free + limit) {
        verdict.counts.waits_judged += u64::from(waiting.is_some());
        return;
    }
    let waiting = waiting.filter(|attempt| waited_until(attempt) > free + limit).map(|attempt| (attempt, free + limit));
    let Some((patient, shown)) = waiting.or_else(|| in_vain(history, attempts, free, limit)) else { return };
    // A caller behind a recipe that may have had the lock shows nothing.
    let recipe = |attempt: &&Attempt| history.recipe(attempt.op) && attempt.asked <= shown;
    let hidden = attempts.iter().any(|attempt| recipe(attempt) && waited_until(attempt) > healed);
    if hidden {
        return;
    }
    verdict.counts.waits_judged += 1;
    let mut lines = vec![slice::asked(patient), slice::note(healed, "all faults are healed")];
    if let Some((_, holder)) = last {
        lines.extend(slice::granted(history, holder));
        lines.extend(slice::end(holder));
    }
    lines.extend(next.into_iter().flat_map(|(_, next)| slice::granted(history, next)));
    let sentence = match next {
        Some((at, _)) => {
            format!("'{name}' was free, and the next grant took {}: at most {}", millis(at - free), millis(limit))
        }
        None => format!("'{name}' was free, and no waiter got it again: at most {}", millis(limit)),
    };
    let (property, slice) = (Property::Progress, slice::slice(history, lines));
    verdict.findings.push(Finding { property, sentence, slice, excused: false });
}

/// Callers with little patience show it too: one after the other is told that a lock is busy, for longer than a claim lasts
/// that was given up, and no caller gets it. The first one after that time, and when it was told.
fn in_vain<'a>(
    history: &History,
    attempts: &'a [&'a Attempt],
    free: Nanos,
    limit: Nanos,
) -> Option<(&'a &'a Attempt, Nanos)> {
    let got = attempts.iter().filter(|attempt| attempt.grant.as_ref().is_some_and(|grant| grant.at > free));
    let got = got.map(|attempt| attempt.asked).min().unwrap_or(Nanos::MAX);
    let told = |attempt: &'a &'a Attempt| {
        let (at, _) = attempt.refused.as_ref().filter(|(_, kind)| history.plain(attempt.op) && kind == "busy")?;
        (*at > free && *at < got).then_some((attempt, *at))
    };
    let first = attempts.iter().filter_map(told).map(|(_, at)| at).min()?;
    attempts.iter().filter_map(told).filter(|(_, at)| *at > first + limit).min_by_key(|(_, at)| *at)
}

/// When a hold was over for its worker. A forgotten guard is renewed until `max_hold`.
fn end(history: &History, spells: &Spells<'_>, attempt: &Attempt) -> Nanos {
    let believed = Window::of(attempt, spells).map_or(0, |window| window.until);
    let alive = spells.death(attempt.op).is_none();
    match (attempt.ending, &attempt.grant) {
        (Some((_, Ending::Forget)), Some(grant)) if alive => {
            believed.max(grant.at + history.meta.max_hold_ms * 1_000_000)
        }
        _ => believed,
    }
}

/// In the calm part: counts grants to callers that came later than one who still waits. Arrivals at the server may swap
/// on their way, but not by a whole TTL.
fn order(history: &History, spells: &Spells<'_>, verdict: &mut Verdict, attempts: &[&Attempt]) {
    let callers = in_line(history, spells, attempts);
    let mut answers: Vec<&InLine<'_>> = callers.iter().collect();
    answers.sort_by_key(|caller| caller.until);
    let mut arrivals: Vec<&InLine<'_>> = answers.clone();
    arrivals.sort_by_key(|caller| caller.latest);
    let mut arrivals = arrivals.into_iter().peekable();
    let mut waiting: BTreeSet<(Nanos, Op)> = BTreeSet::new();
    for InLine { attempt, earliest, latest, until } in answers {
        if *until >= history.meta.calm_until {
            break;
        }
        while let Some(caller) = arrivals.next_if(|caller| caller.latest <= *until) {
            waiting.insert((caller.latest, caller.attempt.op));
        }
        waiting.remove(&(*latest, attempt.op));
        let first = waiting.first().filter(|first| attempt.grant.is_some() && first.0 < *earliest);
        verdict.counts.overtakings += u64::from(first.is_some());
    }
}

/// A caller in the line of a name, with bounds of the moment at which it took its place.
struct InLine<'a> {
    attempt: &'a Attempt,
    earliest: Nanos,
    latest: Nanos,
    until: Nanos,
}

/// The callers that wait. A keeper has one place in line at a time: its next task joins when the one before has its grant,
/// or takes over the place of one that gives up.
fn in_line<'a>(history: &History, spells: &Spells<'_>, attempts: &[&'a Attempt]) -> Vec<InLine<'a>> {
    // A worker that has died waits no more.
    let until = |attempt: &Attempt| {
        let gone = attempt.resolved().into_iter().chain(spells.death(attempt.op)).min();
        gone.unwrap_or(history.meta.ended)
    };
    // A call that gives up soon may not have waited at all.
    let waits =
        |attempt: &Attempt| attempt.grant.is_some() || until(attempt).saturating_sub(attempt.asked) > history.ttl();
    // Per worker: when all earlier tasks had their answers, and since when a place may have been handed down.
    let mut keepers: HashMap<u32, (Nanos, Nanos)> = HashMap::new();
    let mut callers = Vec::new();
    for attempt in attempts.iter().filter(|attempt| history.plain(attempt.op)) {
        let (answered, place) = keepers.entry(worker_of(attempt.op)).or_default();
        let earliest = if attempt.asked < *answered { (*place).min(attempt.asked) } else { attempt.asked };
        let latest = attempt.asked.max(*answered);
        *answered = until(attempt).max(*answered);
        // A grant uses the place up; only what comes after it is new.
        *place = if attempt.grant.is_some() { until(attempt) } else { earliest };
        if attempt.wanted == Wanted::Exclusive && waits(attempt) {
            callers.push(InLine { attempt, earliest, latest, until: until(attempt) });
        }
    }
    callers
}

#[cfg(test)]
mod tests {
    use super::super::read::Worker;
    use super::super::sample::{MS, Sample, findings};
    use super::*;
    use crate::history::Class;

    /// Healed at 10 s, with a holder until 12 s and a waiter. TTL 1 s, bound 0.5 s.
    fn healing() -> Sample {
        let mut s = Sample::new();
        s.meta.healed = 10_000 * MS;
        s.asked(1, 9_000, "a").granted(1, 9_100, 5);
        s.kept(1, 11_500, 12_400);
        s.ending(1, 12_000, Ending::Release);
        s.asked(2, 9_500, "a");
        s
    }

    #[test]
    fn a_grant_within_the_bound_is_clean() {
        let mut s = healing();
        s.granted(2, 13_500, 6);
        let verdict = s.verdict();
        assert_eq!((verdict.findings.as_slice(), verdict.counts.waits_judged), (&[][..], 1));
        // A waiter that gives up earlier shows nothing.
        let mut s = healing();
        s.refused(2, 13_000, "busy");
        let verdict = s.verdict();
        assert_eq!((verdict.findings.as_slice(), verdict.counts.waits_judged), (&[][..], 0));
    }

    #[test]
    fn a_late_grant_is_found_with_the_hold_before_it() {
        let mut s = healing();
        s.granted(2, 13_501, 6);
        assert_eq!(
            findings(&s.verdict()),
            "(d) 'a' was free, and the next grant took 1501.000 ms: at most 1500.000 ms\n\
             | +9.100000s worker 0, op 1: has 'a', token 5, until +10.100000s\n\
             | +9.500000s worker 0, op 2: asks for 'a', exclusive\n\
             | +10.000000s all faults are healed\n\
             | +12.000000s worker 0, op 1: releases 'a'\n\
             | +13.501000s worker 0, op 2: has 'a', token 6, until +14.501000s\n"
        );
        let mut s = healing();
        s.refused(2, 15_000, "busy");
        let found = findings(&s.verdict());
        assert!(found.starts_with("(d) 'a' was free, and no waiter got it again: at most 1500.000 ms\n"), "{found}");
    }

    #[test]
    fn a_lock_that_no_worker_has_and_that_is_said_to_be_busy_is_found() {
        let run = |second: (u64, &str), granted: Option<u64>| {
            let mut s = healing();
            s.refused(2, 11_000, "busy");
            s.asked(3, 12_100, "a");
            s.refused(3, 12_300, "busy");
            s.asked(4, 13_000, "a");
            s.refused(4, second.0, second.1);
            if let Some(asked) = granted {
                s.asked(5, asked, "a").granted(5, 15_000, 6);
            }
            findings(&s.verdict())
        };
        assert_eq!(run((13_800, "busy"), None), "", "a claim that was given up may last so long");
        assert_eq!(run((13_801, "unavailable"), None), "");
        assert_eq!(run((13_801, "busy"), Some(13_700)), "", "another caller may have had it then");
        let found = run((13_801, "busy"), Some(13_900));
        assert!(found.starts_with("(d) 'a' was free, and the next grant took 3000.000 ms"), "{found}");
        assert_eq!(
            run((13_801, "busy"), None),
            "(d) 'a' was free, and no waiter got it again: at most 1500.000 ms\n\
             | +9.100000s worker 0, op 1: has 'a', token 5, until +10.100000s\n\
             | +10.000000s all faults are healed\n\
             | +12.000000s worker 0, op 1: releases 'a'\n\
             | +13.000000s worker 0, op 4: asks for 'a', exclusive\n"
        );
    }

    #[test]
    fn a_forgotten_guard_may_last_until_max_hold_and_a_killed_worker_waits_no_more() {
        let forgotten = |granted| {
            let mut s = healing();
            s.meta.max_hold_ms = 4_000;
            s.asked(3, 12_000, "b").granted(3, 12_001, 1);
            s.asked(4, 9_000, "c").granted(4, 9_900, 1);
            s.ending(4, 9_950, Ending::Forget);
            s.asked(5, 9_960, "c").granted(5, granted, 2);
            s.granted(2, 13_500, 6);
            s.verdict().violations(Property::Progress)
        };
        assert_eq!((forgotten(15_400), forgotten(15_401)), (0, 1));
        let mut s = healing();
        s.fault(1, Class::KillWorker, "worker 0", "kill", (9_999, 9_999));
        assert_eq!(s.verdict().counts.waits_judged, 0);
    }

    #[test]
    fn overtaking_is_counted() {
        let run = |second| {
            let mut s = Sample::new();
            s.meta.fifo = true;
            s.meta.calm_until = 5_000 * MS;
            s.held(1, "a", (0, 10, 2_000), 1);
            s.kept(1, 1_900, 2_900);
            s.held(3 << 32, "a", (second, 2_001, 2_002), 2);
            s.held(2 << 32, "a", (100, 2_003, 2_004), 3);
            s.verdict()
        };
        let verdict = run(1_100);
        assert_eq!((verdict.findings.as_slice(), verdict.counts.overtakings), (&[][..], 1));
        assert_eq!(run(50).counts.overtakings, 0);
    }

    #[test]
    fn tasks_of_one_keeper_have_one_place_in_line() {
        let run = |first: u64| {
            let mut s = Sample::new();
            s.meta.fifo = true;
            s.meta.calm_until = 9_000 * MS;
            s.held(1, "a", (0, 10, 4_000), 1);
            s.kept(1, 3_900, 4_900);
            // Another task of the same keeper as the one that is overtaken, or as the one that overtakes.
            s.asked(first, 50, "a");
            s.refused(first, 3_000, "busy");
            s.held(3 << 32, "a", (1_500, 4_001, 4_002), 3);
            s.held(2 << 32, "a", (100, 4_003, 4_004), 4);
            s.verdict().counts.overtakings
        };
        assert_eq!(run(9 << 32), 1);
        assert_eq!(run(2 << 32 | 9), 0, "it joined when the other gave up");
        assert_eq!(run(3 << 32 | 9), 0, "it took over the place of the other");
    }

    #[test]
    fn a_recipe_may_hold_one_lock_while_it_waits_for_another() {
        let run = |op: Op| {
            let mut s = healing();
            s.refused(2, 15_000, "busy");
            s.asked(op, 9_700, "a");
            s.refused(op, 10_500, "busy");
            let mut history = s.history();
            history.workers.insert(1, Worker { kind: "recipe".to_owned(), ..Worker::default() });
            super::super::check(&history).counts.waits_judged
        };
        assert_eq!((run(7), run(1 << 32)), (1, 0));
    }

    #[test]
    fn a_recipe_is_not_in_line_for_all_that_it_asks_for() {
        let mut s = healing();
        s.refused(2, 15_000, "busy");
        assert_eq!(s.verdict().counts.waits_judged, 1);
        s.started("recipe");
        assert_eq!(s.verdict().counts.waits_judged, 0);
    }
}
