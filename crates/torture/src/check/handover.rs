//! How long a lock takes from a release to the next caller in line.

use super::Verdict;
use super::read::{Attempt, History};
use crate::history::{Ending, Nanos, Wanted};

/// Measures from before the call of each release to after the answer of the next grant of its name, if that caller had
/// asked before the release. Both are plain calls, and no recipe can have had the lock between them.
pub(super) fn check(history: &History, verdict: &mut Verdict) {
    for (_, attempts) in history.names() {
        let mut grants: Vec<_> = attempts
            .iter()
            .filter_map(|attempt| attempt.grant.as_ref().map(|grant| (grant.at, attempt.asked, attempt.op)))
            .collect();
        grants.sort_unstable();
        let hidden = Hidden::of(history, &attempts);
        let plain = attempts.iter().filter(|attempt| history.plain(attempt.op));
        for release in plain.filter_map(|attempt| release(attempt)) {
            let next = grants.partition_point(|(at, ..)| *at <= release);
            let heir = |(_, asked, op): &&(_, _, _)| *asked < release && history.plain(*op);
            let known = |(at, ..): &&(u64, _, _)| !hidden.between(release, *at);
            if let Some((at, ..)) = grants.get(next).filter(heir).filter(known) {
                verdict.counts.handover.record((at - release) / 1_000);
            }
        }
    }
}

/// When recipes waited for locks of one name: by the moment of asking, with the latest answer so far.
struct Hidden(Vec<(Nanos, Nanos)>);

impl Hidden {
    fn of(history: &History, attempts: &[&Attempt]) -> Self {
        let mut latest = 0;
        let recipes = attempts.iter().filter(|attempt| history.recipe(attempt.op));
        let waits = recipes.map(|attempt| {
            latest = attempt.resolved().unwrap_or(history.meta.ended).max(latest);
            (attempt.asked, latest)
        });
        Self(waits.collect())
    }

    /// Whether one waited at a moment between these two.
    fn between(&self, from: Nanos, to: Nanos) -> bool {
        let before = self.0.partition_point(|(asked, _)| *asked < to);
        before > 0 && self.0[before - 1].1 > from
    }
}

/// When an exclusive hold was given back, if it was.
fn release(attempt: &Attempt) -> Option<u64> {
    let (at, how) = attempt.ending?;
    let released = attempt.ended.as_ref().is_some_and(|(_, outcome)| outcome == "released");
    (how == Ending::Release && released && attempt.wanted == Wanted::Exclusive).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::super::sample::{MS, Sample};
    use crate::history::{Event, Wanted, What};

    #[test]
    fn only_a_caller_that_waits_already_is_a_hand_over() {
        let mut s = Sample::new();
        s.held(1, "a", (0, 10, 50), 1);
        s.held(2, "a", (20, 53, 60), 2);
        s.held(3, "a", (61, 70, 80), 3);
        s.held(4, "b", (79, 90, 95), 4);
        let handover = s.verdict().counts.handover;
        assert_eq!((handover.count, handover.max_us), (1, 3_000));
    }

    #[test]
    fn a_recipe_that_may_have_had_the_lock_hides_it() {
        let run = |asked| {
            let mut s = Sample::new();
            s.held(1, "a", (0, 10, 50), 1);
            s.held(2, "a", (20, 53, 60), 2);
            let (mut history, recipe) = (s.history(), 7 << 32);
            let what = What::Asked { op: recipe, name: "a".to_owned(), wanted: Wanted::Exclusive, ttl_ms: 0 };
            let started = What::Started { worker: 7, pid: 1, kind: "recipe".to_owned() };
            let events = [(0, started), (asked * MS, what)].map(|(at, what)| Event { at, what });
            history.add(7, events.into()).unwrap();
            history.arrange();
            check(&history).counts.handover.count
        };
        assert_eq!((run(52), run(54)), (0, 1));
    }
}
