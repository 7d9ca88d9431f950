//! Real PostgreSQL servers on free loopback ports.

use crate::certificates;
use crate::daemon::{Daemon, Server, at_our_end, end_with_us, signal_family};
use crate::server_clock::{make_clock, step_clock, use_clock};
use crate::{PATIENCE, Proc, SOON, Signal, SmallDisk, TempDir, eventually};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// A `postgres` of a test's own; killed when dropped. Its superuser is `postgres`, without a password.
#[derive(Debug)]
pub struct PostgresServer {
    daemon: Daemon,
    options: Vec<String>,
    dir: TempDir,
}

/// Where Debian puts the programs; `POSTGRES_BIN` names another place.
static BIN: LazyLock<PathBuf> = LazyLock::new(|| {
    if let Some(dir) = std::env::var_os("POSTGRES_BIN") {
        return dir.into();
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.map(|entry| entry.path().join("bin")).filter(|dir| dir.join("postgres").exists()).max();
    newest.expect("PostgreSQL is not installed: apt-get install postgresql")
});

/// A fresh cluster, made once and copied for every server: making one takes seconds.
static TEMPLATE: LazyLock<TempDir> = LazyLock::new(|| {
    let dir = TempDir::new();
    give_away(dir.path());
    let mut command = program("initdb");
    command.args(["--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8", "--locale=C", "-D"]);
    let made = Proc::start(command.arg(dir.join("data"))).wait_for(PATIENCE);
    assert_eq!(made.code, Some(0), "initdb: {}", made.stderr);
    end_with_us(&[], &[dir.path()]);
    dir
});

/// A program of PostgreSQL, which refuses to run as root.
fn program(name: &str) -> Command {
    as_postgres(&BIN.join(name))
}

pub(crate) fn as_postgres(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]).arg(program);
    command
}

/// Lets the user `postgres` have a directory and what is in it.
pub(crate) fn give_away(dir: &Path) {
    if rustix::process::geteuid().is_root() {
        let given = Command::new("chown").args(["-R", "postgres:postgres"]).arg(dir).status();
        assert!(given.is_ok_and(|status| status.success()), "the user postgres: apt-get install postgresql");
    }
}

impl PostgresServer {
    /// Starts one that does not wait for the disk.
    #[allow(clippy::new_without_default, reason = "it starts a process: not a value to have by default")]
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// Starts one with more settings, such as `["max_connections=10"]`.
    pub fn with(settings: &[&str]) -> Self {
        Self::begin(TempDir::new(), settings, None)
    }

    /// Starts one that speaks TLS. Its directory has `ca.crt`, `client.crt` and `client.key`, and `other.crt` of another
    /// authority; host-based rules are those of `hba`.
    pub fn with_tls(hba: &str) -> Self {
        let dir = TempDir::new();
        certificates(&dir);
        let file = |name: &str| dir.join(name).display().to_string();
        let settings = [
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", file("server.crt")),
            format!("ssl_key_file={}", file("server.key")),
            format!("ssl_ca_file={}", file("ca.crt")),
            format!("hba_file={}", dir.write("hba", hba).display()),
        ];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        Self::begin(dir, &settings, None)
    }

    /// Starts one whose clock can be stepped.
    pub fn with_clock() -> Self {
        let dir = TempDir::new();
        make_clock(&dir);
        Self::begin(dir, &[], None)
    }

    /// Sets its clock off by so many seconds from the real one.
    pub fn step_clock(&self, seconds: i64) {
        step_clock(&self.dir, seconds);
    }

    /// Starts a standby of `primary`, in step with it.
    pub fn standby_of(primary: &Self) -> Self {
        Self::standby(primary, &[])
    }

    /// The same, which finds the primary at another port: a way that leads there.
    pub fn standby_through(primary: &Self, port: u16) -> Self {
        Self::standby(primary, &[&format!("primary_conninfo=host=127.0.0.1 port={port} user=postgres")])
    }

    fn standby(primary: &Self, settings: &[&str]) -> Self {
        let dir = TempDir::new();
        give_away(dir.path());
        let mut command = program("pg_basebackup");
        command.args(["-h", "127.0.0.1", "-p", &primary.port().to_string(), "-U", "postgres", "--no-sync"]);
        let made = Proc::start(command.args(["--checkpoint=fast", "-R", "-D"]).arg(dir.join("data"))).wait();
        assert_eq!(made.code, Some(0), "pg_basebackup: {}", made.stderr);
        Self::begin(dir, settings, Some(()))
    }

    fn begin(dir: TempDir, settings: &[&str], copied: Option<()>) -> Self {
        if copied.is_none() {
            let copy = Command::new("cp").arg("-a").arg(TEMPLATE.join("data")).arg(dir.join("data")).status();
            assert!(copy.is_ok_and(|status| status.success()), "cp copies the cluster");
        }
        give_away(dir.path());
        let settings = settings.iter().flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()]).collect();
        Server::begin(Self { daemon: Daemon::new(), options: settings, dir })
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.daemon.port()
    }

    /// Its URL, as the superuser.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port())
    }

    /// Its directory.
    pub fn dir(&self) -> &TempDir {
        &self.dir
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.daemon.pid()
    }

    /// What `psql` prints for a command: fields separated by `|`.
    pub fn sql(&self, text: &str) -> String {
        self.try_sql(text).unwrap_or_else(|error| panic!("psql {text:?}: {error}"))
    }

    /// The same, or what it complains about.
    ///
    /// # Errors
    /// The server's own words.
    pub fn try_sql(&self, text: &str) -> Result<String, String> {
        let mut command = Command::new(BIN.join("psql"));
        command.args(["-h", "127.0.0.1", "-p", &self.port().to_string(), "-U", "postgres", "-qXAt"]);
        // By its input, so that each statement is a transaction.
        command.args(["-v", "ON_ERROR_STOP=1", "-f", "-"]).stdin(Stdio::piped());
        let mut psql = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("psql runs");
        psql.stdin.take().expect("piped").write_all(text.as_bytes()).expect("psql reads");
        let output = psql.wait_with_output().expect("psql ends");
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Ends all connections of clients but our own, as an administrator would. When this returns, they are gone.
    pub fn cut(&self) {
        let pids = self.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'lockkeeper'");
        let pids: Vec<&str> = pids.lines().collect();
        // A server process ends a moment after it was told to.
        let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid";
        let end = format!("{end} = ANY ('{{{}}}')", pids.join(","));
        eventually(SOON, "the connections are cut", || self.sql(&end) == "0");
    }

    /// Kills it with its children, as a power cut would.
    pub fn kill(&mut self) {
        // SIGQUIT: children are killed, nothing is flushed; recovery follows at the next start.
        self.daemon.end(Signal::QUIT);
    }

    /// Starts it again on its port and directory.
    pub fn start(&mut self) {
        self.start_again();
    }

    /// Freezes it with all its children: connections stay open and nothing answers.
    pub fn pause(&self) {
        self.each(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.each(Signal::CONT);
    }

    fn each(&self, signal: Signal) {
        signal_family(self.pid(), signal);
    }

    /// Puts tables that are made from now on, on a disk of their own.
    pub fn tables_on(&self, disk: &SmallDisk) {
        give_away(disk.path());
        self.sql(&format!("CREATE TABLESPACE own LOCATION '{}'", disk.path().display()));
        self.sql("ALTER ROLE postgres SET default_tablespace = own");
    }

    /// Puts its log (WAL) on a disk of its own.
    pub fn log_on(&mut self, disk: &SmallDisk) {
        self.kill();
        let (log, there) = (self.dir.join("data/pg_wal"), disk.path().join("pg_wal"));
        let moved = Command::new("cp").arg("-a").args([&log, &there]).status();
        assert!(moved.is_ok_and(|status| status.success()), "cp copies the log");
        std::fs::remove_dir_all(&log).expect("the directory is ours");
        std::os::unix::fs::symlink(&there, &log).expect("the directory is ours");
        give_away(disk.path());
        self.start();
    }

    /// Keeps it for the rest of this process, for tests that share one; it ends when the process does.
    pub fn share(self) -> &'static Self {
        self.end_with_us();
        Box::leak(Box::new(self))
    }

    /// Sees to it that the server, restarted or not, ends when this process does, however that happens.
    pub fn end_with_us(&self) {
        // The file names the process that runs now; -QUIT takes its children along.
        let script =
            "pid=$(head -n 1 \"$1/data/postmaster.pid\") && kill -QUIT $pid && while kill -0 $pid; do sleep 0.05; done
            rm -rf \"$1\"";
        at_our_end(script, &[self.dir.path().into()]);
    }
}

impl Server for PostgresServer {
    const WHAT: &str = "postgres";

    fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    fn daemon_mut(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    fn start_command(&self) -> Command {
        let mut command = program("postgres");
        command.arg("-D").arg(self.dir.join("data")).args(["-p", &self.port().to_string()]);
        let sockets = format!("unix_socket_directories={}", self.dir.path().display());
        for setting in ["listen_addresses=127.0.0.1,127.0.0.2", &sockets, "fsync=off", "log_min_messages=warning"] {
            command.args(["-c", setting]);
        }
        use_clock(&self.dir, &mut command);
        command.args(&self.options);
        command
    }

    fn is_ready(&self) -> bool {
        let asked = program("pg_isready").args(["-q", "-h", "127.0.0.1", "-p", &self.port().to_string()]).status();
        asked.is_ok_and(|status| status.success())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.resume();
        self.kill();
    }
}
