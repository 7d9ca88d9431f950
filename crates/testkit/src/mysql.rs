//! A real MySQL or MariaDB server on a free loopback port.

use crate::certificates;
use crate::daemon::{Daemon, Server, end_with_us};
use crate::server_clock::{make_clock, step_clock, use_clock};
use crate::{PATIENCE, Proc, TempDir, cached};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// A server of a test's own; killed when dropped. Its user is `root`, without a password, its database `test`.
///
/// It is the MariaDB of this machine. With `LOCKKEEPER_TEST_MYSQL=8.0` or `8.4` in the environment it is the MySQL that
/// `scripts/mysql` has unpacked. Such a server has its default binary log, login plugin and TLS.
#[derive(Debug)]
pub struct MysqlServer {
    daemon: Daemon,
    options: Vec<String>,
    dir: TempDir,
}

/// A machine has only so many asynchronous requests, and tests start many servers at once.
const NO_AIO: &str = "--skip-innodb-use-native-aio";

/// A program of the server; its directory is not on every user's PATH.
fn installed(name: &str) -> Command {
    let runs =
        |name: &str| Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    let full = format!("/usr/sbin/{name}");
    let name = if runs(name) { name } else { &full };
    assert!(runs(name), "{name} is not installed: apt-get install mariadb-server");
    Command::new(name)
}

/// Where the MySQL is that tests shall start in place of MariaDB, if they shall.
fn mysql() -> Option<PathBuf> {
    let version = std::env::var("LOCKKEEPER_TEST_MYSQL").ok().filter(|version| !version.is_empty())?;
    let place = cached(&format!("mysql-{version}"));
    assert!(place.join("made-by").exists(), "there is no MySQL in {}: run scripts/mysql", place.display());
    Some(place)
}

/// A directory of its own for temporary tables: a server that starts deletes those it finds, other servers' too.
fn own_tmpdir(dir: &TempDir) -> String {
    let tmp = dir.join("tmp");
    if !tmp.exists() {
        std::fs::create_dir(&tmp).expect("a directory for temporary tables");
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&tmp, all).expect("the server's user may write there");
    }
    format!("--tmpdir={}", tmp.display())
}

/// The data of a new MariaDB server, made once and copied for every one: making it takes seconds.
static TEMPLATE: LazyLock<TempDir> = LazyLock::new(|| {
    let dir = TempDir::new();
    let mut install = installed("mariadb-install-db");
    install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", NO_AIO]);
    install.arg(format!("--datadir={}", dir.join("data").display()));
    install.arg(own_tmpdir(&dir));
    if rustix::process::geteuid().is_root() {
        install.arg("--user=mysql");
    }
    let mut made = Proc::start(&mut install).wait_for(PATIENCE);
    if made.code != Some(0) {
        // It starts a server of its own, which a busy machine may refuse a resource for a moment.
        let _ = std::fs::remove_dir_all(dir.join("data"));
        made = Proc::start(&mut install).wait_for(PATIENCE);
    }
    assert_eq!(made.code, Some(0), "mariadb-install-db: {}{}", made.stdout, made.stderr);
    end_with_us(&[], &[dir.path()]);
    dir
});

fn install(dir: &TempDir) {
    // Most of it is zeros.
    let mut copy = Command::new("cp");
    let copied = copy.args(["-a", "--sparse=always"]).args([TEMPLATE.join("data"), dir.join("data")]).status();
    assert!(copied.is_ok_and(|s| s.success()), "the data of a new MariaDB server is copied");
    if rustix::process::geteuid().is_root() {
        let owned = Command::new("chown").args(["-R", "mysql"]).arg(dir.path()).status();
        assert!(owned.is_ok_and(|s| s.success()), "there is a user mysql: apt-get install mariadb-server");
    }
}

impl MysqlServer {
    /// Starts one.
    #[allow(clippy::new_without_default, reason = "it starts a process: not a value to have by default")]
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// Starts one that offers TLS. Its directory has `ca.crt`, and `other.crt` of another authority.
    pub fn with_tls() -> Self {
        Self::tls(&[])
    }

    /// The same, for logins over TCP with TLS only.
    pub fn with_tls_only() -> Self {
        Self::tls(&["--require-secure-transport=on".to_owned()])
    }

    /// Starts one that offers none, with more options. A MySQL would by itself.
    pub fn without_tls(options: &[&str]) -> Self {
        let none: &[&str] = if mysql().is_some() { &["--ssl-cert=none", "--ssl-key=none"] } else { &[] };
        Self::with(&[none, options].concat())
    }

    fn tls(more: &[String]) -> Self {
        let dir = TempDir::new();
        certificates(&dir);
        let file = |(key, file): (&str, &str)| format!("--ssl-{key}={}", dir.join(file).display());
        let options = [("ca", "ca.crt"), ("cert", "server.crt"), ("key", "server.key")].map(file);
        Self::begin([&options, more].concat(), dir)
    }

    /// Starts one whose clock can be stepped.
    pub fn with_clock() -> Self {
        let dir = TempDir::new();
        make_clock(&dir);
        Self::begin(Vec::new(), dir)
    }

    /// Sets its clock off by so many seconds from the real one.
    pub fn step_clock(&self, seconds: i64) {
        step_clock(&self.dir, seconds);
    }

    /// Starts one with more options, such as `["--max-connections=10"]`.
    pub fn with(options: &[&str]) -> Self {
        Self::begin(options.iter().map(|o| (*o).to_owned()).collect(), TempDir::new())
    }

    fn begin(options: Vec<String>, dir: TempDir) -> Self {
        match mysql() {
            Some(place) => {
                let copied = Command::new("cp").arg("-r").arg(place.join("data")).arg(dir.path()).status();
                assert!(copied.is_ok_and(|s| s.success()), "the data of a new MySQL server is copied");
                // Each has an id of its own.
                std::fs::remove_file(dir.join("data/auto.cnf")).expect("it was copied");
            }
            None => install(&dir),
        }
        let server = Server::begin(Self { daemon: Daemon::new(), options, dir });
        server.sql("CREATE DATABASE test CHARACTER SET utf8mb4");
        if server.is_mysql() {
            // It comes with the one for its socket only.
            server.sql("CREATE USER root@'127.0.0.1'; GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION");
        }
        server
    }

    /// Whether it is a MySQL.
    pub fn is_mysql(&self) -> bool {
        mysql().is_some()
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.daemon.port()
    }

    /// Its URL, with user and database.
    pub fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/test", self.port())
    }

    /// Its directory.
    pub fn dir(&self) -> &TempDir {
        &self.dir
    }

    /// Keeps it for the rest of this process, for tests that share one; it ends when the process does.
    pub fn share(self) -> &'static Self {
        end_with_us(&[self.pid()], &[self.dir.path()]);
        Box::leak(Box::new(self))
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.daemon.pid()
    }

    /// What the `mariadb` program prints for statements: rows only, columns separated by tabs. A script with
    /// `DELIMITER` works too.
    pub fn sql(&self, sql: &str) -> String {
        let database = if sql.starts_with("CREATE DATABASE") { "" } else { "test" };
        self.run(database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The same, or what it complains about.
    ///
    /// # Errors
    /// The server's own words.
    pub fn try_sql(&self, sql: &str) -> Result<String, String> {
        self.run("test", sql)
    }

    fn run(&self, database: &str, sql: &str) -> Result<String, String> {
        let mut command = installed("mariadb");
        command.args(["--no-defaults", "--batch", "--skip-column-names", "--user=root", database]);
        command.arg(format!("--socket={}", self.dir.join("socket").display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("mariadb runs");
        let input = process.stdin.take().expect("piped");
        // A program that cannot connect reads nothing.
        let _ = std::io::Write::write_all(&mut { input }, sql.as_bytes());
        let output = process.wait_with_output().expect("mariadb ends");
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.daemon.kill();
    }

    /// Starts it again on its port and directory.
    pub fn start(&mut self) {
        self.start_again();
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

impl Server for MysqlServer {
    const WHAT: &str = "the MySQL or MariaDB server";

    fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    fn daemon_mut(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    fn start_command(&self) -> Command {
        let root = rustix::process::geteuid().is_root();
        let mut command = match mysql() {
            Some(place) => {
                let mut command = Command::new(place.join("mysqld"));
                // Log files are of the size that the data came with; what is committed outlives a kill.
                command.args(["--skip-mysqlx", "--innodb-log-file-size=4M", "--sync-binlog=0"]);
                command.args(root.then_some("--user=root"));
                command
            }
            None => {
                let mut command = installed("mariadbd");
                command.arg("--no-defaults").args(root.then_some("--user=mysql"));
                command
            }
        };
        command.args(["--bind-address=127.0.0.1", "--skip-name-resolve", NO_AIO]);
        // What is committed outlives a kill of the process, if not of the machine.
        command.args(["--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=32M"]);
        command.arg(format!("--port={}", self.port()));
        for (option, file) in [("datadir", "data"), ("socket", "socket"), ("pid-file", "pid")] {
            command.arg(format!("--{option}={}", self.dir.join(file).display()));
        }
        command.arg(own_tmpdir(&self.dir));
        command.args(&self.options);
        use_clock(&self.dir, &mut command);
        command
    }

    fn is_ready(&self) -> bool {
        self.run("", "SELECT 1").is_ok()
    }
}
