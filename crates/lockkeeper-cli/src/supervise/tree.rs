//! Everything the command has started, also what left its process group or session.
//!
//! The shim stays above all of it as the reaper of its descendants, so the tree cannot be escaped.

use super::processes::{self, Process};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, wait};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// How long a process has to stop by itself: it may put its terminal or its files in order first.
const POLITE_STOP: Duration = Duration::from_millis(100);
/// How often the tree is looked at while it stops or ends, at first.
pub(super) const LOOK: Duration = Duration::from_millis(2);
/// The longest pause between two looks: each reads all of `/proc`.
pub(super) const SELDOM: Duration = Duration::from_millis(100);

/// The command's tree, below a process that is not part of it.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// The shim, by `/proc`'s number. `None`: this process itself is the root.
    shim: Option<u32>,
    /// Children that this process had before: the command has nothing to do with them.
    strangers: HashSet<u32>,
}

impl Tree {
    /// The tree of the child that is about to be started; what exists now does not belong to it.
    pub(super) fn to_come() -> Self {
        Self { shim: None, strangers: children().into_iter().map(|p| p.pid).collect() }
    }

    /// The child that was started is the shim.
    pub(super) fn below(&mut self, shim: Pid) {
        self.shim = children().into_iter().find(|p| p.here() == Some(shim)).map(|p| p.pid);
    }

    /// The living members.
    pub(super) fn living(&self) -> Vec<Process> {
        let mut by_parent: HashMap<u32, Vec<Process>> = HashMap::new();
        let mut shim_lives = false;
        for process in processes::all() {
            shim_lives |= Some(process.pid) == self.shim && !process.is_dead();
            by_parent.entry(process.parent).or_default().push(process);
        }
        // The children of a killed shim become ours.
        let mut above: Vec<u32> = if shim_lives { self.shim } else { processes::us() }.into_iter().collect();
        let mut found = Vec::new();
        while let Some(parent) = above.pop() {
            for process in by_parent.remove(&parent).unwrap_or_default() {
                if self.strangers.contains(&process.pid) || Some(process.pid) == self.shim {
                    continue;
                }
                above.push(process.pid);
                if !process.is_dead() {
                    found.push(process);
                }
            }
        }
        found
    }

    /// Whether one of its members is stopped.
    pub(super) fn is_stopped(&self, pid: Pid) -> bool {
        self.living().iter().any(|p| p.is_stopped() && p.here() == Some(pid))
    }

    /// Sends a signal to all of it.
    pub(super) fn signal(&self, signal: Signal) {
        signal_each(&self.living(), signal);
    }

    /// Kills until nothing is left.
    pub(super) async fn end(&self) {
        let mut pause = LOOK;
        loop {
            let left = self.living();
            if left.is_empty() {
                return;
            }
            signal_each(&left, Signal::KILL);
            reap_all();
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(SELDOM);
        }
    }

    /// Stops the whole tree, with TSTP first, then with STOP. Returns the processes that it stopped; or those that
    /// cannot be stopped, and then all continue.
    pub(super) async fn stop(&self) -> Result<Vec<Process>, Vec<Process>> {
        let began = Instant::now();
        let mut stopped: Vec<Process> = self.living().into_iter().filter(|p| !p.is_stopped()).collect();
        signal_each(&stopped, Signal::TSTP);
        while began.elapsed() < POLITE_STOP && !self.living().iter().all(Process::is_stopped) {
            tokio::time::sleep(LOOK).await;
        }
        // A process that was sent STOP runs no more. Only what it started just before can still turn up.
        let mut forced = HashSet::new();
        loop {
            let mut running = self.living();
            running.retain(|p| !p.is_stopped() && forced.insert(p.pid));
            if running.is_empty() {
                return Ok(stopped);
            }
            let refused: Vec<Process> = running.iter().copied().filter(|p| !p.signal(Signal::STOP)).collect();
            stopped.extend(running);
            if !refused.is_empty() {
                signal_each(&stopped, Signal::CONT);
                return Err(refused);
            }
        }
    }
}

fn children() -> Vec<Process> {
    let us = processes::us();
    processes::all().into_iter().filter(|p| Some(p.parent) == us).collect()
}

/// Sends a signal to each of `processes`.
pub(super) fn signal_each(processes: &[Process], signal: Signal) {
    for process in processes {
        // A process of another user is reported later, if it survives.
        let _ = process.signal(signal);
    }
}

/// The process ids of `processes`, as they are valid here.
pub(super) fn ids(processes: &[Process]) -> Vec<i32> {
    processes.iter().filter_map(Process::here).map(|pid| pid.as_raw_nonzero().get()).collect()
}

/// What `reap` found.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reaped {
    /// A child ended or was stopped.
    One(Pid, WaitStatus),
    /// There are children, and none has changed state.
    Nothing,
    /// There are no children.
    NoChildren,
}

/// Reaps all that have ended; `true` when there are no children any more.
pub(super) fn reap_all() -> bool {
    loop {
        match reap() {
            Reaped::One(..) => {}
            other => return matches!(other, Reaped::NoChildren),
        }
    }
}

/// Reaps one child that ended, or tells of one that was stopped.
pub(super) fn reap() -> Reaped {
    match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
        Ok(Some((pid, status))) => Reaped::One(pid, status),
        Err(rustix::io::Errno::CHILD) => Reaped::NoChildren,
        _ => Reaped::Nothing,
    }
}
