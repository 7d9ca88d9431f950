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
use std::io::{PipeReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use tokio::net::unix::pipe;

/// The word for this part of the program.
pub(super) const WORD: &str = "__shim";

/// On the lifeline: the supervisor needs the shim no more, and what the command has started may go on.
pub(super) const DISMISSED: u8 = b'.';

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
    // A supervisor that is gone already has taken its ends of the pipes with it.
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

impl Shim {
    async fn serve(&self, take_terminal: &OsString, command: &[OsString]) -> Result<(), (u8, String)> {
        let system = |what: &str, e: &dyn std::fmt::Display| (exit::SYSTEM, format!("{what}: {e}"));
        let supervisor = rustix::process::getppid();
        terminal::never_stop();
        #[cfg(target_os = "linux")]
        {
            // Also what left its parents behind becomes our child, so that it can be found and ended.
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
                .map_err(|e| system("cannot become the reaper of what the command starts", &e))?;
            // Should this process be stopped when the supervisor dies: the pipe cannot wake it, this can.
            rustix::process::set_parent_process_death_signal(Some(Signal::CONT))
                .map_err(|e| system("cannot tie the command to this process", &e))?;
        }
        let mut signals = Signals::listen().map_err(|failure| (failure.code, failure.text))?;
        let child = start(take_terminal, command)?;
        self.report(&Report::Started(child.as_raw_nonzero().get()));
        loop {
            tokio::select! {
                biased;
                () = self.lifeline_ends() => {
                    let mut byte = [0];
                    if self.lifeline.try_read(&mut byte).is_ok_and(|n| n == 1 && byte[0] == DISMISSED) {
                        return Ok(());
                    }
                    end_all().await;
                    return Ok(());
                }
                happened = signals.any() => match happened {
                    // Meant for the supervisor, as the command's parent.
                    Happened::Signal(signal) => {
                        let _ = supervisor.map(|pid| rustix::process::kill_process(pid, signal));
                    }
                    _ => if self.reap(child) { return Ok(()) },
                },
            }
        }
    }

    /// Resolves when the supervisor has said something, or is gone.
    async fn lifeline_ends(&self) {
        // Errors are for those who read.
        let _ = self.lifeline.readable().await;
    }

    /// Reaps what has ended; `true` when no process is left.
    fn reap(&self, child: Pid) -> bool {
        loop {
            match tree::reap() {
                Reaped::One(pid, status) if pid == child => self.tell(status),
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
        // The pipe has room for thousands; a supervisor that is gone shows on the lifeline.
        let _ = (&self.reports).write_all(report.line().as_bytes());
    }
}

/// Starts the command, in a process group of its own, and waits until it has become what it is to be.
fn start(take_terminal: &OsString, command: &[OsString]) -> Result<Pid, (u8, String)> {
    let system = |e: std::io::Error| (exit::SYSTEM, format!("cannot start a process: {e}"));
    let (mut failure, report) = std::io::pipe().map_err(system)?;
    let fd = link::hand_down(&report).map_err(system)?;
    let program = link::ourselves().map_err(|failure| (failure.code, failure.text))?;
    let mut process = Command::new(program);
    process.arg0("lockkeeper").args(exec::arguments(take_terminal, fd)).args(command).process_group(0);
    let child = process.spawn().map_err(system)?;
    drop(report);
    match said(&mut failure) {
        Some(failed) => Err(failed),
        None => Ok(Pid::from_child(&child)),
    }
}

fn said(failure: &mut PipeReader) -> Option<(u8, String)> {
    let mut text = Vec::new();
    failure.read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let (code, text) = text.split_once(' ')?;
    Some((code.parse().ok()?, text.to_owned()))
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
        pause = (pause * 2).min(tree::SELDOM);
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
