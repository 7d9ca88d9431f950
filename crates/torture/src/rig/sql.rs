//! PostgreSQL and MariaDB.

use super::{Rig, version_of};
use fastrand::Rng;
use testkit::{MysqlServer, PostgresServer};

/// One PostgreSQL server.
pub(super) struct Postgres(PostgresServer);

impl Postgres {
    pub(super) fn new() -> Self {
        Self(PostgresServer::with_clock())
    }
}

fn postgres_url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres")
}

fn postgres_version(server: &PostgresServer) -> Vec<String> {
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
    fn mistake(&mut self, _: &mut Rng) -> Option<String> {
        self.0.cut();
        Some("pg_terminate_backend".into())
    }
    fn versions(&self) -> Vec<String> {
        postgres_version(&self.0)
    }
}

/// A primary and a standby that takes its place when it is killed.
pub(super) struct Pair {
    primary: PostgresServer,
    standby: Option<PostgresServer>,
}

impl Pair {
    pub(super) fn new() -> Self {
        let primary = PostgresServer::new();
        let standby = Some(PostgresServer::standby_of(&primary));
        Self { primary, standby }
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
        self.standby = Some(PostgresServer::standby_of(&self.primary));
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
    fn mistake(&mut self, _: &mut Rng) -> Option<String> {
        let ids =
            self.0.sql("SELECT id FROM information_schema.processlist WHERE db = 'test' AND id <> connection_id()");
        for id in ids.lines() {
            // It may have ended by itself meanwhile.
            let _ = self.0.try_sql(&format!("KILL {id}"));
        }
        Some("KILL of all connections".into())
    }
    fn versions(&self) -> Vec<String> {
        vec![version_of("mariadbd", "--version")]
    }
}
