//! (e) Over a soak nothing grows: neither what processes use nor what the store has.

use super::read::History;
use super::slice;
use super::windows::Window;
use super::{Finding, Property, Spells, Verdict};
use crate::history::{Group, Nanos, Reading};

/// So many samples are needed for a judgement. In a shorter run most of what grows is what fills for the first time.
const ENOUGH: usize = 24;
/// Growth by this part is none.
const PART: f64 = 0.1;

/// A figure over time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// So much more is no growth either.
    slack: f64,
    /// Which part of the samples of a quarter is below its level: a half, or less where faults make a figure rise for a while.
    below: f64,
    pub(crate) points: Vec<(Nanos, f64)>,
}

/// What a series says of growth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Level {
    /// Of the second quarter: the first one is when things fill.
    pub(crate) early: f64,
    /// Of the last quarter.
    pub(crate) late: f64,
    pub(crate) limit: f64,
}

impl Series {
    /// `None` when there are too few samples.
    pub(crate) fn level(&self) -> Option<Level> {
        let quarter = self.points.len() / 4;
        if self.points.len() < ENOUGH {
            return None;
        }
        let early = quantile(&self.points[quarter..2 * quarter], self.below);
        let late = quantile(&self.points[self.points.len() - quarter..], self.below);
        Some(Level { early, late, limit: early * (1.0 + PART) + self.slack })
    }
}

impl Level {
    pub(crate) fn grew(&self) -> bool {
        self.late > self.limit
    }
}

fn quantile(points: &[(Nanos, f64)], below: f64) -> f64 {
    let mut values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
    values.sort_by(f64::total_cmp);
    values.get((values.len() as f64 * below) as usize).copied().unwrap_or(0.0)
}

/// Judges all series of a soak.
pub(super) fn check(history: &History, verdict: &mut Verdict) {
    verdict.counts.samples = readings(history).count() as u64;
    if verdict.counts.samples == 0 {
        return;
    }
    verdict.counts.held = quantile(&held(history).points, 0.5) as u64;
    for series in series(history) {
        let Some(level) = series.level().filter(Level::grew) else { continue };
        verdict.counts.leaks += 1;
        let Level { early, late, limit } = level;
        let sentence = format!("{} grew from {early:.0} to {late:.0}: at most {limit:.0}", series.name);
        let quarter = series.points.len() / 4;
        let [from, to] = [quarter, series.points.len() - quarter].map(|at| series.points[at].0);
        let lines = [(from, "the second quarter begins"), (to, "the last quarter begins")];
        let lines = lines.map(|(at, words)| slice::note(at, words)).into();
        let (property, slice) = (Property::Leaks, slice::slice(history, lines));
        verdict.findings.push(Finding { property, sentence, slice, excused: false });
    }
}

/// The samples while faults happened: before, workers start, and at the end they stop.
fn readings(history: &History) -> impl Iterator<Item = &Reading> {
    let during = history.meta.calm_until..=history.meta.healed;
    history.samples.iter().filter(move |sample| during.contains(&sample.at))
}

/// All that must not grow; nothing of what a run has none of.
pub(crate) fn series(history: &History) -> Vec<Series> {
    type Figure = (&'static str, f64, fn(&Group) -> f64);
    const FIGURES: [Figure; 6] = [
        ("memory, MiB", 32.0, |group| mebibytes(group.memory_kb)),
        ("memory of the largest, MiB", 16.0, |group| mebibytes(group.memory_kb_max)),
        ("threads", 16.0, |group| group.threads as f64),
        ("most threads of one", 4.0, |group| group.threads_max as f64),
        ("file descriptors", 64.0, |group| group.fds as f64),
        ("most file descriptors of one", 16.0, |group| group.fds_max as f64),
    ];
    let of = |name: String, slack: f64, figure: &dyn Fn(&Reading) -> Option<f64>| {
        let points = readings(history).filter_map(|one| Some((one.at, figure(one)?))).collect();
        Series { name, slack, below: 0.5, points }
    };
    let mut all = Vec::new();
    for (name, slack, figure) in FIGURES {
        all.push(of(format!("workers: {name}"), slack, &|one| Some(figure(&one.workers))));
        all.push(of(format!("servers: {name}"), slack, &|one| Some(figure(&one.servers))));
    }
    // What an outage leaves in a store ends by itself, and some faults take all of it: what stays is the lower part.
    let entries = of("store: entries".to_owned(), 200.0, &|one| one.entries.map(|entries| entries as f64));
    all.push(Series { below: 0.25, ..entries });
    all.push(Series { name: "workers: tasks of one".to_owned(), slack: 4.0, below: 0.5, points: tasks(history) });
    all.retain(|series| series.points.iter().any(|(_, value)| *value > 0.0));
    all
}

fn mebibytes(kb: u64) -> f64 {
    kb as f64 / 1024.0
}

/// The mean of what workers said of their tasks since the sample before.
fn tasks(history: &History) -> Vec<(Nanos, f64)> {
    let mut said: Vec<(Nanos, u64)> =
        history.workers.values().flat_map(|worker| worker.tasks.iter().copied()).collect();
    said.sort_unstable();
    let mut said = said.into_iter().peekable();
    let mut points = Vec::new();
    for sample in readings(history) {
        let (mut sum, mut count) = (0, 0);
        while let Some((_, tasks)) = said.next_if(|(at, _)| *at <= sample.at) {
            (sum, count) = (sum + tasks, count + 1);
        }
        if count > 0 {
            points.push((sample.at, sum as f64 / f64::from(count)));
        }
    }
    points
}

/// How many locks were held at each sample, as far as their holders believed it.
pub(crate) fn held(history: &History) -> Series {
    let spells = Spells::of(history);
    let windows = history.attempts.iter().filter_map(|attempt| Window::of(attempt, &spells));
    let (mut begins, mut ends): (Vec<Nanos>, Vec<Nanos>) =
        windows.filter(|window| window.until > window.from).map(|window| (window.from, window.until)).unzip();
    begins.sort_unstable();
    ends.sort_unstable();
    let at = |moment: Nanos| {
        let up_to = |times: &[Nanos]| times.partition_point(|time| *time <= moment);
        (up_to(&begins) - up_to(&ends)) as f64
    };
    let points = readings(history).map(|sample| (sample.at, at(sample.at))).collect();
    Series { name: "locks held".to_owned(), slack: 0.0, below: 0.5, points }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{MS, Sample, findings};
    use super::*;
    use fastrand::Rng;

    /// Samples of ten minutes; what workers and the store use comes from their number.
    fn soak(count: u64, change: impl Fn(u64, &mut Rng, &mut Reading)) -> History {
        let mut rng = Rng::with_seed(14);
        let mut s = Sample::new();
        s.held(1, "a", (0, 10, 500_000), 1);
        s.kept(1, 499_000, 600_000);
        let mut history = s.history();
        history.samples = (0..count)
            .map(|number| {
                let group = Group {
                    processes: 200,
                    memory_kb: 2_000_000 + rng.u64(..100_000),
                    memory_kb_max: 12_000 + rng.u64(..2_000),
                    threads: 800 + rng.u64(..40),
                    threads_max: 60,
                    fds: 4_000 + rng.u64(..100),
                    fds_max: 24,
                };
                let entries = Some(20_000 + rng.u64(..1_000));
                let mut reading = Reading { at: number * 10_000 * MS, workers: group, servers: group, entries };
                change(number, &mut rng, &mut reading);
                reading
            })
            .collect();
        history
    }

    fn found(history: &History) -> String {
        let mut verdict = Verdict::default();
        check(history, &mut verdict);
        findings(&verdict)
    }

    #[test]
    fn noise_a_filling_start_and_gaps_are_flat() {
        let history = soak(60, |number, rng, reading| {
            reading.entries =
                if rng.u32(..5) == 0 { None } else { reading.entries.map(|all| all * number.min(10) / 10) };
            reading.workers.memory_kb = reading.workers.memory_kb * (5 + number.min(10)) / 15;
            // A server that was down for a moment.
            reading.servers.processes = 0;
            reading.servers.memory_kb *= u64::from(rng.u32(..10) > 0);
        });
        assert_eq!(found(&history), "");
    }

    #[test]
    fn a_leak_is_found_by_its_name() {
        let history = soak(60, |number, _, reading| {
            reading.workers.fds = 4_000 + number * 40;
            reading.entries = Some(20_000 + number * 100);
        });
        assert_eq!(
            found(&history),
            "(e) workers: file descriptors grew from 4880 to 6080: at most 5432\n\
             | +150.000000s the second quarter begins\n\
             | +450.000000s the last quarter begins\n\
             (e) store: entries grew from 21800 to 24800: at most 24180\n\
             | +150.000000s the second quarter begins\n\
             | +450.000000s the last quarter begins\n"
        );
    }

    #[test]
    fn a_short_run_is_not_judged() {
        let leak = |number: u64, _: &mut Rng, reading: &mut Reading| reading.workers.fds += number * 1_000;
        assert_eq!(found(&soak(23, leak)), "");
        assert!(found(&soak(24, leak)).starts_with("(e) workers: file descriptors grew from "));
    }

    #[test]
    fn locks_held_are_counted_at_each_sample() {
        let history = soak(60, |_, _, _| ());
        let held = held(&history);
        assert_eq!((held.points[0].1, held.points[1].1, held.points[50].1), (0.0, 1.0, 0.0));
        let mut verdict = Verdict::default();
        check(&history, &mut verdict);
        assert_eq!((verdict.counts.samples, verdict.counts.held), (60, 1));
    }
}
