//! The first moments of the command's process, between fork and exec: `lockkeeper __child PARENT TERMINAL CMD…`.
//!
//! It asks to die with its parent, makes sure that the parent has not died before, takes the terminal if it was promised
//! one, and becomes the command. No shell, no interpolation: the words are passed on as they are.

use super::terminal;
use crate::exit;
use crate::output;
use lockkeeper::name::escape;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The word that makes this program a shim.
pub(crate) const WORD: &str = "__child";

/// What comes before the command.
pub(super) fn arguments(take_terminal: bool) -> [OsString; 3] {
    let terminal = if take_terminal { "terminal" } else { "plain" };
    [WORD.into(), std::process::id().to_string().into(), terminal.into()]
}

/// Becomes the command; returns only when that is impossible, with the exit code.
pub(crate) fn main(words: &[OsString]) -> u8 {
    let [parent, take_terminal, program, arguments @ ..] = words else {
        output::say("this word is for lockkeeper's own use");
        return exit::USAGE;
    };
    #[cfg(target_os = "linux")]
    if let Err(e) = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)) {
        output::say(&format!("cannot tie the command to this process: {e}"));
        return exit::SYSTEM;
    }
    let alive = std::os::unix::process::parent_id().to_string();
    if *parent != *OsStr::new(&alive) {
        // Nobody is left to watch over the lock.
        return exit::SYSTEM;
    }
    if take_terminal == "terminal" {
        terminal::take_for_this_group();
    }
    let error = Command::new(program).args(arguments).exec();
    let shown = escape(program.as_encoded_bytes());
    if error.kind() == ErrorKind::NotFound {
        output::say(&format!("'{shown}' was not found, or its interpreter was not"));
        return exit::NOT_FOUND;
    }
    output::say(&format!("'{shown}' cannot be executed: {error}"));
    exit::NOT_EXECUTABLE
}
