//! (f) A loss is told within a TTL, and without a fault no guard is lost: neither before the first one, nor at the end of a
//! time in which no fault concerned its worker and a renewal could have come through.
//!
//! A fault that ends early in a lease costs one renewal. A keeper that goes on asking keeps the lock all the same.
//!
//! A task looks at its guard four times a TTL. Where it has not done so in the TTL before a loss, its process was not run, because
//! other programs had the processors: then the loss is counted as excused.

use super::read::{Attempt, Grant, History};
use super::slice::{self, millis, who};
use super::spells::Spells;
use super::{Finding, Property, Verdict};

/// Words of reasons that are the worker's own doing: its limits, its release, its end. Without signs between them.
const OWN: [&str; 5] = ["released", "maxhold", "stall", "closed", "fork"];

/// Judges guards of locks that an operator broke, and losses in the calm part.
pub(super) fn check(history: &History, spells: &Spells<'_>, verdict: &mut Verdict) {
    for (name, attempts) in history.names() {
        let breaks = spells.breaks(name);
        for attempt in attempts {
            let late = breaks.iter().find(|spell| {
                // The loss was true between the two lines of the nemesis.
                let broken = |grant: &Grant| grant.at < spell.fault.at && spell.broke(grant.token);
                attempt.grant.as_ref().is_some_and(broken)
                    && attempt.kept.is_some_and(|(at, _)| at > spell.until + attempt.ttl)
            });
            if let (Some(spell), Some((kept, _))) = (late, attempt.kept) {
                verdict.counts.late_losses += 1;
                let mut lines = slice::granted(history, attempt);
                lines.push(slice::fault(history, spell));
                lines.extend(slice::kept(history, attempt));
                let after = millis(kept - spell.until);
                let sentence = format!("{} still trusted '{name}' {after} after an operator broke it", who(attempt.op));
                let (property, slice) = (Property::Losses, slice::slice(history, lines));
                verdict.findings.push(Finding { property, sentence, slice, excused: false });
            }
            groundless(history, spells, attempt, verdict);
        }
    }
}

fn groundless(history: &History, spells: &Spells<'_>, attempt: &Attempt, verdict: &mut Verdict) {
    let Some((at, reason)) = &attempt.lost else { return };
    let plain: String = reason.chars().filter(char::is_ascii_alphabetic).collect::<String>().to_lowercase();
    // Earlier harnesses wrote the second lock of a recipe down only after the section under the first.
    let written_late = attempt.was_over() && history.recipe(attempt.op);
    if written_late || OWN.iter().any(|own| plain.contains(own)) {
        return;
    }
    // A guard is renewed three times per TTL, and believes itself for one TTL from the last time that went well.
    let since = at.saturating_sub(attempt.ttl / 5 * 3);
    // A grant whose answer took most of a TTL leaves no time for them; but none is given when it is over already.
    let ended = ["expired", "leaseended"].iter().any(|word| plain.contains(word));
    if ended && !attempt.was_over() && attempt.grant.as_ref().is_some_and(|grant| grant.at > since) {
        return;
    }
    let when = if *at < history.meta.calm_until {
        "before any fault"
    } else if plain.contains("expired") && spells.quiet(since, *at, attempt) {
        "though no fault concerned it for most of a TTL"
    } else {
        return;
    };
    let stood_still = attempt.stood_still.is_some_and(|until| until + attempt.ttl > *at);
    verdict.counts.false_losses += u64::from(!stood_still);
    let mut lines = slice::granted(history, attempt);
    lines.extend(slice::kept(history, attempt));
    lines.extend(slice::end(attempt));
    let why = if stood_still { ", while its task was not run" } else { "" };
    let sentence = format!("{} was told that '{}' is lost, {when}{why}", who(attempt.op), attempt.name);
    let (property, slice) = (Property::Losses, slice::slice(history, lines));
    verdict.findings.push(Finding { property, sentence, slice, excused: stood_still });
}

#[cfg(test)]
mod tests {
    use super::super::sample::{MS, Sample, findings};
    use crate::history::Class;

    fn broken(kept: u64) -> Sample {
        let mut s = Sample::new();
        s.meta.calm_until = 50 * MS;
        s.asked(1, 0, "a").granted(1, 10, 5);
        s.kept(1, kept, kept + 900);
        s.lost(1, kept + 10, "broken");
        s.fault(1, Class::Admin, "a", "break", (100, 110));
        s
    }

    #[test]
    fn a_loss_told_within_a_ttl_is_clean() {
        assert_eq!(broken(1_110).verdict().findings, []);
        // A break that failed breaks nothing, and that of another name neither.
        let mut s = broken(1_200);
        s.faults[1].detail = "failed: no route".to_owned();
        assert_eq!(s.verdict().findings, []);
        let mut s = broken(1_200);
        s.faults[0].target = "b".to_owned();
        assert_eq!(s.verdict().findings, []);
        let mut s = broken(1_200);
        s.faults[0].detail = "break 6".to_owned();
        assert_eq!(s.verdict().findings, []);
    }

    #[test]
    fn a_late_loss_is_found() {
        let verdict = broken(1_111).verdict();
        assert_eq!(
            findings(&verdict),
            "(f) worker 0, op 1 still trusted 'a' 1001.000 ms after an operator broke it\n\
             | +0.010000s worker 0, op 1: has 'a', token 5, until +1.010000s\n\
             | +0.100000s fault 1 until +0.110000s: admin, a: break\n\
             | +1.111000s worker 0, op 1: still has 'a', until +2.011000s\n"
        );
        assert_eq!((verdict.counts.late_losses, verdict.counts.losses), (1, 1));
    }

    #[test]
    fn a_loss_at_the_end_of_a_quiet_time_is_found() {
        let lost = |target: &str, at: u64| {
            let mut s = Sample::new();
            s.meta.calm_until = 50 * MS;
            s.asked(1, 60, "a").granted(1, 70, 5);
            s.fault(1, Class::Partition, target, "both ways", (100, 300));
            s.looks(1, (320, at), 1_070);
            s.lost(1, at, "expired");
            findings(&s.verdict())
        };
        assert_eq!(lost("worker 0", 890), "");
        assert_eq!(lost("link 0-2", 890), "");
        assert_ne!(lost("worker 7", 890), "");
        assert_eq!(
            lost("worker 0", 910),
            "(f) worker 0, op 1 was told that 'a' is lost, though no fault concerned it for most of a TTL\n\
             | +0.070000s worker 0, op 1: has 'a', token 5, until +1.070000s\n\
             | +0.820000s worker 0, op 1: still has 'a', until +1.070000s\n\
             | +0.910000s worker 0, op 1: is told that 'a' is lost: expired\n"
        );
    }

    #[test]
    fn a_loss_of_a_task_that_was_not_run_is_excused() {
        let excused = |looked: u64| {
            let mut s = Sample::new();
            s.meta.calm_until = 50 * MS;
            s.asked(1, 60, "a").granted(1, 70, 5);
            s.looks(1, (320, 700), 1_070);
            s.kept(1, looked, 1_070);
            s.lost(1, 1_100, "expired");
            let verdict = s.verdict();
            assert_eq!(
                (verdict.findings.len(), verdict.counts.false_losses),
                (1, u64::from(!verdict.findings[0].excused))
            );
            verdict.findings[0].excused
        };
        assert!(excused(766), "it looks four times a TTL");
        assert!(!excused(767));
    }

    #[test]
    fn a_lease_that_ends_soon_after_a_late_answer_is_no_false_loss() {
        let lost = |at: u64, reason: &str| {
            let mut s = Sample::new();
            s.meta.calm_until = 10_000 * MS;
            s.asked(1, 0, "a").granted(1, 700, 5);
            s.looks(1, (950, at), 1_700);
            s.lost(1, at, reason);
            s.verdict().counts.false_losses
        };
        let words = "the lock is not held any more: its lease ended before it could be renewed";
        assert_eq!((lost(1_299, words), lost(1_300, words)), (0, 1), "from then on a renewal had its time");
        assert_eq!(lost(900, "Gone"), 1, "no other reason is excused");
    }

    #[test]
    fn a_guard_that_is_over_when_it_is_given_is_found() {
        let late = |kind: &str| {
            let mut s = Sample::new();
            s.meta.calm_until = 50 * MS;
            s.started(kind);
            s.asked(1, 60, "a");
            s.granted_late(1, 5_000, 5);
            s.lost(1, 5_001, "Expired");
            s.verdict().counts.false_losses
        };
        assert_eq!((late("async"), late("recipe")), (1, 0));
    }

    #[test]
    fn a_loss_before_any_fault_is_found() {
        let mut s = Sample::new();
        s.meta.calm_until = 50 * MS;
        s.asked(1, 0, "a").granted(1, 10, 5);
        s.lost(1, 49, "gone");
        s.asked(2, 0, "b").granted(2, 10, 5);
        s.lost(2, 49, "max-hold");
        assert_eq!(
            findings(&s.verdict()),
            "(f) worker 0, op 1 was told that 'a' is lost, before any fault\n\
             | +0.010000s worker 0, op 1: has 'a', token 5, until +1.010000s\n\
             | +0.049000s worker 0, op 1: is told that 'a' is lost: gone\n"
        );
    }
}
