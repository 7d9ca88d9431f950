//! PostgreSQL and MariaDB.

use super::mesh::cut_pair;
use super::{Mistake, Rig, SECRET, version_of, within_seconds};
use crate::link::Link;
use fastrand::Rng;
use std::process::Command;
use testkit::{MysqlServer, PostgresServer};

/// One PostgreSQL server.
pub(super) struct Postgres(PostgresServer);

impl Postgres {
    pub(super) fn new() -> Self {
        Self(PostgresServer::with_clock())
    }
}

/// The server trusts everyone on this machine; a client keeps the password all the same, and must not tell it.
pub(super) fn postgres_url(port: u16) -> String {
    format!("postgres://postgres:{SECRET}@127.0.0.1:{port}/postgres")
}

/// All rows of tables whose names begin so.
fn rows(tables: &str) -> String {
    let count = |table: &str| format!("(SELECT count(*) FROM {tables}{table})");
    format!("SELECT {}", ["lock", "claim", "register"].map(count).join(" + "))
}

pub(super) fn postgres_rows(port: u16) -> Vec<Command> {
    let mut command = within_seconds("psql");
    command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", "postgres", "-qXAt", "-c", &rows("lockkeeper.")]);
    vec![command]
}

pub(super) fn postgres_version(server: &PostgresServer) -> Vec<String> {
    server.try_sql("SELECT version()").into_iter().collect()
}

impl Rig for Postgres {
    fn ports(&self) -> Vec<u16> {
        vec![self.0.port()]
    }
    fn url(&self, ports: &[u16], _: usize) -> String {
        postgres_url(ports[0])
    }
    fn pause(&mut self, _: usize) {
        self.0.pause();
    }
    fn resume(&mut self, _: usize) {
        self.0.resume();
    }
    fn kill(&mut self, _: usize) {
        self.0.kill();
    }
    fn start(&mut self, _: usize) {
        self.0.start();
    }
    fn step_clock(&mut self, _: usize, seconds: i64) {
        self.0.step_clock(seconds);
    }
    fn mistake(&mut self, _: &mut Rng) -> Option<Mistake> {
        self.0.cut();
        Mistake::of_clients("pg_terminate_backend")
    }
    fn pids(&self) -> Vec<i32> {
        vec![self.0.pid()]
    }
    fn entries(&self) -> Vec<Command> {
        postgres_rows(self.0.port())
    }
    fn versions(&self) -> Vec<String> {
        postgres_version(&self.0)
    }
}

/// A primary and a standby that takes its place when it is killed.
pub(super) struct Pair {
    primary: PostgresServer,
    standby: Option<PostgresServer>,
    /// The standby's way to the primary.
    way: Link,
}

impl Pair {
    pub(super) fn new() -> Self {
        let primary = PostgresServer::new();
        let way = Link::new(primary.port()).expect("a loopback port");
        let standby = Some(PostgresServer::standby_through(&primary, way.port()));
        Self { primary, standby, way }
    }
}

impl Rig for Pair {
    /// The address of the primary, which moves.
    fn ports(&self) -> Vec<u16> {
        vec![self.primary.port()]
    }
    fn url(&self, ports: &[u16], _: usize) -> String {
        postgres_url(ports[0])
    }
    fn pause(&mut self, _: usize) {
        self.primary.pause();
    }
    fn resume(&mut self, _: usize) {
        self.primary.resume();
    }
    /// The standby takes over at once, whatever it has not heard of.
    fn kill(&mut self, _: usize) {
        self.primary.kill();
        if let Some(standby) = self.standby.take() {
            standby.sql("SELECT pg_promote(true, 30)");
            self.primary = standby;
        }
    }
    /// A new standby in place of the dead primary.
    fn start(&mut self, _: usize) {
        self.way.retarget(self.primary.port());
        self.standby = Some(PostgresServer::standby_through(&self.primary, self.way.port()));
    }
    fn part(&mut self, _: usize, rng: &mut Rng) -> Option<(String, Vec<Link>)> {
        Some((format!("from the standby: {}", cut_pair(&self.way, rng)), vec![self.way.clone()]))
    }
    fn pids(&self) -> Vec<i32> {
        [Some(&self.primary), self.standby.as_ref()].into_iter().flatten().map(PostgresServer::pid).collect()
    }
    fn entries(&self) -> Vec<Command> {
        postgres_rows(self.primary.port())
    }
    fn versions(&self) -> Vec<String> {
        postgres_version(&self.primary)
    }
}

/// One MariaDB server.
pub(super) struct Mariadb(MysqlServer);

impl Mariadb {
    pub(super) fn new() -> Self {
        Self(MysqlServer::with_clock())
    }
}

impl Rig for Mariadb {
    fn ports(&self) -> Vec<u16> {
        vec![self.0.port()]
    }
    fn url(&self, ports: &[u16], _: usize) -> String {
        format!("mysql://root@127.0.0.1:{}/test", ports[0])
    }
    fn pause(&mut self, _: usize) {
        self.0.pause();
    }
    fn resume(&mut self, _: usize) {
        self.0.resume();
    }
    fn kill(&mut self, _: usize) {
        self.0.kill();
    }
    fn start(&mut self, _: usize) {
        self.0.start();
    }
    fn step_clock(&mut self, _: usize, seconds: i64) {
        self.0.step_clock(seconds);
    }
    fn pids(&self) -> Vec<i32> {
        vec![self.0.pid()]
    }
    fn mistake(&mut self, _: &mut Rng) -> Option<Mistake> {
        let ids =
            self.0.sql("SELECT id FROM information_schema.processlist WHERE db = 'test' AND id <> connection_id()");
        for id in ids.lines() {
            // It may have ended by itself meanwhile.
            let _ = self.0.try_sql(&format!("KILL {id}"));
        }
        Mistake::of_clients("KILL of all connections")
    }
    fn entries(&self) -> Vec<Command> {
        let mut command = within_seconds("mariadb");
        command.args(["--no-defaults", "-h", "127.0.0.1", "-P", &self.0.port().to_string(), "-u", "root"]);
        command.args(["test", "-N", "-e", &rows("lockkeeper_")]);
        vec![command]
    }
    fn versions(&self) -> Vec<String> {
        vec![version_of("mariadbd", "--version")]
    }
}
