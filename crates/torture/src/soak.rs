//! What processes and the store use while very many locks are held, written down every few seconds.

use crate::crew::descendants;
use crate::history::{Group, Log, Nanos, Reading, now};
use crate::nemesis::Stage;
use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Lets this process and those that it starts open as many files as the system allows.
pub(crate) fn raise_limits() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Without it, fewer workers can be had; a run says so when it meets the limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// How nice this process and the servers that it starts are, and how nice workers are.
const NICE: (i32, i32) = (-15, 10);

/// Servers go before workers where the processors are few: one that starts again has to read its log beside 200 workers that
/// all ask for it.
pub(crate) fn servers_first() {
    // Only root may. Workers are nicer all the same.
    let _ = setpriority_process(None, NICE.0);
}

/// This process is a worker.
pub(crate) fn workers_last() -> io::Result<()> {
    Ok(setpriority_process(None, NICE.1)?)
}

/// What a sample is taken of.
struct Order {
    at: Nanos,
    workers: Vec<i32>,
    /// Commands that each print a number.
    entries: Vec<Command>,
}

/// Takes samples in a thread of its own: a server that is paused answers only when the nemesis has healed it.
pub(crate) struct Sampler {
    every: Duration,
    next: Instant,
    orders: Option<SyncSender<Order>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Sampler {
    pub(crate) fn start(every: Duration, history: &Path) -> io::Result<Self> {
        let log = Log::open(history, "samples.jsonl")?;
        let (orders, taken) = sync_channel::<Order>(1);
        let thread = thread::spawn(move || taken.iter().try_for_each(|order| log.line(&reading(order))));
        Ok(Self { every, next: Instant::now(), orders: Some(orders), thread: Some(thread) })
    }

    /// Takes a sample when it is time for one.
    pub(crate) fn look(&mut self, stage: &Stage) {
        if Instant::now() < self.next {
            return;
        }
        self.next += self.every;
        let order = Order { at: now(), workers: stage.crew.pids(), entries: stage.rig.entries() };
        // One is left out while the one before it still waits for the store.
        let _ = self.orders.as_ref().map(|orders| orders.try_send(order));
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn reading(order: Order) -> Reading {
    let ours = descendants(std::process::id().cast_signed());
    let others = ours.iter().skip(1).filter(|pid| !order.workers.contains(pid));
    let (workers, servers) = (Group::of(&order.workers), Group::of(others));
    let entries = order.entries.into_iter().map(number).collect::<Option<Vec<u64>>>();
    let entries = entries.filter(|counts| !counts.is_empty()).map(|counts| counts.iter().sum());
    Reading { at: order.at, workers, servers, entries }
}

/// The last number that a command prints.
fn number(mut command: Command) -> Option<u64> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split(|c: char| !c.is_ascii_digit()).rfind(|word| !word.is_empty())?.parse().ok()
}

impl Group {
    /// Of those processes that are still there.
    fn of<'a>(pids: impl IntoIterator<Item = &'a i32>) -> Self {
        let mut group = Self::default();
        for (memory, threads, fds) in pids.into_iter().filter_map(|pid| used(*pid)) {
            group.processes += 1;
            group.memory_kb += memory;
            group.threads += threads;
            group.fds += fds;
            group.memory_kb_max = group.memory_kb_max.max(memory);
            group.threads_max = group.threads_max.max(threads);
            group.fds_max = group.fds_max.max(fds);
        }
        group
    }
}

/// Memory in KiB, threads, file descriptors of a process.
fn used(pid: i32) -> Option<(u64, u64, u64)> {
    let place = Path::new("/proc").join(pid.to_string());
    let status = std::fs::read_to_string(place.join("status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let fds = std::fs::read_dir(place.join("fd")).map_or(0, |open| open.count() as u64);
    Some((field("RssAnon:")?, field("Threads:")?, fds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_with_its_threads_and_files() {
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let own = std::process::id().cast_signed();
        let group = Group::of(&[own, i32::MAX]);
        assert_eq!((group.processes, group.threads), (1, group.threads_max));
        assert!(group.memory_kb > 0 && group.threads >= 2 && group.fds >= 4, "{group:?}");
        drop(file);
    }

    #[test]
    fn the_last_number_counts_and_an_error_is_none() {
        let said = |text: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", text]);
            number(command)
        };
        assert_eq!(said("echo '\"Revision\" : 7'; echo '\"Count\" : 12'"), Some(12));
        assert_eq!((said("echo none"), said("echo 3; false")), (None, None));
    }
}
