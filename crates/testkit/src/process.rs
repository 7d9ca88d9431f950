//! A real process with its output read as it comes.

use crate::{SOON, found};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long output is waited for after a process has ended.
const LEFT_BEHIND: Duration = Duration::from_secs(2);

/// A running process; killed when dropped.
#[derive(Debug)]
pub struct Proc {
    child: Child,
    stdout: Output,
    stderr: Output,
    readers: [JoinHandle<()>; 2],
}

/// How a process ended, and what it said.
#[derive(Debug)]
pub struct Ended {
    /// The exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

#[derive(Debug, Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Output {
    fn follow(&self, mut from: impl Read + Send + 'static) -> JoinHandle<()> {
        let into = self.0.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                into.lock().expect("no reader panics").extend_from_slice(&buffer[..n]);
            }
        })
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no reader panics")).into_owned()
    }
}

impl Proc {
    /// Starts a command with its output read; its input is empty unless set.
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program under test starts");
        let (stdout, stderr) = (Output::default(), Output::default());
        let readers =
            [stdout.follow(child.stdout.take().expect("piped")), stderr.follow(child.stderr.take().expect("piped"))];
        Self { child, stdout, stderr, readers }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the process is ours and was not waited for");
    }

    /// What it has written so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// What it has complained about so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Whether it is still running.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the process is ours").is_none()
    }

    /// Waits for its end.
    pub fn wait(self) -> Ended {
        self.wait_for(SOON)
    }

    /// Waits for its end at most this long.
    pub fn wait_for(mut self, limit: Duration) -> Ended {
        let status: ExitStatus =
            found(limit, "the process ends", || self.child.try_wait().expect("the process is ours"));
        // What it wrote last may still be in the pipe. A process it left behind may keep the pipe open for ever.
        let patience = Instant::now() + LEFT_BEHIND;
        while !self.readers.iter().all(JoinHandle::is_finished) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ended { code: status.code(), signal: status.signal(), stdout: self.stdout(), stderr: self.stderr() }
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
