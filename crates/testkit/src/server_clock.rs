//! A clock of one server's own, which a test can set forward and back.

use crate::TempDir;
use std::io::Write;
use std::process::Command;

/// The file that says how far a server's clock is off.
const CLOCK: &str = "clock";

/// What makes it so.
const SHIM: &str = "clock_shim.so";

/// Makes a clock that can be stepped, in the directory of the server that is to use it.
pub(crate) fn make_clock(dir: &TempDir) {
    std::fs::write(dir.join(CLOCK), [0; 8]).expect("the directory is ours");
    let source = dir.write("clock_shim.c", include_str!("clock_shim.c"));
    let mut compile = Command::new("cc");
    let made = compile.args(["-shared", "-fPIC", "-O1", "-o"]).arg(dir.join(SHIM)).arg(source).status();
    assert!(made.is_ok_and(|status| status.success()), "cc makes the clock's shim: apt-get install gcc libc6-dev");
}

/// Sets the clock in a directory off by so many seconds from the real one.
pub(crate) fn step_clock(dir: &TempDir, seconds: i64) {
    // In place: the server has the file mapped.
    let file = std::fs::OpenOptions::new().write(true).open(dir.join(CLOCK));
    let written = file.and_then(|mut file| file.write_all(&(seconds * 1_000_000).to_ne_bytes()));
    written.expect("the server has a clock of its own");
}

/// Starts a command on the clock of its directory, if there is one.
pub(crate) fn use_clock(dir: &TempDir, command: &mut Command) {
    let clock = dir.join(CLOCK);
    if clock.exists() {
        command.env("LD_PRELOAD", dir.join(SHIM)).env("CLOCK_OFFSET_FILE", clock);
    }
}
