//! The terminal's foreground: given to the command's process group while it runs, taken back at the end.
//!
//! With nobody else in our own group the command gets the foreground from its first moment. In a pipeline (`… | less`) or
//! a script the others may need it, so it is given only once the command has been stopped for wanting it.

use super::tree;
use nix::sys::signal::{SigSet, Signal as Number};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};
use std::fs::File;

/// The controlling terminal, if there is one.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: Option<File>,
    modes: Option<Termios>,
    child: Option<Pid>,
}

impl Terminal {
    /// Looks for the controlling terminal.
    pub(super) fn find() -> Self {
        let tty = open();
        if tty.is_some() {
            allow_from_background();
        }
        let modes = tty.as_ref().and_then(|tty| tcgetattr(tty).ok());
        Self { tty, modes, child: None }
    }

    /// Whether the command should take the foreground before it begins.
    pub(super) fn hand_over_at_start(&self) -> bool {
        self.we_are_in_front() && tree::alone_in_group()
    }

    /// The command's process group.
    pub(super) fn serves(&mut self, child: Pid) {
        self.child = Some(child);
    }

    /// Whether the foreground is ours.
    pub(super) fn we_are_in_front(&self) -> bool {
        self.front() == Some(getpgrp())
    }

    /// Whether the foreground is the command's.
    pub(super) fn child_is_in_front(&self) -> bool {
        self.child.is_some() && self.front() == self.child
    }

    /// Gives the foreground to the command.
    pub(super) fn give(&self) {
        if let (Some(tty), Some(child)) = (&self.tty, self.child) {
            // A terminal that hung up meanwhile is no loss.
            let _ = tcsetpgrp(tty, child);
        }
    }

    /// Takes the foreground back from the command; `reset` also undoes what it changed about the terminal.
    pub(super) fn take_back(&self, reset: bool) {
        // The group may have no process any more and still be the one in front.
        let in_front = self.front();
        let (Some(tty), Some(child)) = (&self.tty, self.child) else { return };
        if in_front != Some(child) && in_front.is_some() {
            return;
        }
        let _ = tcsetpgrp(tty, getpgrp());
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
    if let Some(tty) = open() {
        // Without the foreground the command still runs; reading the terminal would stop it.
        let _ = tcsetpgrp(tty, getpgrp());
    }
}

fn open() -> Option<File> {
    // Close-on-exec by default.
    File::options().read(true).write(true).open("/dev/tty").ok()
}

/// Changing the foreground from the background stops a process unless SIGTTOU is blocked. The mask does not reach the
/// command: it is emptied when a process is started.
fn allow_from_background() {
    let mut set = SigSet::empty();
    set.add(Number::SIGTTOU);
    // Cannot fail for a valid set.
    let _ = set.thread_block();
}
