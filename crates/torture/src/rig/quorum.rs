//! etcd, ZooKeeper and Consul, three servers each.

use super::mesh::Mesh;
use super::{Damage, Mistake, Rig, version_of, within_seconds};
use crate::link::Link;
use fastrand::Rng;
use std::path::PathBuf;
use std::process::Command;
use testkit::{ConsulCluster, ConsulServer, EtcdCluster, EtcdServer, Signal, ZooKeeperEnsemble, ZooKeeperServer};

fn hosts(ports: &[u16]) -> String {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    hosts.join(",")
}

/// Three etcd servers, with a link before each for the others.
pub(super) struct Etcd(EtcdCluster, Mesh);

impl Etcd {
    pub(super) fn new() -> Self {
        let mut mesh = Mesh::default();
        let cluster = EtcdCluster::through(|port| mesh.add([port])[0]);
        mesh.keep_last(cluster.members.len());
        Self(cluster, mesh)
    }
}

impl Rig for Etcd {
    fn ports(&self) -> Vec<u16> {
        self.0.members.iter().map(EtcdServer::port).collect()
    }
    fn url(&self, ports: &[u16], _: usize) -> String {
        format!("etcd://{}", hosts(ports))
    }
    fn pause(&mut self, node: usize) {
        self.0.members[node].pause();
    }
    fn resume(&mut self, node: usize) {
        self.0.members[node].resume();
    }
    fn kill(&mut self, node: usize) {
        self.0.members[node].kill();
    }
    fn start(&mut self, node: usize) {
        self.0.members[node].start();
    }
    fn leader(&self) -> Option<usize> {
        Some(self.0.leader())
    }
    fn part(&mut self, node: usize, rng: &mut Rng) -> Option<(String, Vec<Link>)> {
        Some(self.1.cut(node, &self.pids(), rng))
    }
    /// Not a torn one: a server that forgets what it has written for good breaks what etcd's members count on.
    fn log(&self, node: usize, damage: Damage) -> Option<PathBuf> {
        self.0.members[node].log().filter(|_| damage == Damage::Flipped)
    }
    fn mend(&mut self, node: usize) -> bool {
        let starts = self.0.members[node].try_start();
        if !starts {
            self.0.replace(node);
        }
        starts
    }
    fn replace(&mut self, node: usize) -> bool {
        self.0.replace(node);
        true
    }
    fn pids(&self) -> Vec<i32> {
        self.0.members.iter().map(EtcdServer::pid).collect()
    }
    fn mistake(&mut self, rng: &mut Rng) -> Option<Mistake> {
        let listed = self.0.ctl(&["lease", "list"]);
        let leases: Vec<&str> = listed.lines().skip(1).collect();
        let lease = rng.choice(leases)?;
        // It may have ended meanwhile.
        let _ = self.0.etcdctl().args(["lease", "revoke", lease]).output();
        Mistake::of_locks("lease revoke")
    }
    fn entries(&self) -> Vec<Command> {
        let mut command = within_seconds("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &hosts(&self.ports())]);
        command.args(["get", "", "--prefix", "--count-only", "--write-out=fields"]);
        vec![command]
    }
    fn versions(&self) -> Vec<String> {
        vec![version_of("etcd", "--version")]
    }
}

/// Three ZooKeeper servers, with links before each for the others.
pub(super) struct ZooKeeper {
    ensemble: ZooKeeperEnsemble,
    mesh: Mesh,
}

impl ZooKeeper {
    pub(super) fn new() -> Self {
        let mut mesh = Mesh::default();
        let ensemble = ZooKeeperEnsemble::through(&[], |ports| mesh.add(ports));
        mesh.keep_last(ensemble.servers.len());
        Self { ensemble, mesh }
    }
}

impl Rig for ZooKeeper {
    fn ports(&self) -> Vec<u16> {
        self.ensemble.servers.iter().map(ZooKeeperServer::port).collect()
    }
    fn url(&self, ports: &[u16], _: usize) -> String {
        // A dead worker's locks end with its session, which by default lasts 40 s.
        format!("zookeeper://{}?session_timeout=4s&follower_lag=1s", hosts(ports))
    }
    fn pause(&mut self, node: usize) {
        testkit::signal(self.ensemble.servers[node].pid(), Signal::STOP);
    }
    fn resume(&mut self, node: usize) {
        testkit::signal(self.ensemble.servers[node].pid(), Signal::CONT);
    }
    fn kill(&mut self, node: usize) {
        self.ensemble.servers[node].kill();
    }
    fn wipe(&mut self, node: usize) {
        self.ensemble.servers[node].wipe();
    }
    fn start(&mut self, node: usize) {
        self.ensemble.servers[node].start();
    }
    fn leader(&self) -> Option<usize> {
        Some(self.ensemble.leader())
    }
    fn entries(&self) -> Vec<Command> {
        let mut command = within_seconds("bash");
        let port = self.ensemble.servers[0].port();
        let ask = "exec 3<>/dev/tcp/127.0.0.1";
        command.args(["-c", &format!("{ask}/{port} && printf mntr >&3 && grep zk_znode_count <&3")]);
        vec![command]
    }
    fn part(&mut self, node: usize, rng: &mut Rng) -> Option<(String, Vec<Link>)> {
        Some(self.mesh.cut(node, &self.pids(), rng))
    }
    fn log(&self, node: usize, _: Damage) -> Option<PathBuf> {
        self.ensemble.servers[node].log()
    }
    fn mend(&mut self, node: usize) -> bool {
        let starts = self.ensemble.servers[node].try_start();
        if !starts {
            self.ensemble.servers[node].wipe();
            self.ensemble.servers[node].start();
        }
        starts
    }
    fn pids(&self) -> Vec<i32> {
        self.ensemble.servers.iter().map(ZooKeeperServer::pid).collect()
    }
    fn versions(&self) -> Vec<String> {
        let said = self.ensemble.servers[0].ask("srvr");
        said.lines().take(1).map(str::to_owned).collect()
    }
}

/// Three Consul servers.
pub(super) struct Consul(ConsulCluster);

impl Consul {
    pub(super) fn new() -> Self {
        Self(ConsulCluster::new())
    }
}

impl Rig for Consul {
    fn ports(&self) -> Vec<u16> {
        self.0.members.iter().map(ConsulServer::port).collect()
    }
    fn url(&self, ports: &[u16], slot: usize) -> String {
        format!("consul://127.0.0.1:{}", ports[slot % ports.len()])
    }
    fn pause(&mut self, node: usize) {
        self.0.members[node].pause();
    }
    fn resume(&mut self, node: usize) {
        self.0.members[node].resume();
    }
    fn kill(&mut self, node: usize) {
        self.0.members[node].kill();
    }
    fn start(&mut self, node: usize) {
        self.0.members[node].start();
    }
    fn leader(&self) -> Option<usize> {
        Some(self.0.leader(None))
    }
    fn mistake(&mut self, _: &mut Rng) -> Option<Mistake> {
        self.0.members[0].destroy_sessions();
        Mistake::of_locks("all sessions destroyed")
    }
    fn pids(&self) -> Vec<i32> {
        self.0.members.iter().map(ConsulServer::pid).collect()
    }
    fn entries(&self) -> Vec<Command> {
        let port = self.0.members[0].port();
        let count = |path: &str, mark: &str| {
            let mut command = within_seconds("bash");
            let ask = format!("curl -sf 'http://127.0.0.1:{port}/v1/{path}' | grep -o '{mark}' | wc -l");
            command.args(["-c", &format!("set -o pipefail; {ask}")]);
            command
        };
        // Keys are a list of texts; sessions have an id each.
        vec![count("kv/?keys", ","), count("session/list", "\"ID\"")]
    }
    fn versions(&self) -> Vec<String> {
        let said = self.0.members[0].cli(&["version"]).stdout;
        said.lines().take(1).map(str::to_owned).collect()
    }
}
