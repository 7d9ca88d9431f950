//! Servers of a test's own: started on free ports, waited for, frozen, killed and started again, all in one way.

use crate::ports::free_port;
use crate::{PATIENCE, Proc, SOON, Signal, eventually, is_alive};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How many other ports are tried when a server does not come up.
const TRIES: usize = 5;

/// The process of a server and the port on 127.0.0.1 where clients find it; killed when dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    process: Option<Proc>,
    port: u16,
}

impl Daemon {
    /// One that is not started yet, on a free port.
    pub(crate) fn new() -> Self {
        Self { process: None, port: free_port() }
    }

    /// Starts the process; one that runs already is killed.
    pub(crate) fn spawn(&mut self, command: &mut Command) {
        self.kill();
        self.process = Some(Proc::start(command));
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Goes to another free port, at the next start.
    pub(crate) fn move_on(&mut self) {
        self.port = free_port();
    }

    /// The process id; 0 when it does not run.
    pub(crate) fn pid(&self) -> i32 {
        self.process.as_ref().map_or(0, Proc::pid)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process.as_ref().is_some_and(|process| is_alive(process.pid()))
    }

    /// Everything it has written, to standard output and then to standard error.
    pub(crate) fn said(&self) -> String {
        self.process.as_ref().map(|process| process.stdout() + &process.stderr()).unwrap_or_default()
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Sends a signal and waits for its end, so that the server can clean up after itself. One that has not ended after ten
    /// seconds is killed, with its children.
    pub(crate) fn end(&mut self, signal: Signal) {
        let Some(mut process) = self.process.take() else { return };
        process.signal(signal);
        let patience = Instant::now() + Duration::from_secs(10);
        eventually(SOON, "the server is gone", || {
            if Instant::now() > patience {
                signal_family(process.pid(), Signal::KILL);
            }
            !process.is_running()
        });
    }

    /// Freezes it: connections stay open and nothing answers.
    pub(crate) fn pause(&self) {
        crate::signal(self.pid(), Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn resume(&self) {
        crate::signal(self.pid(), Signal::CONT);
    }
}

/// Signals a process, and then its children: also those that it has got in between, and those that it leaves behind.
pub(crate) fn signal_family(pid: i32, signal: Signal) {
    let children = || -> Vec<i32> {
        let listed = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        listed.split_whitespace().filter_map(|child| child.parse().ok()).collect()
    };
    let mut all = children();
    crate::signal(pid, signal);
    all.extend(children());
    all.into_iter().for_each(|child| crate::signal(child, signal));
}

/// What a kind of server adds to its [`Daemon`].
pub(crate) trait Server: Sized {
    /// What it is called when it does not start.
    const WHAT: &str;

    /// How often a server that starts is asked whether it serves.
    const POLL: Duration = Duration::from_millis(20);

    fn daemon(&self) -> &Daemon;
    fn daemon_mut(&mut self) -> &mut Daemon;

    /// The command that runs it on its ports.
    fn start_command(&self) -> Command;

    /// Whether it serves clients.
    fn is_ready(&self) -> bool;

    /// Chooses other ports, and forgets what a start on the earlier ones has left behind.
    fn move_on(&mut self) {
        self.daemon_mut().move_on();
    }

    /// Starts the process without waiting.
    fn spawn(&mut self) {
        let mut command = self.start_command();
        self.daemon_mut().spawn(&mut command);
    }

    /// Waits until it serves clients; `false` when it does not in time, at once when it has ended.
    fn comes_up(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while self.daemon().is_running() && Instant::now() < end {
            if self.is_ready() {
                return true;
            }
            std::thread::sleep(Self::POLL);
        }
        false
    }

    /// Starts it and waits until it serves. Another program may take a port first; other ports are as good.
    fn begin(mut self) -> Self {
        for _ in 0..TRIES {
            self.spawn();
            if self.comes_up(SOON) {
                return self;
            }
            self.move_on();
        }
        panic!("{} does not start: {}", Self::WHAT, self.daemon().said());
    }

    /// Starts it again on its ports and directory, and waits until it serves. It may have to read much, while very many
    /// clients ask for it.
    fn start_again(&mut self) {
        let end = Instant::now() + SOON;
        loop {
            self.spawn();
            if self.comes_up(PATIENCE) {
                return;
            }
            let (port, said) = (self.daemon().port(), self.daemon().said());
            assert!(Instant::now() < end, "{} does not start again on port {port}: {said}", Self::WHAT);
        }
    }

    /// Starts it again, once; `false` when it does not serve, at once when it has ended because it cannot read its data.
    fn try_start_again(&mut self) -> bool {
        self.spawn();
        self.comes_up(SOON)
    }

    /// Starts servers that need each other to serve, and waits for all of them.
    fn begin_together(mut plan: impl FnMut() -> Vec<Self>) -> Vec<Self> {
        for _ in 0..TRIES {
            let mut members = plan();
            members.iter_mut().for_each(Self::spawn);
            if members.iter().all(|member| member.comes_up(SOON)) {
                return members;
            }
        }
        panic!("a group of {} servers does not start", Self::WHAT);
    }
}

/// Kills processes and removes directories when this process ends, however that happens.
pub(crate) fn end_with_us(pids: &[i32], dirs: &[&Path]) {
    let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
    let mut args = vec![pids.join(" ").into()];
    args.extend(dirs.iter().map(|dir| dir.as_os_str().to_owned()));
    at_our_end("kill -9 $1; shift; rm -rf \"$@\"", &args);
}

/// Runs a shell's script when this process ends, however that happens.
pub(crate) fn at_our_end(script: &str, args: &[std::ffi::OsString]) {
    let script = format!("trap '' INT TERM HUP; cat >/dev/null\n{script}");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).args(args);
    let watchdog = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    // Its input stays open as long as this process lives.
    std::mem::forget(watchdog.expect("a shell"));
}
