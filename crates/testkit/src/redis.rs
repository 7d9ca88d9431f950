//! Real Redis servers on free loopback ports.

use crate::daemon::{Daemon, Server, end_with_us};
use crate::server_clock::{make_clock, step_clock, use_clock};
use crate::{Certificates, TempDir};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A `redis-server` of a test's own; killed when dropped.
#[derive(Debug)]
pub struct RedisServer {
    daemon: Daemon,
    options: Vec<String>,
    dir: TempDir,
    tls: bool,
    /// What `redis-cli` needs to be let in.
    login: Vec<String>,
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

    /// Starts one that forgets nothing when it is killed. By default a Redis with a log answers a write that finds the disk
    /// busy before it is in the file, and a kill loses it.
    pub fn durable() -> Self {
        let options = ["--appendonly", "yes", "--appendfsync", "always"].map(str::to_owned).to_vec();
        Self::begin(options, TempDir::in_memory(), false)
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
        Self::with_clock_and(&[])
    }

    /// The same with more options.
    pub fn with_clock_and(options: &[&str]) -> Self {
        let dir = TempDir::new();
        make_clock(&dir);
        Self::begin(options.iter().map(|o| (*o).to_owned()).collect(), dir, false)
    }

    /// Sets its clock off by so many seconds from the real one.
    pub fn step_clock(&self, seconds: i64) {
        step_clock(&self.dir, seconds);
    }

    fn begin(options: Vec<String>, dir: TempDir, tls: bool) -> Self {
        Server::begin(Self { daemon: Daemon::new(), options, dir, tls, login: Vec::new() })
    }

    /// The password that `cli` shows.
    #[must_use]
    pub fn login(mut self, password: &str) -> Self {
        self.login = vec!["-a".into(), password.into(), "--no-auth-warning".into()];
        self
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.daemon.port()
    }

    /// Its URL, without a login.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Its directory.
    pub fn dir(&self) -> &TempDir {
        &self.dir
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.daemon.pid()
    }

    /// What `redis-cli` prints for a command.
    pub fn cli(&self, args: &[&str]) -> String {
        cli(self.port(), &self.login, args)
    }

    /// A field of `INFO`.
    pub fn info(&self, field: &str) -> Option<String> {
        let text = self.cli(&["INFO", "everything"]);
        text.lines().find_map(|line| Some(line.trim().strip_prefix(field)?.strip_prefix(':')?.to_owned()))
    }

    /// Whether so many replicas confirm a write. One that is "online" gets no stream before its first acknowledgement.
    pub(crate) fn confirms(&self, replicas: usize) -> bool {
        let mut command = program("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &self.port().to_string()]).args(&self.login);
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
        self.daemon.kill();
    }

    /// Starts it again on its port and directory.
    pub fn start(&mut self) {
        self.start_again();
    }

    /// Loses what it has on disk, once it is killed.
    pub fn wipe(&self) {
        // It may have written nothing.
        let _ = std::fs::remove_dir_all(self.dir.join("appendonlydir"));
    }

    /// Starts it again, if it can read its data.
    pub fn try_start(&mut self) -> bool {
        self.try_start_again()
    }

    /// Its newest log.
    pub fn log(&self) -> Option<PathBuf> {
        self.dir.newest("appendonlydir", |name| name.ends_with(".incr.aof"))
    }

    /// Freezes it.
    pub fn pause(&self) {
        self.daemon.pause();
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.daemon.resume();
    }
}

impl Server for RedisServer {
    const WHAT: &str = "redis-server";
    // It needs only a few milliseconds.
    const POLL: Duration = Duration::from_millis(5);

    fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    fn daemon_mut(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    fn start_command(&self) -> Command {
        let mut command = program("redis-server");
        command.current_dir(self.dir.path()).args(["--bind", "127.0.0.1", "--save", "", "--dir"]).arg(self.dir.path());
        command.args([if self.tls { "--tls-port" } else { "--port" }, &self.port().to_string()]);
        use_clock(&self.dir, &mut command);
        command.args(&self.options);
        command
    }

    fn is_ready(&self) -> bool {
        self.daemon.said().contains("eady to accept connections")
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

/// Keeps a server for the rest of this process, for tests that share one; it ends when the process does, however that
/// happens.
pub fn shared(server: RedisServer) -> &'static RedisServer {
    end_with_us(&[server.pid()], &[server.dir.path()]);
    Box::leak(Box::new(server))
}
