//! Starting the command, and how it ended.

use super::ancestors;
use super::shim;
use super::terminal::Terminal;
use crate::args::RunArgs;
use crate::exit::{self, Failure};
use crate::output;
use crate::store::Chosen;
use lockkeeper::{Guard, Mode};
use rustix::process::{Pid, Signal, WaitStatus, kill_process_group};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The command, in a process group of its own.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) pid: Pid,
}

impl Child {
    /// Sends a signal to the command's process group.
    pub(super) fn signal(&self, signal: Signal) {
        // A group that is gone already needs no signal.
        let _ = kill_process_group(self.pid, signal);
    }
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
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

    pub(super) fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Signalled(number) => exit::SIGNALLED.saturating_add(number),
        }
    }

    pub(super) fn signal(self) -> Option<u8> {
        match self {
            Self::Exited(_) => None,
            Self::Signalled(number) => Some(number),
        }
    }
}

/// Starts the command through the shim.
pub(super) fn start(guard: &Guard, chosen: &Chosen, args: &RunArgs, terminal: &mut Terminal) -> Result<Child, Failure> {
    // Whatever the command leaves behind becomes our child, so that it can be found and ended.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|e| Failure::system(format!("cannot become the reaper of what the command starts: {e}")))?;
    let mut command = Command::new(ourselves()?);
    command.arg0("lockkeeper").args(shim::arguments(terminal.hand_over_at_start())).args(&args.cmd);
    environment(&mut command, guard, chosen);
    command.process_group(0);
    let child = command.spawn().map_err(|e| Failure::system(format!("cannot start a process: {e}")))?;
    let pid = Pid::from_child(&child);
    terminal.serves(pid);
    Ok(Child { pid })
}

/// This program; by its own link where there is one, so that an upgrade under way does not matter.
fn ourselves() -> Result<std::path::PathBuf, Failure> {
    let link = std::path::Path::new("/proc/self/exe");
    if link.exists() {
        return Ok(link.to_owned());
    }
    std::env::current_exe().map_err(|e| Failure::system(format!("cannot find this program's own file: {e}")))
}

/// What the command is told; nothing of the kind is inherited from an outer `run`.
fn environment(command: &mut Command, guard: &Guard, chosen: &Chosen) {
    let lease = guard.lease();
    command
        .env("LOCKKEEPER_NAME", OsStr::from_bytes(guard.name().as_bytes()))
        .env("LOCKKEEPER_HOLDER", guard.holder().to_hex())
        .env("LOCKKEEPER_TTL_MS", output::ms(lease.ttl()).to_string())
        .env("LOCKKEEPER_STORE", chosen.url_for_child())
        .env_remove("LOCKKEEPER_STORE_FILE");
    match lease.mode() {
        Mode::Exclusive => command.env("LOCKKEEPER_TOKEN", guard.token().to_string()),
        // Such a token does not order writes: a fence would be no use.
        _ => command.env_remove("LOCKKEEPER_TOKEN"),
    };
    let (variable, held) = ancestors::with(guard.name(), chosen);
    command.env(variable, held);
}
