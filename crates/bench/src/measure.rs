//! Rounds of several contestants in turn, so that a noisy moment hits all of them; medians and quartiles.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// What one contestant needed per operation, over all rounds.
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    wall: Vec<f64>,
    cpu: Vec<f64>,
}

impl Sample {
    pub(crate) fn wall(&self) -> f64 {
        quantile(&self.wall, 0.5)
    }

    pub(crate) fn cpu(&self) -> f64 {
        quantile(&self.cpu, 0.5)
    }

    /// The median of the ratios to `floor`, round by round, so that a slow round does not change it.
    pub(crate) fn ratio(&self, floor: &Self) -> f64 {
        quantile(&self.wall.iter().zip(&floor.wall).map(|(ours, floor)| ours / floor).collect::<Vec<_>>(), 0.5)
    }

    /// The same for CPU time.
    pub(crate) fn cpu_ratio(&self, floor: &Self) -> f64 {
        quantile(&self.cpu.iter().zip(&floor.cpu).map(|(ours, floor)| ours / floor).collect::<Vec<_>>(), 0.5)
    }
}

/// A named piece of work that does its operation so many times.
pub(crate) type Contestant<'a> = (&'static str, Box<dyn FnMut(u32) + 'a>);

/// Runs each contestant `count` times per round, in turn; the first round only warms up.
pub(crate) fn rounds(rounds: u32, count: u32, mut contestants: Vec<Contestant<'_>>) -> Vec<Sample> {
    let mut samples: Vec<Sample> =
        contestants.iter().map(|(name, _)| Sample { name, wall: Vec::new(), cpu: Vec::new() }).collect();
    for round in 0..=rounds {
        for (sample, (_, work)) in samples.iter_mut().zip(&mut contestants) {
            let (cpu, wall) = (cpu_time(), Instant::now());
            work(count);
            let (wall, cpu) = (wall.elapsed(), cpu_time() - cpu);
            if round > 0 {
                sample.wall.push(wall.as_secs_f64() * 1e6 / f64::from(count));
                sample.cpu.push(cpu.as_secs_f64() * 1e6 / f64::from(count));
            }
        }
    }
    samples
}

/// A table in µs per operation, with each row's ratio to the first.
pub(crate) fn table(title: &str, samples: &[Sample]) {
    println!("\n### {title}\n");
    println!("| | µs (quartiles) | x floor | CPU µs | x floor |\n|---|---|---|---|---|");
    for s in samples {
        println!(
            "| {} | {:.2} ({:.2}–{:.2}) | {:.2} | {:.2} | {:.2} |",
            s.name,
            s.wall(),
            quantile(&s.wall, 0.25),
            quantile(&s.wall, 0.75),
            s.ratio(&samples[0]),
            s.cpu(),
            s.cpu_ratio(&samples[0]),
        );
    }
}

pub(crate) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len().saturating_sub(1) as f64 * q).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// CPU time of the whole process: every thread counts.
pub(crate) fn cpu_time() -> Duration {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec.unsigned_abs(), u32::try_from(t.tv_nsec).unwrap_or(0))
}

/// Memory in use, in bytes.
pub(crate) fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}
