//! The terminal's foreground: given to the command's process group while it runs, taken back at the end.
//!
//! When `lockkeeper` is alone in its process group, the command gets the foreground from its start. In a pipeline (`… |
//! less`) or a script other processes may need the foreground. There the command gets it only after it was stopped for
//! using the terminal.

use super::processes::{alone_in_group, own_group};
use nix::sys::signal::{SigSet, Signal as Number};
use rustix::process::Pid;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};
use std::fs::File;

/// Tells a new process to take the foreground before it becomes the command.
pub(super) const TAKE: &str = "terminal";

/// The controlling terminal, if there is one.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: Option<File>,
    modes: Option<Termios>,
    child: Option<Pid>,
    /// The command is to take the foreground at its start.
    promised: bool,
}

impl Terminal {
    /// Looks for the controlling terminal.
    pub(super) fn find() -> Self {
        let tty = open();
        if tty.is_some() {
            allow_from_background();
        }
        let modes = tty.as_ref().and_then(|tty| tcgetattr(tty).ok());
        Self { tty, modes, child: None, promised: false }
    }

    /// What the command does about the foreground before it begins.
    pub(super) fn at_start(&mut self) -> &'static str {
        self.promised = self.we_are_in_front() && alone_in_group();
        if self.promised { TAKE } else { "plain" }
    }

    /// Takes the foreground back from a process that was to become the command, and could not.
    pub(super) fn recover(&self) {
        if let (true, Some(tty), Some(group)) = (self.promised, &self.tty, own_group()) {
            let _ = tcsetpgrp(tty, group);
        }
    }

    /// The command's process group.
    pub(super) fn serves(&mut self, child: Pid) {
        self.child = Some(child);
    }

    /// Whether the foreground is ours.
    pub(super) fn we_are_in_front(&self) -> bool {
        own_group().is_some() && self.front() == own_group()
    }

    /// Whether the foreground is the command's.
    pub(super) fn child_is_in_front(&self) -> bool {
        self.child.is_some() && self.front() == self.child
    }

    /// Gives the foreground to the command.
    pub(super) fn give(&self) {
        if let (Some(tty), Some(child)) = (&self.tty, self.child) {
            // Fails harmlessly if the terminal hung up meanwhile.
            let _ = tcsetpgrp(tty, child);
        }
    }

    /// Takes the foreground back from the command; `reset` also undoes what it changed about the terminal.
    pub(super) fn take_back(&self, reset: bool) {
        // The group may be empty and still have the foreground.
        let in_front = self.front();
        let (Some(tty), Some(child)) = (&self.tty, self.child) else { return };
        if in_front != Some(child) && in_front.is_some() {
            return;
        }
        if let Some(group) = own_group() {
            let _ = tcsetpgrp(tty, group);
        }
        if let (true, Some(modes)) = (reset, &self.modes) {
            let _ = tcsetattr(tty, OptionalActions::Drain, modes);
        }
    }

    fn front(&self) -> Option<Pid> {
        tcgetpgrp(self.tty.as_ref()?).ok()
    }
}

/// The shim's side: puts its own group in front.
pub(super) fn take_for_this_group() {
    allow_from_background();
    if let (Some(tty), Some(group)) = (open(), own_group()) {
        // Without the foreground the command still runs; reading the terminal would stop it.
        let _ = tcsetpgrp(tty, group);
    }
}

fn open() -> Option<File> {
    // Close-on-exec by default.
    File::options().read(true).write(true).open("/dev/tty").ok()
}

/// For the shim: blocks the signals that stop a job.
pub(super) fn never_stop() {
    // Cannot fail for a valid set.
    let _ = stops().thread_block();
}

/// For the command: unblocks the signals that stop a job, which its parents have blocked for themselves.
pub(super) fn stop_as_usual() {
    // Cannot fail for a valid set.
    let _ = stops().thread_unblock();
}

fn stops() -> SigSet {
    [Number::SIGTSTP, Number::SIGTTIN, Number::SIGTTOU].into_iter().collect()
}

/// Changing the foreground from the background stops a process unless SIGTTOU is blocked. A process that is started
/// inherits this, so the command undoes it.
fn allow_from_background() {
    let mut set = SigSet::empty();
    set.add(Number::SIGTTOU);
    // Cannot fail for a valid set.
    let _ = set.thread_block();
}
