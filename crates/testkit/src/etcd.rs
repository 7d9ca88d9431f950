//! Real etcd servers on free loopback ports: one alone, or three that make a cluster.

use crate::certificates;
use crate::daemon::{Daemon, Server, end_with_us};
use crate::{SOON, TempDir, eventually, found, free_port};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// An `etcd` of a test's own; killed when dropped.
#[derive(Debug)]
pub struct EtcdServer {
    daemon: Daemon,
    name: String,
    peer_port: u16,
    /// Where the other members are told to find it: `peer_port`, or a way that leads there.
    told_port: u16,
    /// It comes to a cluster that is there already.
    joins: bool,
    options: Vec<String>,
    cluster: String,
    login: Vec<String>,
    dir: TempDir,
    tls: bool,
}

/// What a timing that suits tests on a busy machine looks like; the shortest lease follows from it. Members may change soon
/// after one was away.
const TIMING: [&str; 5] = ["--heartbeat-interval", "50", "--election-timeout", "500", "--strict-reconfig-check=false"];

fn program(name: &str) -> Command {
    let found = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(found.is_ok(), "{name} is not installed: apt-get install etcd-server etcd-client");
    let mut command = Command::new(name);
    command.env("ETCDCTL_API", "3");
    command
}

impl EtcdServer {
    /// Starts one with etcd's own timing.
    #[allow(clippy::new_without_default, reason = "it starts a process: not a value to have by default")]
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// Starts one with more options.
    pub fn with(options: &[&str]) -> Self {
        Self::plan("alone", options, TempDir::new(), false).begin()
    }

    /// Starts one that speaks TLS only and wants a client certificate. Its directory has `ca.crt`, `client.crt` and
    /// `client.key`, and `other.crt` of another authority.
    pub fn with_tls() -> Self {
        let dir = TempDir::new();
        certificates(&dir);
        let pairs = [("--cert-file", "server.crt"), ("--key-file", "server.key"), ("--trusted-ca-file", "ca.crt")];
        let mut options: Vec<String> = vec!["--client-cert-auth".into()];
        options.extend(pairs.iter().flat_map(|(key, file)| [(*key).to_owned(), dir.join(file).display().to_string()]));
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        Self::plan("alone", &options, dir, true).begin()
    }

    fn plan(name: &str, options: &[&str], dir: TempDir, tls: bool) -> Self {
        let mut server = Self {
            daemon: Daemon::new(),
            name: name.to_owned(),
            peer_port: 0,
            told_port: 0,
            joins: false,
            options: options.iter().map(|o| (*o).to_owned()).collect(),
            cluster: String::new(),
            login: Vec::new(),
            dir,
            tls,
        };
        server.choose_peer_port();
        server
    }

    fn choose_peer_port(&mut self) {
        self.peer_port = free_port();
        self.is_told_at(self.peer_port);
    }

    fn is_told_at(&mut self, port: u16) {
        self.told_port = port;
        self.cluster = format!("{}=http://127.0.0.1:{port}", self.name);
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.daemon.port()
    }

    /// Its URL, without a login.
    pub fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port())
    }

    /// Its directory.
    pub fn dir(&self) -> &TempDir {
        &self.dir
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.daemon.pid()
    }

    /// The login that `ctl` shows from now on, as `USER:PASSWORD`.
    pub fn login(&mut self, login: &str) {
        self.login = vec!["--user".into(), login.into()];
    }

    /// An `etcdctl` for this server, to which a command is added.
    pub fn etcdctl(&self) -> Command {
        etcdctl(&[self.port()], &self.login)
    }

    /// What `etcdctl` prints for a command.
    pub fn ctl(&self, args: &[&str]) -> String {
        run(self.etcdctl().args(args))
    }

    /// The sum of a counter of its metrics over all labels that contain `label`.
    pub fn metric(&self, name: &str, label: &str) -> f64 {
        let text = http_get(self.port(), "/metrics").expect("metrics");
        let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Keeps it for the rest of this process.
    pub fn share(self) -> &'static Self {
        end_with_us(&[self.pid()], &[self.dir.path()]);
        Box::leak(Box::new(self))
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.daemon.kill();
    }

    /// Starts it again on its ports and data, and waits until it serves.
    pub fn start(&mut self) {
        self.start_again();
    }

    /// Starts it again without waiting: alone it may not be able to serve.
    pub fn start_soon(&mut self) {
        self.spawn();
    }

    /// Starts it again, if it can read its data.
    pub fn try_start(&mut self) -> bool {
        self.try_start_again()
    }

    /// Its newest log.
    pub fn log(&self) -> Option<PathBuf> {
        self.dir.newest("data/member/wal", |name| name.ends_with(".wal"))
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

impl Server for EtcdServer {
    const WHAT: &str = "etcd";

    fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    fn daemon_mut(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    fn start_command(&self) -> Command {
        let client = format!("{}://127.0.0.1:{}", if self.tls { "https" } else { "http" }, self.port());
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let mut command = program("etcd");
        command.args(["--name", &self.name, "--data-dir"]).arg(self.dir.join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        let told = format!("http://127.0.0.1:{}", self.told_port);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &told]);
        command.args(["--initial-cluster-state", if self.joins { "existing" } else { "new" }]);
        command.args(["--initial-cluster", &self.cluster, "--logger", "zap", "--log-outputs", "/dev/null"]);
        command.args(&self.options);
        command
    }

    /// Whether it can serve: with others, whether they have a leader.
    fn is_ready(&self) -> bool {
        if self.tls {
            return TcpStream::connect(("127.0.0.1", self.port())).is_ok();
        }
        http_get(self.port(), "/health").is_some_and(|text| text.contains("\"true\""))
    }

    fn move_on(&mut self) {
        self.daemon.move_on();
        self.choose_peer_port();
        let _ = std::fs::remove_dir_all(self.dir.join("data"));
    }
}

/// Three servers that make a cluster, with short elections.
#[derive(Debug)]
pub struct EtcdCluster {
    /// The members.
    pub members: Vec<EtcdServer>,
}

impl EtcdCluster {
    /// Starts them and waits until every one serves.
    #[allow(clippy::new_without_default, reason = "it starts processes: not a value to have by default")]
    pub fn new() -> Self {
        Self::through(|port| port)
    }

    /// The same, with a way to each member for the others: it is given the member's own port, and answers the way's.
    pub fn through(mut way: impl FnMut(u16) -> u16) -> Self {
        let members = EtcdServer::begin_together(|| {
            let plan = |i| EtcdServer::plan(&format!("n{i}"), &TIMING, TempDir::new(), false);
            let mut members: Vec<EtcdServer> = (0..3).map(plan).collect();
            members.iter_mut().for_each(|member| member.is_told_at(way(member.peer_port)));
            let peers: Vec<String> = members.iter().map(|member| member.cluster.clone()).collect();
            members.iter_mut().for_each(|member| member.cluster = peers.join(","));
            members
        });
        Self { members }
    }

    /// Its URL, naming all members.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.members.iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
        format!("etcd://{}", hosts.join(","))
    }

    /// Which member is the leader now, according to the members that answer.
    pub fn leader(&self) -> usize {
        found(SOON, "the cluster has a leader", || {
            self.members.iter().position(|member| {
                let text = http_get(member.port(), "/metrics").unwrap_or_default();
                text.lines().any(|line| line == "etcd_server_is_leader 1")
            })
        })
    }

    /// Removes a member for good, and adds it anew with nothing on its disk, as an operator replaces a machine.
    pub fn replace(&mut self, node: usize) {
        let others: Vec<u16> = (0..self.members.len()).filter(|n| *n != node).map(|n| self.members[n].port()).collect();
        let ctl = |args: &[&str]| etcdctl(&others, &[]).args(args).output().expect("etcdctl runs");
        let (name, told) = (self.members[node].name.clone(), self.members[node].told_port);
        // Without a leader for a moment, a change of members is refused.
        let repeat = |what: &str, args: &[&str]| eventually(SOON, what, || ctl(args).status.success());
        let listed = found(SOON, "the members are listed", || {
            let output = ctl(&["member", "list"]);
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        });
        let line = listed.lines().find(|line| line.contains(&format!(" {name},")));
        let id = line.and_then(|line| line.split(',').next()).expect("it is a member");
        repeat("the member is removed", &["member", "remove", id]);
        let member = &mut self.members[node];
        member.kill();
        let _ = std::fs::remove_dir_all(member.dir.join("data"));
        repeat("the member is added", &["member", "add", &name, &format!("--peer-urls=http://127.0.0.1:{told}")]);
        member.joins = true;
        member.start();
    }

    /// An `etcdctl` for all members, to which a command is added.
    pub fn etcdctl(&self) -> Command {
        etcdctl(&self.members.iter().map(|member| member.port()).collect::<Vec<_>>(), &[])
    }

    /// What `etcdctl` prints for a command.
    pub fn ctl(&self, args: &[&str]) -> String {
        run(self.etcdctl().args(args))
    }

    /// Keeps it for the rest of this process.
    pub fn share(self) -> &'static Self {
        let cluster: &'static Self = Box::leak(Box::new(self));
        let pids: Vec<i32> = cluster.members.iter().map(EtcdServer::pid).collect();
        let dirs: Vec<_> = cluster.members.iter().map(|member| member.dir.path()).collect();
        end_with_us(&pids, &dirs);
        cluster
    }
}

fn etcdctl(ports: &[u16], login: &[String]) -> Command {
    let mut command = program("etcdctl");
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    command.args(["--endpoints", &hosts.join(",")]).args(login);
    command
}

fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("etcdctl runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// The body of a page, when a server answers soon.
fn http_get(port: u16, path: &str) -> Option<String> {
    let limit = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), limit).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text.split_once("\r\n\r\n")?.1.to_owned())
}
