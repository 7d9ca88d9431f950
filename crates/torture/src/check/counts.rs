//! The figures of a run: what a row of the report shows.

use super::read::History;
use crate::history::Class;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Figures of one run, or of several added up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Attempts to take a lock.
    pub(crate) operations: u64,
    pub(crate) granted: u64,
    pub(crate) busy: u64,
    /// Another error, given up by the caller, or never answered: it may have been granted.
    pub(crate) ambiguous: u64,
    /// Writes to the fenced register of the register server.
    pub(crate) writes_accepted: u64,
    pub(crate) writes_refused: u64,
    /// Holders that the fence turned away before their first read.
    pub(crate) enters_refused: u64,
    /// Writes to the store's own register.
    pub(crate) kv_accepted: u64,
    pub(crate) kv_refused: u64,
    pub(crate) kv_unknown: u64,
    /// Runs of work under a key of `once`, and answers with a result.
    #[serde(default)]
    pub(crate) once_runs: u64,
    #[serde(default)]
    pub(crate) once_results: u64,
    /// Believed holds that began inside another believed hold, excused or not.
    pub(crate) overlaps: u64,
    pub(crate) overlaps_excused: u64,
    /// The longest of them.
    pub(crate) overlap_max_us: u64,
    /// Writes over a version that their writer had not read.
    pub(crate) lost_naked: u64,
    pub(crate) lost_fenced: u64,
    pub(crate) handover: Spread,
    pub(crate) faults: BTreeMap<Class, u64>,
    /// Losses that guards told.
    pub(crate) losses: u64,
    pub(crate) late_losses: u64,
    pub(crate) false_losses: u64,
    pub(crate) leaks: u64,
    /// Of a soak: samples, and how many locks were held in the median.
    pub(crate) samples: u64,
    pub(crate) held: u64,
    /// Grants in the calm part that overtook a waiter who had asked earlier, where the order is promised.
    pub(crate) overtakings: u64,
    /// Names with a waiter when all faults were healed, whose next grant was judged.
    pub(crate) waits_judged: u64,
    /// Acquisitions in the search for a linear order, and those that were too many at once for it.
    pub(crate) searched: u64,
    pub(crate) not_searched: u64,
}

impl Counts {
    /// What can be counted without judging.
    pub(super) fn of(history: &History) -> Self {
        let mut counts = Self { operations: history.attempts.len() as u64, ..Self::default() };
        for attempt in &history.attempts {
            let refused = attempt.refused.as_ref().map(|(_, kind)| kind.as_str());
            match (&attempt.grant, refused) {
                (Some(_), _) => counts.granted += 1,
                (None, Some("busy")) => counts.busy += 1,
                _ => counts.ambiguous += 1,
            }
            counts.losses += u64::from(attempt.lost.is_some());
        }
        // The nemesis counts from 1. What else is killed in the end did not end by itself, and is told of as such.
        for fault in history.faults.iter().filter(|fault| fault.begins && fault.id > 0) {
            *counts.faults.entry(fault.class).or_default() += 1;
        }
        if !history.chaos.is_empty() {
            *counts.faults.entry(Class::Client).or_default() += history.chaos.len() as u64;
        }
        counts
    }

    /// Faults that the nemesis brought about.
    pub(crate) fn injected(&self) -> u64 {
        self.of_nemesis().sum()
    }

    /// How many classes they are of.
    pub(crate) fn classes_injected(&self) -> usize {
        self.of_nemesis().count()
    }

    /// Of each class how many.
    fn of_nemesis(&self) -> impl Iterator<Item = u64> {
        self.faults.iter().filter(|(class, _)| **class != Class::Client).map(|(_, count)| *count)
    }

    /// Acts of the workers themselves: calls dropped half-way, guards forgotten, processes that abort.
    pub(crate) fn acts(&self) -> u64 {
        self.faults.get(&Class::Client).copied().unwrap_or(0)
    }

    /// Adds the figures of another run.
    pub(crate) fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.granted += other.granted;
        self.busy += other.busy;
        self.ambiguous += other.ambiguous;
        self.writes_accepted += other.writes_accepted;
        self.writes_refused += other.writes_refused;
        self.enters_refused += other.enters_refused;
        self.kv_accepted += other.kv_accepted;
        self.kv_refused += other.kv_refused;
        self.kv_unknown += other.kv_unknown;
        self.once_runs += other.once_runs;
        self.once_results += other.once_results;
        self.overlaps += other.overlaps;
        self.overlaps_excused += other.overlaps_excused;
        self.overlap_max_us = self.overlap_max_us.max(other.overlap_max_us);
        self.lost_naked += other.lost_naked;
        self.lost_fenced += other.lost_fenced;
        self.handover.add(&other.handover);
        for (class, count) in &other.faults {
            *self.faults.entry(*class).or_default() += count;
        }
        self.losses += other.losses;
        self.late_losses += other.late_losses;
        self.false_losses += other.false_losses;
        self.leaks += other.leaks;
        self.samples += other.samples;
        self.held = self.held.max(other.held);
        self.overtakings += other.overtakings;
        self.waits_judged += other.waits_judged;
        self.searched += other.searched;
        self.not_searched += other.not_searched;
    }
}

/// Durations by size. Those of several runs add up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) count: u64,
    pub(crate) max_us: u64,
    /// How many are at most 10^(key/100) µs and above the key before: a quantile is at most 2.4 % too high.
    buckets: BTreeMap<u16, u64>,
}

impl Spread {
    const PER_DECADE: f64 = 100.0;

    pub(crate) fn record(&mut self, us: u64) {
        self.count += 1;
        self.max_us = self.max_us.max(us);
        let key = ((us.max(1) as f64).log10() * Self::PER_DECADE).ceil();
        *self.buckets.entry(key as u16).or_default() += 1;
    }

    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.max_us = self.max_us.max(other.max_us);
        for (key, count) in &other.buckets {
            *self.buckets.entry(*key).or_default() += count;
        }
    }

    /// From the shortest to the longest: a duration in µs, and which part of all is at most that long.
    pub(crate) fn curve(&self) -> impl Iterator<Item = (f64, f64)> {
        let mut so_far = 0;
        self.buckets.iter().map(move |(key, count)| {
            so_far += count;
            let us = 10f64.powf(f64::from(*key) / Self::PER_DECADE);
            (us.min(self.max_us.max(1) as f64), so_far as f64 / self.count as f64)
        })
    }

    /// The duration in µs that a part of all does not exceed; `None` without any.
    pub(crate) fn quantile(&self, part: f64) -> Option<u64> {
        self.curve().find(|(_, up_to)| *up_to >= part).map(|(us, _)| us.round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_close_from_above_and_add_up() {
        let (mut low, mut high) = (Spread::default(), Spread::default());
        (1..=500).for_each(|us| low.record(us));
        (501..=1_000).for_each(|us| high.record(us));
        low.add(&high);
        assert_eq!((low.count, low.max_us, low.quantile(1.0)), (1_000, 1_000, Some(1_000)));
        for (part, exact) in [(0.5, 500), (0.99, 990)] {
            let found = low.quantile(part).unwrap();
            assert!(found >= exact && found <= exact + exact / 40, "{found} for {exact}");
        }
        assert_eq!(Spread::default().quantile(0.5), None);
    }

    #[test]
    fn what_the_nemesis_does_and_what_workers_do_are_counted_apart() {
        let mut history = super::super::sample_history();
        let counts = Counts::of(&history);
        assert_eq!((counts.injected(), counts.classes_injected(), counts.acts()), (1, 1, 1));
        history.faults.iter_mut().for_each(|fault| fault.id = 0);
        let counts = Counts::of(&history);
        assert_eq!((counts.injected(), counts.classes_injected(), counts.acts()), (0, 0, 1));
    }

    #[test]
    fn counts_survive_as_json() {
        let mut counts = Counts { granted: 3, ..Counts::default() };
        counts.faults.insert(Class::KillNode, 2);
        counts.handover.record(17);
        let text = serde_json::to_string(&counts).unwrap();
        assert_eq!(serde_json::from_str::<Counts>(&text).unwrap(), counts);
    }
}
