//! Real Redis servers on free loopback ports.

use crate::{Certificates, Proc, SOON, Signal, TempDir, eventually};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A `redis-server` of a test's own; killed when dropped.
#[derive(Debug)]
pub struct RedisServer {
    process: Option<Proc>,
    port: u16,
    options: Vec<String>,
    dir: TempDir,
    tls: bool,
    /// What `redis-cli` needs to be let in.
    login: Vec<String>,
}

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

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("loopback has free ports").port()
}

/// The program of that name, or the one that an environment variable such as `REDIS_SERVER` names.
pub(crate) fn program(name: &str) -> Command {
    let chosen = std::env::var(name.replace('-', "_").to_uppercase());
    let name = chosen.as_deref().unwrap_or(name);
    let found = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(found.is_ok(), "{name} is not installed: apt-get install redis-server");
    Command::new(name)
}

impl RedisServer {
    /// Starts one without persistence.
    #[allow(clippy::new_without_default, reason = "it starts a process: not a value to have by default")]
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// Starts one with more options, such as `["--requirepass", "secret"]`.
    pub fn with(options: &[&str]) -> Self {
        let options = options.iter().map(|o| (*o).to_owned()).collect();
        Self::begin(options, TempDir::new(), false)
    }

    /// Starts one that speaks TLS only and wants a client certificate. Its directory has `ca.crt`, `client.crt` and
    /// `client.key`, and `other.crt` of another authority.
    pub fn with_tls() -> Self {
        let certificates = Certificates::new();
        let (options, login) = (tls_options(&certificates), certificates.cli());
        Self { login, ..Self::begin(options, certificates.into_dir(), true) }
    }

    /// The same with certificates that several servers share, and more options.
    pub fn with_certificates(certificates: &Certificates, options: &[&str]) -> Self {
        let mut all = tls_options(certificates);
        all.extend(options.iter().map(|o| (*o).to_owned()));
        Self { login: certificates.cli(), ..Self::begin(all, TempDir::new(), true) }
    }

    /// Starts one whose clock can be stepped.
    pub fn with_clock() -> Self {
        let dir = TempDir::new();
        make_clock(&dir);
        Self::begin(Vec::new(), dir, false)
    }

    /// Sets its clock off by so many seconds from the real one.
    pub fn step_clock(&self, seconds: i64) {
        step_clock(&self.dir, seconds);
    }

    fn begin(options: Vec<String>, dir: TempDir, tls: bool) -> Self {
        let mut server = Self { process: None, port: free_port(), options, dir, tls, login: Vec::new() };
        // Another process may take the port first: try again with another port.
        for _ in 0..5 {
            if server.try_start() {
                return server;
            }
            server.port = free_port();
        }
        panic!("redis-server does not start: {:?}", server.process.take().map(Proc::wait));
    }

    /// The password that `cli` shows.
    #[must_use]
    pub fn login(mut self, password: &str) -> Self {
        self.login = vec!["-a".into(), password.into(), "--no-auth-warning".into()];
        self
    }

    fn try_start(&mut self) -> bool {
        let mut command = program("redis-server");
        command.current_dir(self.dir.path()).args(["--bind", "127.0.0.1", "--save", "", "--dir"]).arg(self.dir.path());
        command.args([if self.tls { "--tls-port" } else { "--port" }, &self.port.to_string()]);
        use_clock(&self.dir, &mut command);
        self.process = Some(Proc::start(command.args(&self.options)));
        let end = Instant::now() + SOON;
        while Instant::now() < end {
            if self.process.as_mut().is_none_or(|p| !p.is_running()) {
                return false;
            }
            if self.process.as_ref().is_some_and(|p| p.stdout().contains("eady to accept connections")) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its URL, without a login.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its directory.
    pub fn dir(&self) -> &TempDir {
        &self.dir
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.process.as_ref().map_or(0, Proc::pid)
    }

    /// What `redis-cli` prints for a command.
    pub fn cli(&self, args: &[&str]) -> String {
        cli(self.port, &self.login, args)
    }

    /// A field of `INFO`.
    pub fn info(&self, field: &str) -> Option<String> {
        let text = self.cli(&["INFO", "everything"]);
        text.lines().find_map(|line| Some(line.trim().strip_prefix(field)?.strip_prefix(':')?.to_owned()))
    }

    /// Whether so many replicas confirm a write. One that is "online" gets no stream before its first acknowledgement.
    pub(crate) fn confirms(&self, replicas: usize) -> bool {
        let mut command = program("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]).args(&self.login);
        // Both on one connection: WAIT is about the writes of its own client.
        let script = format!("PUBLISH in_step now\nWAIT {replicas} 100\n");
        let mut cli = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("redis-cli runs");
        cli.stdin.take().expect("piped").write_all(script.as_bytes()).expect("redis-cli reads");
        let output = cli.wait_with_output().expect("redis-cli ends");
        let last = String::from_utf8_lossy(&output.stdout).lines().last().and_then(|l| l.trim().parse().ok());
        last.is_some_and(|acks: usize| acks >= replicas)
    }

    /// How many times clients sent a command, by `INFO commandstats`.
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.info(&format!("cmdstat_{command}")).unwrap_or_default();
        stats.strip_prefix("calls=").and_then(|s| s.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again on its port and directory.
    pub fn start(&mut self) {
        eventually(SOON, "the server starts again", || self.try_start());
    }

    /// Freezes it.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }
}

fn tls_options(certificates: &Certificates) -> Vec<String> {
    certificates.server().into_iter().flat_map(|[key, value]| [format!("--{key}"), value]).collect()
}

pub(crate) fn cli(port: u16, login: &[String], args: &[&str]) -> String {
    let mut command = program("redis-cli");
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]).args(login).args(args);
    let output = command.stdin(Stdio::null()).output().expect("redis-cli runs");
    assert!(output.status.success(), "redis-cli {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Waits until something listens on a loopback port.
pub fn listens(port: u16) {
    eventually(SOON, "the server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
}

/// Keeps a server for the rest of this process, for tests that share one; it ends when the process does, however that
/// happens.
pub fn shared(server: RedisServer) -> &'static RedisServer {
    end_with_us(&[server.pid()], &[server.dir.path()]);
    Box::leak(Box::new(server))
}

/// Kills processes and removes directories when this process ends.
pub(crate) fn end_with_us(pids: &[i32], dirs: &[&Path]) {
    let script = "trap '' INT TERM HUP; cat >/dev/null; kill -9 $1; shift; rm -rf \"$@\"";
    let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", &pids.join(" ")]).args(dirs);
    let watchdog = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    // Its input stays open as long as this process lives.
    std::mem::forget(watchdog.expect("a shell"));
}
