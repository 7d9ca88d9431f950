//! (d) Without a fault, a lock that a caller waits for does not stay free.
//!
//! What keeps it can be a claim that no caller knows of, such as one that a late message has taken, or a waiter that was not
//! told. A keeper asks again by itself within a second after an outage, so a wait is judged only beyond that. A server may
//! believe for longer in a client that died, or that a fault kept away: what the bound of its mode says.

use super::read::{Attempt, History};
use super::slice::{self, millis, who};
use super::spells::Spells;
use super::{Finding, Property, Verdict};
use crate::history::{Ending, Nanos, Wanted};

/// The longest pause of a keeper between two tries, and some time for the try itself.
const PAUSES: Nanos = 1_200_000_000;

/// Judges all waits for Exclusive locks. Other clients ask at times of their own.
pub(super) fn check(history: &History, spells: &Spells<'_>, verdict: &mut Verdict) {
    if history.meta.subject != "lockkeeper" {
        return;
    }
    let limit = (history.ttl() / 5 * 3).max(PAUSES);
    for (name, attempts) in history.names() {
        if attempts.iter().all(|attempt| attempt.wanted == Wanted::Exclusive) {
            of(history, spells, verdict, name, &attempts, limit);
        }
    }
}

fn of(history: &History, spells: &Spells<'_>, verdict: &mut Verdict, name: &str, attempts: &[&Attempt], limit: Nanos) {
    // From when on something may have kept the lock, and until when; latest ends so far.
    let belief = belief(history);
    let holds = Reach::of(attempts.iter().filter_map(|attempt| kept(history, spells, attempt)));
    let recipes = attempts.iter().filter(|attempt| !history.plain(attempt.op));
    let hidden = Reach::of(recipes.map(|attempt| (attempt.asked, attempt.resolved().unwrap_or(Nanos::MAX))));
    let faults = Reach::of(spells.all.iter().map(|spell| (spell.fault.at, spell.until + belief)));
    for attempt in attempts.iter().filter(|attempt| history.plain(attempt.op)) {
        let busy = attempt.refused.as_ref().filter(|(_, kind)| kind == "busy").map(|(at, _)| *at);
        let end = attempt.grant.as_ref().map(|grant| grant.at).or(busy);
        // Later ones are judged in `progress.rs`.
        let Some(end) = end.filter(|end| *end <= history.meta.healed) else { continue };
        let since = attempt.asked.max(holds.before(end)).max(faults.before(end));
        if hidden.before(end) > since || end.saturating_sub(since) <= limit {
            continue;
        }
        let free = millis(end - since);
        let sentence = format!("{} waited for '{name}', which was free for {free} without a fault", who(attempt.op));
        let mut lines = vec![slice::asked(attempt), slice::note(since, "free, and no fault")];
        lines.extend(slice::granted(history, attempt));
        let (property, slice) = (Property::Progress, slice::slice(history, lines));
        verdict.findings.push(Finding { property, sentence, slice, excused: false });
    }
}

/// How long a server believes in the dead. The bound of a mode has a second for the keeper's own pauses; this is the rest.
fn belief(history: &History) -> Nanos {
    (history.meta.bound_ms * 1_000_000).saturating_sub(1_000_000_000)
}

/// From when to when an operation may have kept the lock. One of a dead worker may have been granted without a word of it.
fn kept(history: &History, spells: &Spells<'_>, attempt: &Attempt) -> Option<(Nanos, Nanos)> {
    let death = spells.death(attempt.op);
    let Some(grant) = &attempt.grant else {
        // A call that was given up is undone by its keeper, if that lives.
        let busy = attempt.refused.as_ref().is_some_and(|(_, kind)| kind == "busy");
        let dead = death.filter(|_| !busy)?;
        return Some((attempt.asked, dead + attempt.ttl + belief(history)));
    };
    let (_, believed) = attempt.belief()?;
    let until = match attempt.ending {
        Some((at, Ending::Release | Ending::Drop)) if death.is_none() => at,
        Some((_, Ending::Forget)) => believed.max(grant.at + history.meta.max_hold_ms * 1_000_000) + belief(history),
        _ => believed + belief(history),
    };
    Some((grant.at, until))
}

/// Spans by their beginnings, each with the latest end of all up to it.
struct Reach(Vec<(Nanos, Nanos)>);

impl Reach {
    fn of(spans: impl Iterator<Item = (Nanos, Nanos)>) -> Self {
        let mut spans: Vec<(Nanos, Nanos)> = spans.collect();
        spans.sort_unstable();
        let mut latest = 0;
        for (_, end) in &mut spans {
            latest = latest.max(*end);
            *end = latest;
        }
        Self(spans)
    }

    /// The latest end of those that began before a moment, and not later than it; 0 without one.
    fn before(&self, at: Nanos) -> Nanos {
        let count = self.0.partition_point(|(from, _)| *from < at);
        count.checked_sub(1).map_or(0, |last| self.0[last].1.min(at))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{MS, Sample, findings};
    use crate::history::Class;

    /// A lock that is free from 20 ms on, and a caller that gets it late.
    fn late(at: u64) -> Sample {
        let mut s = Sample::new();
        s.meta.healed = 5_000 * MS;
        s.held(1, "a", (0, 10, 20), 1);
        s.held(2 << 32, "a", (15, at, at + 5), 2);
        s
    }

    #[test]
    fn a_free_lock_is_given_soon() {
        assert_eq!(findings(&late(1_219).verdict()), "");
        assert_eq!(
            findings(&late(1_221).verdict()),
            "(d) worker 2, op 0 waited for 'a', which was free for 1201.000 ms without a fault\n\
             | +0.015000s worker 2, op 0: asks for 'a', exclusive\n\
             | +0.020000s free, and no fault\n\
             | +1.221000s worker 2, op 0: has 'a', token 2, until +2.221000s\n"
        );
    }

    #[test]
    fn a_fault_or_a_recipe_may_keep_it() {
        let mut s = late(1_500);
        s.fault(1, Class::Delay, "worker 9", "slow", (100, 400));
        assert_eq!(findings(&s.verdict()), "");
    }

    #[test]
    fn a_server_believes_longer_only_in_what_died_or_had_a_fault() {
        let with_bound = |mut s: Sample| {
            s.meta.bound_ms = 5_000;
            findings(&s.verdict())
        };
        assert!(with_bound(late(1_500)).starts_with("(d) "), "it was released, and no fault has been");
        let mut s = late(1_500);
        s.fault(1, Class::Delay, "worker 9", "slow", (1, 2));
        assert_eq!(with_bound(s), "");
        let mut s = late(1_500);
        s.asked(3 << 32, 12, "a");
        s.fault(1, Class::KillWorker, "worker 3", "SIGKILL", (13, 13));
        assert_eq!(with_bound(s), "");
    }

    #[test]
    fn a_worker_that_died_may_have_been_granted() {
        let mut s = late(1_500);
        s.asked(3 << 32, 12, "a");
        s.fault(1, Class::KillWorker, "worker 3", "SIGKILL", (400, 400));
        assert_eq!(findings(&s.verdict()), "");
    }
}
