//! Redis: one server, a pair, a Cluster, Redlock's five.

use super::mesh::Mesh;
use super::{Damage, Mistake, Rig, SECRET, version_of, within_seconds};
use crate::link::Link;
use fastrand::Rng;
use std::path::PathBuf;
use std::process::Command;
use testkit::{RedisCluster, RedisServer};

/// Every write is on disk before it is answered, so that a restart forgets nothing.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

fn server() -> RedisServer {
    RedisServer::with_clock_and(&[&DURABLE[..], &["--requirepass", SECRET]].concat()).login(SECRET)
}

fn versions() -> Vec<String> {
    vec![version_of("redis-server", "--version")]
}

/// What operators do to a server by mistake. A server that is down does nothing.
fn mistake(server: &RedisServer, rng: &mut Rng) -> Mistake {
    let commands: &[&[&str]] = &[
        &["SCRIPT", "FLUSH"],
        &["CLIENT", "KILL", "TYPE", "normal"],
        &["CLIENT", "KILL", "TYPE", "pubsub"],
        &["CLIENT", "PAUSE", "300", "WRITE"],
        &["FLUSHALL"],
    ];
    let command = commands[rng.usize(..commands.len())];
    let _ = server.cli(command);
    Mistake { words: command.join(" "), takes_locks: command[0] == "FLUSHALL" }
}

/// How many keys a server has.
fn keys(port: u16, password: &str) -> Command {
    let mut command = within_seconds("redis-cli");
    if !password.is_empty() {
        command.env("REDISCLI_AUTH", password);
    }
    command.args(["-p", &port.to_string(), "DBSIZE"]);
    command
}

/// One server.
pub(super) struct Single(RedisServer);

impl Single {
    pub(super) fn new() -> Self {
        Self(server())
    }
}

impl Rig for Single {
    fn ports(&self) -> Vec<u16> {
        vec![self.0.port()]
    }
    fn url(&self, ports: &[u16], _: usize) -> String {
        format!("redis://:{SECRET}@127.0.0.1:{}", ports[0])
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
    fn wipe(&mut self, _: usize) {
        self.0.wipe();
    }
    fn start(&mut self, _: usize) {
        self.0.start();
    }
    fn step_clock(&mut self, _: usize, seconds: i64) {
        self.0.step_clock(seconds);
    }
    fn mistake(&mut self, rng: &mut Rng) -> Option<Mistake> {
        Some(mistake(&self.0, rng))
    }
    fn pids(&self) -> Vec<i32> {
        vec![self.0.pid()]
    }
    fn entries(&self) -> Vec<Command> {
        self.ports().into_iter().map(|port| keys(port, SECRET)).collect()
    }
    fn versions(&self) -> Vec<String> {
        versions()
    }
}

/// Five servers, a majority of which decides.
pub(super) struct Redlock(Vec<RedisServer>);

impl Redlock {
    pub(super) fn new() -> Self {
        Self((0..5).map(|_| server()).collect())
    }
}

impl Rig for Redlock {
    fn ports(&self) -> Vec<u16> {
        self.0.iter().map(RedisServer::port).collect()
    }
    fn url(&self, ports: &[u16], _: usize) -> String {
        let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redlock://:{SECRET}@{}", hosts.join(","))
    }
    fn pause(&mut self, node: usize) {
        self.0[node].pause();
    }
    fn resume(&mut self, node: usize) {
        self.0[node].resume();
    }
    fn kill(&mut self, node: usize) {
        self.0[node].kill();
    }
    fn wipe(&mut self, node: usize) {
        self.0[node].wipe();
    }
    fn start(&mut self, node: usize) {
        self.0[node].start();
    }
    fn step_clock(&mut self, node: usize, seconds: i64) {
        self.0[node].step_clock(seconds);
    }
    fn log(&self, node: usize, _: Damage) -> Option<PathBuf> {
        self.0[node].log()
    }
    fn mend(&mut self, node: usize) -> bool {
        let starts = self.0[node].try_start();
        if !starts {
            self.0[node].wipe();
            self.0[node].start();
        }
        starts
    }
    fn mistake(&mut self, rng: &mut Rng) -> Option<Mistake> {
        let node = rng.usize(..self.0.len());
        let Mistake { words, takes_locks } = mistake(&self.0[node], rng);
        Some(Mistake { words: format!("{words} on node {node}"), takes_locks })
    }
    fn pids(&self) -> Vec<i32> {
        self.0.iter().map(RedisServer::pid).collect()
    }
    fn entries(&self) -> Vec<Command> {
        self.ports().into_iter().map(|port| keys(port, SECRET)).collect()
    }
    fn versions(&self) -> Vec<String> {
        versions()
    }
}

/// How much of the primary's last work a replica has not heard of.
const BEHIND: std::time::Duration = std::time::Duration::from_millis(200);

/// A primary and a replica that takes its place when it is killed.
pub(super) struct Pair {
    servers: [RedisServer; 2],
    /// The replica's way to the primary.
    way: Link,
    primary: usize,
    /// What follows the address in the URL.
    options: &'static str,
}

impl Pair {
    pub(super) fn new(options: &'static str) -> Self {
        let quickly = ["--repl-diskless-sync-delay", "0", "--requirepass", SECRET, "--masterauth", SECRET];
        let servers = [(); 2].map(|()| RedisServer::with(&quickly).login(SECRET));
        let way = Link::new(servers[0].port()).expect("a loopback port");
        let pair = Self { servers, way, primary: 0, options };
        pair.follow();
        pair
    }

    /// Makes the other one a replica again.
    fn follow(&self) {
        let replica = &self.servers[1 - self.primary];
        self.way.retarget(self.servers[self.primary].port());
        replica.cli(&["REPLICAOF", "127.0.0.1", &self.way.port().to_string()]);
        testkit::eventually(testkit::SOON, "the replica follows", || {
            replica.info("master_link_status").as_deref() == Some("up")
        });
    }
}

impl Rig for Pair {
    /// The address of the primary, which moves.
    fn ports(&self) -> Vec<u16> {
        vec![self.servers[self.primary].port()]
    }
    fn url(&self, ports: &[u16], _: usize) -> String {
        format!("redis://:{SECRET}@127.0.0.1:{}{}", ports[0], self.options)
    }
    fn pause(&mut self, _: usize) {
        self.servers[self.primary].pause();
    }
    fn resume(&mut self, _: usize) {
        self.servers[self.primary].resume();
    }
    /// The replica falls behind for a moment, then takes over without what it has not heard of.
    fn kill(&mut self, _: usize) {
        let replica = &self.servers[1 - self.primary];
        replica.cli(&["REPLICAOF", "NO", "ONE"]);
        std::thread::sleep(BEHIND);
        self.servers[self.primary].kill();
        self.primary = 1 - self.primary;
    }
    fn start(&mut self, _: usize) {
        self.servers[1 - self.primary].start();
        self.follow();
    }
    fn part(&mut self, _: usize, rng: &mut Rng) -> Option<(String, Vec<Link>)> {
        Some((format!("from the replica: {}", super::mesh::cut_pair(&self.way, rng)), vec![self.way.clone()]))
    }
    fn pids(&self) -> Vec<i32> {
        self.servers.iter().map(RedisServer::pid).collect()
    }
    fn entries(&self) -> Vec<Command> {
        self.ports().into_iter().map(|port| keys(port, SECRET)).collect()
    }
    fn versions(&self) -> Vec<String> {
        versions()
    }
}

/// How far above its own port a node listens for the others.
const BUS: u16 = 10_000;

/// Three primaries with a replica each. Links stand before the buses; replicas read from their primaries without one.
pub(super) struct Cluster(RedisCluster, Mesh, Vec<u16>);

impl Cluster {
    pub(super) fn new() -> Self {
        let (cluster, mut mesh) = (RedisCluster::new(1), Mesh::default());
        let told = cluster.nodes.iter().map(|node| mesh.add([node.port() + BUS])[0]).collect();
        let cluster = Self(cluster, mesh, told);
        (0..cluster.2.len()).for_each(|node| cluster.tell(node));
        cluster
    }

    /// A node tells the others where its bus is: at the link before it.
    fn tell(&self, node: usize) {
        self.0.nodes[node].cli(&["CONFIG", "SET", "cluster-announce-bus-port", &self.2[node].to_string()]);
    }

    fn nodes(&mut self) -> &mut [RedisServer] {
        &mut self.0.nodes
    }
}

impl Rig for Cluster {
    fn ports(&self) -> Vec<u16> {
        self.0.nodes.iter().map(RedisServer::port).collect()
    }
    fn url(&self, ports: &[u16], _: usize) -> String {
        format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", ports[0], ports[1])
    }
    fn linked(&self) -> bool {
        false
    }
    fn pause(&mut self, node: usize) {
        self.nodes()[node].pause();
    }
    fn resume(&mut self, node: usize) {
        self.nodes()[node].resume();
    }
    fn kill(&mut self, node: usize) {
        self.nodes()[node].kill();
    }
    fn start(&mut self, node: usize) {
        self.nodes()[node].start();
        self.tell(node);
    }
    fn part(&mut self, node: usize, rng: &mut Rng) -> Option<(String, Vec<Link>)> {
        Some(self.1.cut(node, &self.pids(), rng))
    }
    fn pids(&self) -> Vec<i32> {
        self.0.nodes.iter().map(RedisServer::pid).collect()
    }
    fn leader(&self) -> Option<usize> {
        self.0.nodes.iter().position(|node| node.info("role").as_deref() == Some("master"))
    }
    fn entries(&self) -> Vec<Command> {
        self.ports().into_iter().map(|port| keys(port, "")).collect()
    }
    fn versions(&self) -> Vec<String> {
        versions()
    }
}
