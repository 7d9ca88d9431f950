//! Starting the command, and how it ended.

use super::echo::Echoing;
use super::hold::Held;
use super::shim::{self, Report};
use super::terminal::Terminal;
use super::tree::Tree;
use super::{Task, ancestors, link};
use crate::exit::{self, Failure};
use crate::output;
use rustix::process::{Pid, Signal, WaitStatus, kill_process, kill_process_group};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::{PipeWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use tokio::net::unix::pipe;

/// The command, in a process group of its own, with the shim above it.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) pid: Pid,
    shim: Shim,
}

impl Child {
    /// Sends a signal to the command's process group.
    pub(super) fn signal(&self, signal: Signal) {
        // A group that has ended needs no signal.
        let _ = kill_process_group(self.pid, signal);
    }

    /// What the shim reports next; `None` when the shim has ended, normally after everything below it. Cancel safe.
    pub(super) async fn report(&mut self) -> Option<Report> {
        self.shim.report().await
    }

    /// Continues a shim that was stopped.
    pub(super) fn wake_shim(&self) {
        // It may have ended.
        let _ = kill_process(self.shim.pid, Signal::CONT);
    }

    /// Lets the processes that the command started run on without `lockkeeper`.
    pub(super) fn dismiss(mut self) {
        // A shim that has ended needs no message.
        let _ = self.shim.lifeline.write_all(&[shim::DISMISSED]);
    }
}

/// The supervisor's side of the shim.
#[derive(Debug)]
struct Shim {
    pid: Pid,
    /// Closes when this process ends in any way; the shim then ends the tree.
    lifeline: PipeWriter,
    reports: pipe::Receiver,
    read: Vec<u8>,
}

impl Shim {
    async fn report(&mut self) -> Option<Report> {
        loop {
            if let Some(end) = self.read.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                match Report::read(String::from_utf8_lossy(&line).trim_end_matches('\n')) {
                    Some(report) => return Some(report),
                    None => continue,
                }
            }
            self.reports.readable().await.ok()?;
            let mut part = [0; 256];
            match self.reports.try_read(&mut part) {
                Ok(0) => return None,
                Ok(n) => self.read.extend_from_slice(&part[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
    }
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exited(u8),
    Signalled(u8),
}

impl End {
    /// The end that a wait status tells of; `None` when the process was only stopped or went on.
    pub(super) fn of(status: WaitStatus) -> Option<Self> {
        if let Some(code) = status.exit_status() {
            return Some(Self::Exited(u8::try_from(code).unwrap_or(u8::MAX)));
        }
        status.terminating_signal().map(|n| Self::Signalled(u8::try_from(n).unwrap_or(0)))
    }

    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Signalled(number) => exit::SIGNALLED.saturating_add(number),
        }
    }

    pub(crate) fn signal(self) -> Option<u8> {
        match self {
            Self::Exited(_) => None,
            Self::Signalled(number) => Some(number),
        }
    }
}

/// Starts the command through the shim; `tree` then finds the processes below the shim.
pub(super) async fn start(
    task: &Task<'_>,
    terminal: &mut Terminal,
    tree: &mut Tree,
) -> Result<(Child, Option<Echoing>), Failure> {
    // If the shim is killed, this process becomes the parent of the processes below it.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|e| Failure::system(format!("cannot become the reaper of what the command starts: {e}")))?;
    let system = |e: std::io::Error| Failure::system(format!("cannot start a process: {e}"));
    let (theirs, lifeline) = std::io::pipe().map_err(system)?;
    let (reports, into) = std::io::pipe().map_err(system)?;
    let fds = (link::hand_down(&theirs).map_err(system)?, link::hand_down(&into).map_err(system)?);
    let mut command = Command::new(link::OURSELVES);
    command.arg0("lockkeeper").args(shim::arguments(terminal.at_start(), fds.0, fds.1)).args(task.cmd);
    environment(&mut command, task);
    let mut echoing = None;
    if let Some(echo) = &task.echo {
        let (stdout, stderr, begun) = echo.begin().map_err(system)?;
        command.stdout(stdout).stderr(stderr);
        echoing = Some(begun);
    }
    let process = command.process_group(0).spawn().map_err(system)?;
    // The command's ends of all pipes are closed here, so that they end with it.
    drop((theirs, into, command));
    let pid = Pid::from_child(&process);
    tree.below(pid);
    let reports = pipe::Receiver::from_owned_fd(reports.into()).map_err(system)?;
    let mut shim = Shim { pid, lifeline, reports, read: Vec::new() };
    match shim.report().await {
        Some(Report::Started(number)) => {
            let pid = Pid::from_raw(number).ok_or_else(|| Failure::system("the command has no process id"))?;
            terminal.serves(pid);
            Ok((Child { pid, shim }, echoing))
        }
        Some(Report::Failed(code, text)) => Err(Failure::not_started(code, text)),
        _ => Err(Failure::system("the process that starts the command has ended too early")),
    }
}

/// The variables for the command; none of them is inherited from an outer `lockkeeper`.
fn environment(command: &mut Command, task: &Task<'_>) {
    for variable in NOT_INHERITED {
        command.env_remove(variable);
    }
    let first = &task.hold.first;
    command
        .env("LOCKKEEPER_NAME", OsStr::from_bytes(task.hold.name().as_bytes()))
        .env("LOCKKEEPER_HOLDER", first.holder.to_hex())
        .env("LOCKKEEPER_TTL_MS", output::ms(first.lease.ttl()).to_string())
        .env("LOCKKEEPER_STORE", task.store.url_for_child());
    if let Some(token) = first.token() {
        command.env("LOCKKEEPER_TOKEN", token.to_string());
    }
    if !task.hold.more.is_empty() {
        let locks: Vec<Value> = task.hold.all().map(lock).collect();
        command.env("LOCKKEEPER_LOCKS", Value::from(locks).to_string());
    }
    command.envs(task.variables.iter().map(|(variable, value)| (variable, value)));
    let (variable, held) = ancestors::held(&task.hold, task.store);
    command.env(variable, held);
}

/// What an outer `lockkeeper` may have said about its own lock, and this one does not say always.
const NOT_INHERITED: [&str; 7] = [
    "LOCKKEEPER_STORE_FILE",
    "LOCKKEEPER_TOKEN",
    "LOCKKEEPER_LOCKS",
    "LOCKKEEPER_TERM",
    "LOCKKEEPER_ATTEMPT",
    "LOCKKEEPER_TAKEN_OVER",
    "LOCKKEEPER_WINDOW",
];

/// One of several locks, for a command that shows the token of each at a fence.
fn lock(held: &Held) -> Value {
    let fields = json!({ "token": held.token().map(|token| token.get()), "holder": held.holder.to_hex() });
    output::named(held.lease.name(), fields)
}
