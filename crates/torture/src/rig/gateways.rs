//! Two gateways of one PostgreSQL server. The nodes are the gateways, and each worker talks to one of them.

use super::sql::{postgres_rows, postgres_url, postgres_version};
use super::{Mistake, Rig};
use crate::run::program;
use fastrand::Rng;
use std::process::Command;
use testkit::{PostgresServer, Proc, ProcessClock, Signal, TempDir, found};

/// The store, and what stands before it.
pub(super) struct Gateways {
    store: PostgresServer,
    all: [Gateway; 2],
}

/// A process of `lockkeeper serve`, which comes back at its port after a kill.
struct Gateway {
    port: u16,
    /// The password is in it, so it is told by the environment.
    store: String,
    clock: ProcessClock,
    /// For what it keeps in its user's folders.
    home: TempDir,
    process: Option<Proc>,
}

impl Gateway {
    fn new(store: &str) -> Self {
        let (clock, home) = (ProcessClock::new(), TempDir::new());
        let mut gateway = Self { port: testkit::free_port(), store: store.into(), clock, home, process: None };
        gateway.start();
        gateway
    }

    fn start(&mut self) {
        let listen = format!("127.0.0.1:{}", self.port);
        let mut command = Command::new(program("lockkeeper").expect("it was looked for before"));
        command.args(["serve", "--listen", &listen, "--drain", "0s"]);
        command.env("LOCKKEEPER_STORE", &self.store).env("HOME", self.home.path());
        self.clock.give(&mut command);
        let process = Proc::start(&mut command);
        found(testkit::SOON * 4, "the gateway serves", || {
            process.stderr().contains("serving postgres at ").then_some(())
        });
        self.process = Some(process);
    }

    fn signal(&self, signal: Signal) {
        self.process.iter().for_each(|process| process.signal(signal));
    }
}

impl Gateways {
    pub(super) fn new() -> Self {
        let store = PostgresServer::new();
        let url = postgres_url(store.port());
        let all = [(); 2].map(|()| Gateway::new(&url));
        Self { store, all }
    }
}

impl Rig for Gateways {
    fn ports(&self) -> Vec<u16> {
        self.all.iter().map(|gateway| gateway.port).collect()
    }
    fn url(&self, ports: &[u16], slot: usize) -> String {
        format!("http://127.0.0.1:{}", ports[slot % ports.len()])
    }
    fn pause(&mut self, node: usize) {
        self.all[node].signal(Signal::STOP);
    }
    fn resume(&mut self, node: usize) {
        self.all[node].signal(Signal::CONT);
    }
    fn kill(&mut self, node: usize) {
        self.all[node].process = None;
    }
    fn start(&mut self, node: usize) {
        self.all[node].start();
    }
    fn step_clock(&mut self, node: usize, seconds: i64) {
        self.all[node].clock.step(seconds);
    }
    fn mistake(&mut self, _: &mut Rng) -> Option<Mistake> {
        self.store.cut();
        Mistake::of_clients("pg_terminate_backend")
    }
    fn pids(&self) -> Vec<i32> {
        self.all.iter().map(|gateway| gateway.process.as_ref().map_or(0, Proc::pid)).collect()
    }
    fn entries(&self) -> Vec<Command> {
        postgres_rows(self.store.port())
    }
    fn versions(&self) -> Vec<String> {
        postgres_version(&self.store)
    }
}
