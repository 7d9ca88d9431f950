//! The process between the supervisor and the command: `lockkeeper __shim TERMINAL LIFELINE REPORTS CMD…`.
//!
//! It starts the command, reaps everything the command leaves behind, and reports to the supervisor. **When the supervisor
//! is gone, however it ended, it kills the whole tree**: the lifeline is a pipe whose other end closes with the
//! supervisor. It is in a process group of its own, so that a signal to the supervisor's group spares it.

use super::child::End;
use super::signals::{Happened, Signals};
use super::tree::{self, Reaped, Tree};
use super::{exec, link, terminal};
use crate::exit;
use rustix::process::{Pid, Signal, WaitStatus};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;
use tokio::net::unix::pipe;

/// The word for this part of the program.
pub(super) const WORD: &str = "__shim";

/// Sent on the lifeline: the supervisor no longer needs the shim, and the command's processes may run on.
pub(super) const DISMISSED: u8 = b'.';

/// The longest pause between two tries to end processes of another user, which may live on for any time.
const RARELY: Duration = Duration::from_secs(1);

/// What comes before the command.
pub(super) fn arguments(take_terminal: &str, lifeline: String, reports: String) -> [OsString; 4] {
    [WORD.into(), take_terminal.into(), lifeline.into(), reports.into()]
}

/// What the shim reports, one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The command runs, with this process id.
    Started(i32),
    /// It could not be started: an exit code and a sentence.
    Failed(u8, String),
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The command has ended.
    Ended(End),
}

impl Report {
    fn line(&self) -> String {
        match self {
            Self::Started(pid) => format!("started {pid}\n"),
            Self::Failed(code, text) => format!("failed {code} {}\n", text.replace('\n', " ")),
            Self::Stopped(number) => format!("stopped {number}\n"),
            Self::Ended(End::Exited(code)) => format!("exited {code}\n"),
            Self::Ended(End::Signalled(number)) => format!("signalled {number}\n"),
        }
    }

    pub(super) fn read(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ')?;
        match word {
            "started" => Some(Self::Started(rest.parse().ok()?)),
            "failed" => {
                rest.split_once(' ').and_then(|(code, text)| Some(Self::Failed(code.parse().ok()?, text.into())))
            }
            "stopped" => Some(Self::Stopped(rest.parse().ok()?)),
            "exited" => Some(Self::Ended(End::Exited(rest.parse().ok()?))),
            "signalled" => Some(Self::Ended(End::Signalled(rest.parse().ok()?))),
            _ => None,
        }
    }
}

/// Is the shim until nothing is left to do.
pub(super) fn main(words: &[OsString]) -> u8 {
    let [take_terminal, lifeline, reports, command @ ..] = words else { return exit::USAGE };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return exit::SYSTEM };
    // If the supervisor has ended already, its ends of the pipes are closed.
    runtime.block_on(async {
        let lifeline = link::take_up(lifeline, |path| pipe::OpenOptions::new().open_receiver(path));
        let reports = link::writer(reports);
        let (Ok(lifeline), Ok(reports)) = (lifeline, reports) else { return exit::SYSTEM };
        let shim = Shim { lifeline, reports };
        match shim.serve(take_terminal, command).await {
            Ok(()) => 0,
            Err((code, text)) => {
                shim.report(&Report::Failed(code, text));
                code
            }
        }
    })
}

struct Shim {
    lifeline: pipe::Receiver,
    reports: File,
}

/// The command's process, which may not have become the command yet.
struct Started {
    pid: Pid,
    /// Where the process reports why it cannot become the command; closed without a report once it has.
    failure: Option<pipe::Receiver>,
    said: Vec<u8>,
    /// It ended before its start was reported.
    early: Option<WaitStatus>,
}

impl Shim {
    async fn serve(&self, take_terminal: &OsString, command: &[OsString]) -> Result<(), (u8, String)> {
        let system = |what: &str, e: &dyn std::fmt::Display| (exit::SYSTEM, format!("{what}: {e}"));
        terminal::never_stop();
        #[cfg(target_os = "linux")]
        {
            // Orphans below us become our children too, so that we can find and end them.
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
                .map_err(|e| system("cannot become the reaper of what the command starts", &e))?;
            // If this process is stopped when the supervisor dies, the pipe cannot wake it, but this signal can.
            rustix::process::set_parent_process_death_signal(Some(Signal::CONT))
                .map_err(|e| system("cannot tie the command to this process", &e))?;
        }
        let mut signals = Signals::listen().map_err(|failure| (failure.code, failure.text))?;
        let mut child = start(take_terminal, command).map_err(|e| system("cannot start a process", &e))?;
        loop {
            tokio::select! {
                biased;
                dismissed = self.lifeline_ends() => {
                    if !dismissed {
                        end_all().await;
                    }
                    return Ok(());
                }
                () = child.becomes_the_command() => {
                    if let Some(failed) = child.failed() {
                        return Err(failed);
                    }
                    self.report(&Report::Started(child.pid.as_raw_nonzero().get()));
                    child.early.take().into_iter().for_each(|status| self.tell(status));
                }
                happened = signals.any() => if happened != Happened::Child {
                    // Ignored here: a signal to a whole control group also reaches the supervisor and the command.
                    continue;
                },
            }
            if self.reap(&mut child) && child.failure.is_none() {
                return Ok(());
            }
        }
    }

    /// Resolves when the supervisor is gone, or needs the shim no more: `true`. Cancel safe.
    async fn lifeline_ends(&self) -> bool {
        let mut byte = [0];
        loop {
            if self.lifeline.readable().await.is_err() {
                return false;
            }
            match self.lifeline.try_read(&mut byte) {
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                read => return read.is_ok_and(|n| n == 1) && byte[0] == DISMISSED,
            }
        }
    }

    /// Reaps what has ended; `true` when no process is left.
    fn reap(&self, child: &mut Started) -> bool {
        loop {
            match tree::reap() {
                Reaped::One(pid, status) if pid == child.pid && child.failure.is_some() => child.not_yet(status),
                Reaped::One(pid, status) if pid == child.pid => self.tell(status),
                Reaped::One(..) => {}
                Reaped::Nothing => return false,
                Reaped::NoChildren => return true,
            }
        }
    }

    fn tell(&self, status: WaitStatus) {
        if let Some(end) = End::of(status) {
            self.report(&Report::Ended(end));
        } else if let Some(number) = status.stopping_signal() {
            self.report(&Report::Stopped(number));
        }
    }

    fn report(&self, report: &Report) {
        // The pipe has room for thousands of reports. The lifeline shows when the supervisor has ended.
        let _ = (&self.reports).write_all(report.line().as_bytes());
    }
}

impl Started {
    /// Resolves when the process has become the command, or cannot; never a second time. Cancel safe.
    async fn becomes_the_command(&mut self) {
        let Some(failure) = &self.failure else { return std::future::pending().await };
        let mut part = [0; 256];
        loop {
            // An error counts as the end of the pipe.
            let _ = failure.readable().await;
            match failure.try_read(&mut part) {
                Ok(n @ 1..) => self.said.extend_from_slice(&part[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                _ => break self.failure = None,
            }
        }
    }

    /// Why it could not become the command: an exit code and a sentence.
    fn failed(&self) -> Option<(u8, String)> {
        let text = String::from_utf8_lossy(&self.said);
        let (code, text) = text.split_once(' ')?;
        Some((code.parse().ok()?, text.to_owned()))
    }

    /// The process changed state before it became the command. A Ctrl-Z this early is lost: the supervisor has no
    /// command to stop yet.
    fn not_yet(&mut self, status: WaitStatus) {
        if End::of(status).is_some() {
            self.early = Some(status);
        } else {
            // It may have ended since.
            let _ = rustix::process::kill_process(self.pid, Signal::CONT);
        }
    }
}

/// Starts the command, in a process group of its own.
fn start(take_terminal: &OsString, command: &[OsString]) -> std::io::Result<Started> {
    let (failure, report) = std::io::pipe()?;
    let failure = pipe::Receiver::from_owned_fd(failure.into())?;
    let fd = link::hand_down(&report)?;
    let mut process = Command::new(link::OURSELVES);
    process.arg0("lockkeeper").args(exec::arguments(take_terminal, fd)).args(command).process_group(0);
    let pid = Pid::from_child(&process.spawn()?);
    Ok(Started { pid, failure: Some(failure), said: Vec::new(), early: None })
}

/// Kills until nothing is left.
async fn end_all() {
    let tree = Tree::default();
    let mut pause = tree::LOOK;
    loop {
        tree.signal(Signal::KILL);
        if tree::reap_all() {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RARELY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_as_they_were_written() {
        for report in [
            Report::Started(7),
            Report::Failed(127, "'x' was not found".to_owned()),
            Report::Stopped(20),
            Report::Ended(End::Exited(3)),
            Report::Ended(End::Signalled(9)),
        ] {
            assert_eq!(Report::read(report.line().trim_end()), Some(report));
        }
        assert_eq!(Report::read("nonsense"), None);
    }
}
