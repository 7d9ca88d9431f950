//! A clock of one process's own, which a test can set forward and back.

use crate::TempDir;
use std::io::{Seek, SeekFrom, Write};
use std::process::Command;
use std::time::Duration;

/// The file that says how far a process's clocks are off: the wall clock, then the monotonic one.
const CLOCK: &str = "clock";

/// What makes it so.
const SHIM: &str = "clock_shim.so";

/// Makes a clock that can be stepped, in the directory of the server that is to use it.
pub(crate) fn make_clock(dir: &TempDir) {
    std::fs::write(dir.join(CLOCK), [0; 16]).expect("the directory is ours");
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

/// Clocks for processes that a test starts by itself.
#[derive(Debug)]
pub struct ProcessClock(TempDir);

impl ProcessClock {
    /// Clocks that are right.
    #[allow(clippy::new_without_default, reason = "it writes files: not a value to have by default")]
    pub fn new() -> Self {
        let dir = TempDir::new();
        make_clock(&dir);
        Self(dir)
    }

    /// Lets a command use them.
    pub fn give(&self, command: &mut Command) {
        use_clock(&self.0, command);
    }

    /// Sets the wall clock off by so many seconds from the real one.
    pub fn step(&self, seconds: i64) {
        step_clock(&self.0, seconds);
    }

    /// Sets the monotonic clock back by all the time that the machine was suspended: it does not count that.
    pub fn suspended(&self, in_all: Duration) {
        let micros = -i64::try_from(in_all.as_micros()).expect("less than an age");
        let file = std::fs::OpenOptions::new().write(true).open(self.0.join(CLOCK));
        let written = file.and_then(|mut file| {
            file.seek(SeekFrom::Start(8))?;
            file.write_all(&micros.to_ne_bytes())
        });
        written.expect("the directory is ours");
    }
}

/// Starts a command on the clock of its directory, if there is one.
pub(crate) fn use_clock(dir: &TempDir, command: &mut Command) {
    let clock = dir.join(CLOCK);
    if clock.exists() {
        command.env("LD_PRELOAD", dir.join(SHIM)).env("CLOCK_OFFSET_FILE", clock);
    }
}
