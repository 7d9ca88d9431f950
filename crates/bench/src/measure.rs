//! Rounds of several contestants in turn, so that a noisy moment hits all of them; medians and quartiles. CPU time of
//! the client and of the server beside wall time: it is the steadier figure on a busy machine.

use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// What one contestant needed per operation, over all rounds.
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    wall: Vec<f64>,
    cpu: Vec<f64>,
    /// Of the server's process; empty without one.
    served: Vec<f64>,
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
        median_ratio(&self.wall, &floor.wall)
    }

    /// The same for CPU time.
    pub(crate) fn cpu_ratio(&self, floor: &Self) -> f64 {
        median_ratio(&self.cpu, &floor.cpu)
    }

    /// CPU of the server, and its ratio to the floor's, as two more columns.
    fn served(&self, floor: &Self) -> String {
        if self.served.is_empty() {
            return String::new();
        }
        format!(" {:.2} | {:.2} |", quantile(&self.served, 0.5), median_ratio(&self.served, &floor.served))
    }
}

/// The median of the ratios of two contestants, round by round.
pub(crate) fn median_ratio(ours: &[f64], floor: &[f64]) -> f64 {
    quantile(&ours.iter().zip(floor).map(|(ours, floor)| ours / floor).collect::<Vec<_>>(), 0.5)
}

/// A named piece of work that does its operation so many times.
pub(crate) type Contestant<'a> = (&'static str, Box<dyn FnMut(u32) + 'a>);

/// Runs each contestant `count` times per round, in turn; the first round only warms up.
pub(crate) fn rounds(rounds: u32, count: u32, contestants: Vec<Contestant<'_>>) -> Vec<Sample> {
    rounds_on(&[], rounds, count, contestants)
}

/// The same beside the CPU of servers, by their process ids.
pub(crate) fn rounds_on(servers: &[i32], rounds: u32, count: u32, mut contestants: Vec<Contestant<'_>>) -> Vec<Sample> {
    let empty = |(name, _): &Contestant<'_>| Sample { name, wall: Vec::new(), cpu: Vec::new(), served: Vec::new() };
    let mut samples: Vec<Sample> = contestants.iter().map(empty).collect();
    for round in 0..=rounds {
        for (sample, (_, work)) in samples.iter_mut().zip(&mut contestants) {
            let spent = Spent::begin(servers);
            work(count);
            let spent = spent.end(f64::from(count));
            if round > 0 {
                sample.wall.push(spent.wall);
                sample.cpu.push(spent.client);
                sample.served.extend((!servers.is_empty()).then_some(spent.server));
            }
        }
    }
    samples
}

/// A table in µs per operation, with each row's ratio to the first.
pub(crate) fn table(title: &str, samples: &[Sample]) {
    let served = samples.iter().any(|s| !s.served.is_empty());
    println!("\n### {title}\n");
    println!(
        "| | µs (quartiles) | x floor | CPU µs | x floor |{}",
        if served { " server CPU µs | x floor |" } else { "" }
    );
    println!("|---|---|---|---|---|{}", if served { "---|---|" } else { "" });
    for s in samples {
        println!(
            "| {} | {:.2} ({:.2}–{:.2}) | {:.2} | {:.2} | {:.2} |{}",
            s.name,
            s.wall(),
            quantile(&s.wall, 0.25),
            quantile(&s.wall, 0.75),
            s.ratio(&samples[0]),
            s.cpu(),
            s.cpu_ratio(&samples[0]),
            s.served(&samples[0]),
        );
    }
}

/// What a stretch of work has taken, in µs: on the clock, of this process's CPU, of the server's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) wall: f64,
    pub(crate) client: f64,
    pub(crate) server: f64,
}

/// The median of each, over several rounds.
pub(crate) fn medians(costs: &[Cost]) -> Cost {
    let median = |of: fn(&Cost) -> f64| quantile(&costs.iter().map(of).collect::<Vec<_>>(), 0.5);
    Cost { wall: median(|cost| cost.wall), client: median(|cost| cost.client), server: median(|cost| cost.server) }
}

/// The beginning of a stretch of work.
pub(crate) struct Spent {
    servers: Vec<i32>,
    served: HashMap<String, u64>,
    cpu: Duration,
    wall: Instant,
}

impl Spent {
    pub(crate) fn begin(servers: &[i32]) -> Self {
        // Reading the servers' times takes CPU of our own: not of the stretch.
        let served = server_times(servers);
        Self { servers: servers.to_vec(), served, cpu: cpu_time(), wall: Instant::now() }
    }

    /// The cost of each of `count` operations.
    pub(crate) fn end(&self, count: f64) -> Cost {
        let (wall, cpu) = (self.wall.elapsed(), cpu_time());
        // Thread by thread: one that has ended takes none of the others' time back.
        let since = |(thread, time): (String, u64)| time - self.served.get(&thread).copied().unwrap_or(0).min(time);
        let served = Duration::from_nanos(server_times(&self.servers).into_iter().map(since).sum());
        let each = |time: Duration| time.as_secs_f64() * 1e6 / count;
        Cost { wall: each(wall), client: each(cpu.saturating_sub(self.cpu)), server: each(served) }
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

/// CPU time of servers and of their child processes, of all threads that live now.
pub(crate) fn server_cpu(servers: &[i32]) -> Duration {
    Duration::from_nanos(server_times(servers).values().sum())
}

/// The same for each thread, in ns.
fn server_times(servers: &[i32]) -> HashMap<String, u64> {
    let mut times = HashMap::new();
    let mut pids: Vec<String> = servers.iter().map(i32::to_string).collect();
    while let Some(pid) = pids.pop() {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let read = |file: &str| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let time = read("schedstat").split(' ').next().and_then(|time| time.parse::<u64>().ok()).unwrap_or(0);
            times.insert(thread.file_name().to_string_lossy().into_owned(), time);
            pids.extend(read("children").split_whitespace().map(str::to_owned));
        }
    }
    times
}

/// Raises this session above the others of the machine, where that is allowed: with autogroups, `nice` counts only
/// within one session.
pub(crate) fn come_first() {
    let _ = fs::write("/proc/self/autogroup", "-20");
}

/// Memory in use, in bytes.
pub(crate) fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}
