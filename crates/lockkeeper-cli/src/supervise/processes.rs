//! Processes as `/proc` shows them.
//!
//! `/proc` may use other process ids than we do: in a new PID namespace it still shows the outer one until it is
//! mounted anew. Ancestry is read in the numbers of `/proc`; a signal is sent to the number that is valid here.

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::collections::HashMap;
use std::sync::OnceLock;

/// One process as `/proc` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    /// As `/proc` counts.
    pub(super) pid: u32,
    pub(super) parent: u32,
    /// 0 when the group was made outside of the namespace that `/proc` shows.
    group: u32,
    session: u32,
    state: char,
    /// When it began. Process id and start time together are unique.
    began: u64,
}

impl Process {
    /// Dead, and only waiting to be reaped.
    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Stopped by a signal or a debugger.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }

    /// Its process id as it is valid here; `None` when it has ended or is not visible here.
    pub(super) fn here(&self) -> Option<Pid> {
        let number = match numbers()?.depth {
            0 => self.pid,
            depth => *ids(&status(&self.pid.to_string())?, "NSpid:")?.get(depth)?,
        };
        i32::try_from(number).ok().and_then(Pid::from_raw)
    }

    /// Sends a signal; `false` when that is not allowed. A process that has ended meanwhile needs none.
    pub(super) fn signal(&self, signal: Signal) -> bool {
        let Some(pid) = self.here() else { return true };
        self.send(pid, signal) != Err(rustix::io::Errno::PERM)
    }

    /// The descriptor stays with the process that was opened, so a reused process id is noticed.
    #[cfg(target_os = "linux")]
    fn send(&self, pid: Pid, signal: Signal) -> rustix::io::Result<()> {
        use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(opened) if look(self.pid).is_some_and(|now| now.began == self.began) => {
                pidfd_send_signal(opened, signal)
            }
            Ok(_) | Err(rustix::io::Errno::SRCH) => Ok(()),
            // Kernels before 5.3, and some sandboxes, have no such descriptors.
            Err(_) => kill_process(pid, signal),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn send(&self, pid: Pid, signal: Signal) -> rustix::io::Result<()> {
        kill_process(pid, signal)
    }

    /// Whether it ignores a signal, as what a shell starts with `&` ignores Ctrl-C.
    pub(super) fn ignores(&self, signal: Signal) -> bool {
        status(&self.pid.to_string()).is_some_and(|text| mask(&text, "SigIgn:") & bit(signal) != 0)
    }
}

/// One process, by `/proc`'s number, if it exists and can be seen.
pub(super) fn look(pid: u32) -> Option<Process> {
    parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name, in brackets, may hold anything: what follows its last bracket is fixed.
fn parse(pid: u32, stat: &str) -> Option<Process> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    // Field 22 of the line, and the session is its sixth.
    let began = fields.nth(15)?.parse().ok()?;
    Some(Process { pid, parent, group, session, state, began })
}

/// All visible processes.
pub(super) fn all() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).filter_map(look).collect()
}

/// Whether a process has ended, reaped or not. One that is hidden from us counts as alive.
pub(super) fn has_ended(pid: Pid) -> bool {
    match all().into_iter().find(|process| process.here() == Some(pid)) {
        Some(process) => process.is_dead(),
        None => test_kill_process(pid) == Err(rustix::io::Errno::SRCH),
    }
}

/// How `/proc` counts.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    /// This process.
    us: u32,
    /// How many namespaces lie between `/proc`'s and ours.
    depth: usize,
}

fn numbers() -> Option<Numbers> {
    static NUMBERS: OnceLock<Option<Numbers>> = OnceLock::new();
    *NUMBERS.get_or_init(|| {
        let ids = ids(&status("self")?, "NSpid:")?;
        let fits = ids.last() == Some(&std::process::id());
        fits.then_some(Numbers { us: *ids.first()?, depth: ids.len() - 1 })
    })
}

/// This process in `/proc`'s numbers; `None` where there is no `/proc` that shows it.
pub(super) fn us() -> Option<u32> {
    numbers().map(|numbers| numbers.us)
}

/// This process's group; `None` when it was made outside of our PID namespace, so that it has no number here.
pub(super) fn own_group() -> Option<Pid> {
    Pid::from_raw(nix::unistd::getpgrp().as_raw())
}

/// Whether no other process shares our process group. `false` where that cannot be seen.
pub(super) fn alone_in_group() -> bool {
    let Some(we) = us().and_then(look) else { return false };
    we.group != 0 && !all().iter().any(|p| p.group == we.group && p.pid != we.pid && !p.is_dead())
}

/// Whether a shell would notice a stop of our process group. The kernel ignores Ctrl-Z in a group without a parent in
/// its session, because it could stay stopped for ever.
pub(super) fn has_a_shell_above() -> bool {
    let Some(we) = us().and_then(look) else { return false };
    let all: HashMap<u32, Process> = all().into_iter().map(|p| (p.pid, p)).collect();
    let watched = |p: &Process| all.get(&p.parent).is_some_and(|up| up.group != p.group && up.session == p.session);
    we.group != 0 && all.values().filter(|p| p.group == we.group && !p.is_dead()).any(watched)
}

/// The signals this process was started to ignore; none where that cannot be seen.
pub(super) fn is_ignored(signal: Signal) -> bool {
    static IGNORED: OnceLock<u64> = OnceLock::new();
    let ignored = IGNORED.get_or_init(|| mask(&status("self").unwrap_or_default(), "SigIgn:"));
    ignored & bit(signal) != 0
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

fn mask(status: &str, field: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn status(pid: &str) -> Option<String> {
    // A process may give itself any name, and the kernel does not promise that it is UTF-8.
    Some(String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/status")).ok()?).into_owned())
}

fn ids(status: &str, field: &str) -> Option<Vec<u32>> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_ascii_whitespace().map(|id| id.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_process_name_does_not_confuse() {
        let rest = "Z 42 43 44 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0";
        let process = parse(7, &format!("7 (x) S 1 (y) {rest}")).unwrap();
        assert_eq!((process.parent, process.group, process.session), (42, 43, 44));
        assert_eq!((process.is_dead(), process.began), (true, 777));
        assert_eq!(parse(7, "7 (x"), None);
    }

    #[test]
    fn this_process_is_seen() {
        let us = look(us().unwrap()).unwrap();
        assert_eq!(us.parent, std::os::unix::process::parent_id());
        assert_eq!(us.here(), Some(rustix::process::getpid()));
        assert_eq!(i32::try_from(us.group).ok().and_then(Pid::from_raw), own_group());
    }

    #[test]
    fn the_numbers_of_a_namespace_are_told_apart() {
        let status = "Name:\tNSpid: 1\nNSpid:\t4711\t1\nSigIgn:\t0000000000000001\n";
        assert_eq!(ids(status, "NSpid:"), Some(vec![4711, 1]));
        assert_eq!(mask(status, "SigIgn:") & bit(Signal::HUP), 1);
    }
}
