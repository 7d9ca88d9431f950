//! A real PostgreSQL server on a free loopback port.

use crate::{Proc, SOON, Signal, TempDir, free_port};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A PostgreSQL server of a test's own; stopped when dropped. Its user is `postgres`, without a password.
#[derive(Debug)]
pub struct PostgresServer {
    process: Option<Proc>,
    port: u16,
    dir: TempDir,
}

/// A program of the newest server that is installed.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.filter_map(|v| v.file_name().to_str()?.parse::<u32>().ok()).max();
    let newest = newest.expect("PostgreSQL is not installed: apt-get install postgresql");
    PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin/{name}"))
}

/// A server refuses to run as root.
fn unprivileged(name: &str) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program(name));
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]).arg(program(name));
    command
}

impl PostgresServer {
    /// Starts one.
    #[allow(clippy::new_without_default, reason = "it starts a process: not a value to have by default")]
    pub fn new() -> Self {
        let dir = TempDir::new();
        if rustix::process::geteuid().is_root() {
            let owned = Command::new("chown").arg("postgres").arg(dir.path()).status();
            assert!(owned.is_ok_and(|s| s.success()), "there is a user postgres: apt-get install postgresql");
        }
        let mut initdb = unprivileged("initdb");
        initdb.current_dir(dir.path()).args(["-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "-D", "data"]);
        let made = Proc::start(&mut initdb).wait_for(SOON * 2);
        assert_eq!(made.code, Some(0), "initdb: {}", made.stderr);
        let mut server = Self { process: None, port: 0, dir };
        for _ in 0..5 {
            server.port = free_port();
            if server.try_start() {
                return server;
            }
        }
        panic!("postgres does not start: {:?}", server.process.take().map(Proc::wait));
    }

    fn try_start(&mut self) -> bool {
        let mut command = unprivileged("postgres");
        command.current_dir(self.dir.path()).args(["-D", "data", "-k", ".", "-p", &self.port.to_string()]);
        command.args(["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]);
        self.process = Some(Proc::start(&mut command));
        let end = Instant::now() + SOON;
        while Instant::now() < end {
            if self.process.as_mut().is_none_or(|p| !p.is_running()) {
                return false;
            }
            if self.run("SELECT 1").is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its URL, with user and database.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.process.as_ref().map_or(0, Proc::pid)
    }

    /// What `psql` prints for statements: rows only, columns separated by `|`.
    pub fn sql(&self, sql: &str) -> String {
        self.run(sql).unwrap_or_else(|| panic!("psql fails: {sql}"))
    }

    fn run(&self, sql: &str) -> Option<String> {
        let mut command = Command::new("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", "postgres"]);
        command.args(["-p", &self.port.to_string(), "-d", "postgres", "-c", sql]);
        let output = command.stdin(Stdio::null()).output().expect("psql runs: apt-get install postgresql-client");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // In order, so that its processes are gone before its directory.
            process.signal(Signal::INT);
            let end = Instant::now() + Duration::from_secs(5);
            while process.is_running() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
