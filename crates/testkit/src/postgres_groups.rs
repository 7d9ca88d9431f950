//! What stands beside a PostgreSQL server: a standby, a PgBouncer.

use crate::daemon::{Daemon, Server, end_with_us};
use crate::postgres::{as_postgres, give_away};
use crate::{PostgresServer, SOON, TempDir, eventually};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

/// A primary and a standby that streams from it.
#[derive(Debug)]
pub struct PgPair {
    /// The primary.
    pub primary: PostgresServer,
    /// The standby.
    pub standby: PostgresServer,
}

impl PgPair {
    /// Starts both and waits until the standby is in step.
    #[allow(clippy::new_without_default, reason = "it starts processes: not a value to have by default")]
    pub fn new() -> Self {
        let primary = PostgresServer::new();
        let standby = PostgresServer::standby_of(&primary);
        let pair = Self { primary, standby };
        pair.in_step();
        pair
    }

    /// Waits until the standby has all that the primary has.
    pub fn in_step(&self) {
        eventually(SOON, "the standby streams", || {
            self.primary.sql("SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()") == "1"
        });
    }

    /// Both, as one URL.
    pub fn url(&self) -> String {
        let (a, b) = (self.primary.port(), self.standby.port());
        format!("postgres://postgres@127.0.0.1:{a},127.0.0.1:{b}/postgres")
    }

    /// Stops the standby from receiving, so that what is written from now on is lost with the primary.
    pub fn fall_behind(&self) {
        self.standby.sql("ALTER SYSTEM SET primary_conninfo = ''; SELECT pg_reload_conf()");
        eventually(SOON, "the standby no longer streams", || {
            self.primary.sql("SELECT count(*) FROM pg_stat_replication") == "0"
        });
    }

    /// Makes the standby the primary.
    pub fn promote(&self) {
        self.standby.sql("SELECT pg_promote(true, 30)");
    }
}

/// A PgBouncer before a server.
#[derive(Debug)]
pub struct PgBouncer {
    daemon: Daemon,
    /// The port of the server behind it.
    behind: u16,
    /// How many connections to it.
    size: u32,
    /// What a client gets a connection for: a transaction or a session.
    mode: &'static str,
    dir: TempDir,
}

impl PgBouncer {
    /// Starts one with `size` connections to the server, which gives one to each transaction.
    pub fn new(server: &PostgresServer, size: u32) -> Self {
        Self::with(server, size, "transaction")
    }

    /// Starts one that gives each client a connection to the server for as long as it stays.
    pub fn of_sessions(server: &PostgresServer, size: u32) -> Self {
        Self::with(server, size, "session")
    }

    fn with(server: &PostgresServer, size: u32, mode: &'static str) -> Self {
        Server::begin(Self { daemon: Daemon::new(), behind: server.port(), size, mode, dir: TempDir::new() })
    }

    /// The URL of a server behind it.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.daemon.port())
    }

    /// Keeps it for the rest of this process.
    pub fn share(self) -> &'static Self {
        end_with_us(&[self.daemon.pid()], &[self.dir.path()]);
        Box::leak(Box::new(self))
    }
}

impl Server for PgBouncer {
    const WHAT: &str = "PgBouncer";

    fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    fn daemon_mut(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    fn start_command(&self) -> Command {
        let users = self.dir.write("users", "\"postgres\" \"\"\n");
        let config = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = {}\n\
             default_pool_size = {}\nmax_client_conn = 1000\n",
            self.behind,
            self.daemon.port(),
            users.display(),
            self.mode,
            self.size,
        );
        let file = self.dir.write("pgbouncer.ini", &config);
        give_away(self.dir.path());
        let found = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].into_iter().map(Path::new).find(|p| p.exists());
        let mut command = as_postgres(found.expect("PgBouncer is not installed: apt-get install pgbouncer"));
        command.arg(file);
        command
    }

    fn is_ready(&self) -> bool {
        let listens = || TcpStream::connect(("127.0.0.1", self.daemon.port())).is_ok();
        self.daemon.said().contains("process up") && listens()
    }
}
