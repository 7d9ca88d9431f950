//! Everything the command has started, found through `/proc`: also what left its process group or session.
//!
//! As the reaper of its descendants the supervisor stays above all of them, so the tree cannot be escaped. Where there is
//! no `/proc`, only the command's process group is known.

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpgrp, kill_process, wait};
use std::collections::{HashMap, HashSet};

/// One process as `/proc` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) parent: u32,
    group: u32,
    /// Dead, and only waiting to be reaped.
    dead: bool,
}

/// One process, if it exists and can be seen.
pub(super) fn look(pid: u32) -> Option<Process> {
    parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name, in brackets, may hold anything: what follows its last bracket is fixed.
fn parse(pid: u32, stat: &str) -> Option<Process> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let dead = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    Some(Process { pid, parent, group, dead })
}

fn all() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).filter_map(look).collect()
}

/// Our children at this moment: with them we were started, the command has nothing to do with them.
pub(super) fn children() -> HashSet<u32> {
    all().iter().filter(|p| p.parent == std::process::id()).map(|p| p.pid).collect()
}

/// Whether no other process shares our process group.
pub(super) fn alone_in_group() -> bool {
    let (us, group) = (std::process::id(), getpgrp().as_raw_nonzero().get().unsigned_abs());
    !all().iter().any(|p| p.group == group && p.pid != us && !p.dead)
}

/// The living descendants, without `strangers` and theirs.
pub(super) fn descendants(strangers: &HashSet<u32>) -> Vec<Pid> {
    let mut by_parent: HashMap<u32, Vec<Process>> = HashMap::new();
    for process in all() {
        by_parent.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut above = vec![std::process::id()];
    while let Some(parent) = above.pop() {
        for process in by_parent.remove(&parent).unwrap_or_default() {
            if strangers.contains(&process.pid) {
                continue;
            }
            above.push(process.pid);
            if !process.dead {
                found.extend(i32::try_from(process.pid).ok().and_then(Pid::from_raw));
            }
        }
    }
    found
}

/// Sends a signal to each of `processes`.
pub(super) fn signal(processes: &[Pid], signal: Signal) {
    for process in processes {
        // It may have ended since it was seen.
        let _ = kill_process(*process, signal);
    }
}

/// Reaps one child that ended, or tells of one that was stopped; `None` when there is nothing to tell.
pub(super) fn reap() -> Option<(Pid, WaitStatus)> {
    wait(WaitOptions::NOHANG | WaitOptions::UNTRACED).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_process_name_does_not_confuse() {
        let process = parse(7, "7 (x) S 1 (y) Z 42 43 44 0").unwrap();
        assert_eq!((process.parent, process.group, process.dead), (42, 43, true));
        assert_eq!(parse(7, "7 (x"), None);
    }

    #[test]
    fn this_process_is_seen() {
        let us = look(std::process::id()).unwrap();
        assert_eq!(us.parent, std::os::unix::process::parent_id());
    }
}
