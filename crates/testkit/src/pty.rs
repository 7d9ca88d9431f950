//! A terminal, and a program in front of it: what a person at a keyboard would have.

use crate::{SOON, eventually};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};

/// A program that has a terminal of its own; killed when dropped.
#[derive(Debug)]
pub struct Pty {
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Pty {
    /// Starts a program in a session of its own whose controlling terminal is a new one. Needs `setsid` (util-linux).
    pub fn start(command: &Command) -> Self {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a new terminal");
        grantpt(&keyboard).expect("a new terminal");
        unlockpt(&keyboard).expect("a new terminal");
        let name = ptsname(&keyboard, Vec::new()).expect("a new terminal");
        let other = || {
            let path = name.to_str().expect("an ASCII path");
            let flags = (rustix::fs::OFlags::NOCTTY.bits()).cast_signed();
            let mut options = File::options();
            std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true).write(true), flags);
            options.open(path).expect("the other end")
        };
        let mut wrapped = Command::new("setsid");
        wrapped.args(["--ctty", "env", crate::DEFAULT_SIGNALS]).arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(key, value),
                None => wrapped.env_remove(key),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            wrapped.current_dir(dir);
        }
        let child = wrapped.stdin(other()).stdout(other()).stderr(other()).spawn().expect("setsid is installed");
        drop(wrapped);
        let keyboard = File::from(keyboard);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut from, into) = (keyboard.try_clone().expect("one more descriptor"), screen.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                into.lock().expect("no reader panics").extend_from_slice(&buffer[..n]);
            }
        });
        Self { keyboard, screen, child }
    }

    /// Types; control characters as they are (`\x03` is Ctrl-C).
    pub fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("the terminal is open");
    }

    /// Everything that was shown so far.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().expect("no reader panics")).into_owned()
    }

    /// Waits until a text was shown.
    pub fn shows(&self, text: &str) {
        let end = std::time::Instant::now() + SOON;
        while !self.screen().contains(text) {
            assert!(std::time::Instant::now() < end, "{text:?} is not on the screen:\n{}", self.screen());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// The process id of the program.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Waits for the program's end: its exit code, or 128 and the signal.
    pub fn wait(&mut self) -> i32 {
        let mut status: Option<ExitStatus> = None;
        eventually(SOON, "the program on the terminal ends", || {
            status = self.child.try_wait().expect("the process is ours");
            status.is_some()
        });
        let status = status.expect("eventually() returned");
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
