//! The first moments of the command's process, between fork and exec: `lockkeeper __exec SHIM TERMINAL FD CMD…`.
//!
//! It asks the kernel to end it with the shim, and checks that the shim has not ended before. Then it takes the
//! terminal if it was promised one, and becomes the command. No shell, no interpolation: the words are passed on as
//! they are.

use super::{link, terminal};
use crate::exit;
use lockkeeper::name::escape;
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The word for this part of the program.
pub(super) const WORD: &str = "__exec";

/// What comes before the command; `fd` is where a failure is reported.
pub(super) fn arguments(take_terminal: &OsStr, fd: String) -> [OsString; 4] {
    [WORD.into(), std::process::id().to_string().into(), take_terminal.to_owned(), fd.into()]
}

/// Becomes the command; returns only when that is impossible, with the exit code. The pipe closes when it has worked.
pub(super) fn main(words: &[OsString]) -> u8 {
    let [shim, take_terminal, fd, program, arguments @ ..] = words else { return exit::USAGE };
    let Ok(mut report) = link::writer(fd) else { return exit::SYSTEM };
    let (code, text) = match become_it(shim, take_terminal, program, arguments) {
        (code, text) if text.is_empty() => return code,
        failed => failed,
    };
    // The shim may have ended.
    let _ = write!(report, "{code} {text}");
    code
}

fn become_it(shim: &OsStr, take_terminal: &OsStr, program: &OsStr, arguments: &[OsString]) -> (u8, String) {
    #[cfg(target_os = "linux")]
    if let Err(e) = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)) {
        return (exit::SYSTEM, format!("cannot tie the command to this process: {e}"));
    }
    if *shim != *OsStr::new(&std::os::unix::process::parent_id().to_string()) {
        // No shim is left to watch over the command.
        return (exit::SYSTEM, String::new());
    }
    if take_terminal == terminal::TAKE {
        terminal::take_for_this_group();
    }
    terminal::stop_as_usual();
    let error = Command::new(program).args(arguments).exec();
    let shown = escape(program.as_encoded_bytes());
    if error.kind() == ErrorKind::NotFound {
        return (exit::NOT_FOUND, format!("'{shown}' was not found, or its interpreter was not"));
    }
    (exit::NOT_EXECUTABLE, format!("'{shown}' cannot be executed: {error}"))
}
