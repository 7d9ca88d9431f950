//! etcd, ZooKeeper and Consul, three servers each.

use super::{Mistake, Rig, version_of, within_seconds};
use fastrand::Rng;
use std::process::Command;
use testkit::{ConsulCluster, ConsulServer, EtcdCluster, EtcdServer, Signal, ZooKeeperEnsemble, ZooKeeperServer};

fn hosts(ports: &[u16]) -> String {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    hosts.join(",")
}

/// Three etcd servers.
pub(super) struct Etcd(EtcdCluster);

impl Etcd {
    pub(super) fn new() -> Self {
        Self(EtcdCluster::new())
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

/// Three ZooKeeper servers.
pub(super) struct ZooKeeper {
    ensemble: ZooKeeperEnsemble,
}

impl ZooKeeper {
    pub(super) fn new() -> Self {
        Self { ensemble: ZooKeeperEnsemble::new() }
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
    fn tear_log(&mut self, node: usize) {
        self.ensemble.servers[node].truncate();
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
