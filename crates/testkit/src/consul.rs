//! Real Consul agents on free loopback ports, of the program that `scripts/peers --extended` builds.

use crate::daemon::{Daemon, Server, end_with_us};
use crate::{Certificates, Ended, Proc, SOON, TempDir, cached, eventually, free_port};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The token that may do everything, on an agent with ACLs.
pub const CONSUL_MANAGEMENT: &str = "11111111-2222-3333-4444-555555555555";

/// A Consul server of a test's own, alone in its cluster or one of three; it keeps its data over a restart. Killed when
/// dropped.
#[derive(Debug)]
pub struct ConsulServer {
    daemon: Daemon,
    dir: TempDir,
    data: TempDir,
    node: String,
    config: String,
    rpc: [u16; 2],
    acl: bool,
    tls: bool,
}

/// The program: the one that `CONSUL` names, or the one that was built.
fn program() -> PathBuf {
    if let Some(chosen) = std::env::var_os("CONSUL") {
        return chosen.into();
    }
    let built = cached("peers/consul/consul");
    assert!(built.exists(), "there is no {}: run scripts/peers --extended", built.display());
    built
}

impl ConsulServer {
    /// Starts one, and waits until it leads.
    #[allow(clippy::new_without_default, reason = "it starts a process: not a value to have by default")]
    pub fn new() -> Self {
        Self::with("")
    }

    /// Starts one with more configuration (HCL).
    pub fn with(config: &str) -> Self {
        Self::begin(config.to_owned(), TempDir::new(), false, false)
    }

    /// Starts one that refuses clients without a token; [`CONSUL_MANAGEMENT`] may do everything.
    pub fn with_acl() -> Self {
        let config = format!(
            "acl {{ enabled = true, default_policy = \"deny\", tokens {{ initial_management = \"{CONSUL_MANAGEMENT}\" }} }}"
        );
        Self::begin(config, TempDir::new(), true, false)
    }

    /// Starts one that speaks TLS only and wants a client certificate, of `dir()`: `ca.crt`, `client.crt`, `client.key`.
    pub fn with_tls() -> Self {
        let dir = Certificates::new().into_dir();
        let file = |name: &str| dir.join(name).display().to_string();
        let config = format!(
            "tls {{ https {{ ca_file = {:?}, cert_file = {:?}, key_file = {:?}, verify_incoming = true }} }}",
            file("ca.crt"),
            file("server.crt"),
            file("server.key"),
        );
        Self::begin(config, dir, false, true)
    }

    /// Starts one of three servers, whose others never come: it knows no leader.
    pub fn without_leader() -> Self {
        let mut server = Self::prepared("n", "bootstrap_expect = 3".to_owned(), TempDir::new());
        server.spawn();
        eventually(SOON, "the agent answers", || server.ask("GET", "/v1/status/leader").is_some());
        server
    }

    fn begin(config: String, dir: TempDir, acl: bool, tls: bool) -> Self {
        let config = format!("bootstrap_expect = 1\n{config}");
        Server::begin(Self { acl, tls, ..Self::prepared("n", config, dir) })
    }

    fn prepared(node: &str, config: String, dir: TempDir) -> Self {
        Self {
            daemon: Daemon::new(),
            dir,
            data: TempDir::in_memory(),
            node: node.to_owned(),
            config,
            rpc: [free_port(), free_port()],
            acl: false,
            tls: false,
        }
    }

    /// Its HTTP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.daemon.port()
    }

    /// Its URL, without a token.
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", if self.tls { "consuls" } else { "consul" }, self.port())
    }

    /// Its directory.
    pub fn dir(&self) -> &TempDir {
        &self.dir
    }

    /// A request to its HTTP API, without TLS, with all rights; `None` when the server does not answer.
    pub fn ask(&self, method: &str, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port())).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        let token = if self.acl { CONSUL_MANAGEMENT } else { "" };
        let request =
            format!("{method} {path} HTTP/1.0\r\nHost: consul\r\nX-Consul-Token: {token}\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// The ids of its sessions.
    pub fn sessions(&self) -> Vec<String> {
        let (_, list) = self.ask("GET", "/v1/session/list").unwrap_or_default();
        let ids = list.split("\"ID\":\"").skip(1);
        ids.filter_map(|rest| Some(rest.split('"').next()?.to_owned())).collect()
    }

    /// Ends all of its sessions, as an operator would.
    pub fn destroy_sessions(&self) {
        for id in self.sessions() {
            let answer = self.ask("PUT", &format!("/v1/session/destroy/{id}"));
            assert_eq!(answer.map(|(status, _)| status), Some(200), "the session is destroyed");
        }
    }

    /// The program with the way to this agent in its environment.
    pub fn command(&self) -> Command {
        let mut command = Command::new(program());
        let scheme = if self.tls { "https" } else { "http" };
        command.env("CONSUL_HTTP_ADDR", format!("{scheme}://127.0.0.1:{}", self.port()));
        if self.tls {
            let file = |name: &str| self.dir.join(name);
            command.env("CONSUL_CACERT", file("ca.crt"));
            command.env("CONSUL_CLIENT_CERT", file("client.crt")).env("CONSUL_CLIENT_KEY", file("client.key"));
        }
        if self.acl {
            command.env("CONSUL_HTTP_TOKEN", CONSUL_MANAGEMENT);
        }
        command
    }

    /// What the command `consul` says.
    pub fn cli(&self, args: &[&str]) -> Ended {
        Proc::start(self.command().args(args)).wait()
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.daemon.pid()
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.daemon.kill();
    }

    /// Starts it again on its ports and directory.
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

impl Server for ConsulServer {
    const WHAT: &str = "the Consul agent";

    fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    fn daemon_mut(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    fn start_command(&self) -> Command {
        let ([server, serf], port) = (self.rpc, i32::from(self.port()));
        let (http, https) = if self.tls { (-1, port) } else { (port, -1) };
        let config = format!(
            "server = true\nnode_name = {:?}\nbind_addr = \"127.0.0.1\"\nclient_addr = \"127.0.0.1\"\n\
             disable_update_check = true\ndisable_host_node_id = true\nperformance {{ raft_multiplier = 1 }}\n\
             ports {{ http = {http}, https = {https}, server = {server}, serf_lan = {serf}, serf_wan = -1, dns = -1, grpc = -1, \
             grpc_tls = -1 }}\nui_config {{ enabled = false }}\nlog_level = \"warn\"\n{}\n",
            self.node, self.config
        );
        let file = self.dir.write("agent.hcl", &config);
        let mut command = Command::new(program());
        command.arg("agent").arg("-config-file").arg(file).arg("-data-dir").arg(self.data.path());
        command
    }

    fn is_ready(&self) -> bool {
        if self.tls {
            // Only its client certificates are let in; who may not ask is told so once it listens.
            return self.cli(&["operator", "raft", "list-peers"]).stdout.contains("leader");
        }
        matches!(self.ask("GET", "/v1/kv/nothing?consistent="), Some((404 | 403, _)))
    }

    fn move_on(&mut self) {
        self.daemon.move_on();
        self.rpc = [free_port(), free_port()];
    }
}

/// Three Consul servers that elect a leader among them.
#[derive(Debug)]
pub struct ConsulCluster {
    /// All of them.
    pub members: Vec<ConsulServer>,
}

impl ConsulCluster {
    /// Starts them, and waits until all know a leader.
    #[allow(clippy::new_without_default, reason = "it starts processes: not a value to have by default")]
    pub fn new() -> Self {
        let members = ConsulServer::begin_together(|| {
            let prepared = |n: usize| ConsulServer::prepared(&format!("n{n}"), String::new(), TempDir::new());
            let mut members: Vec<ConsulServer> = (0..3).map(prepared).collect();
            let serf: Vec<String> = members.iter().map(|member| format!("\"127.0.0.1:{}\"", member.rpc[1])).collect();
            // A dead server stays a member: it will be back.
            let config = format!(
                "bootstrap_expect = 3\nretry_join = [{}]\nretry_interval = \"1s\"\nautopilot {{ cleanup_dead_servers = false }}",
                serf.join(", ")
            );
            members.iter_mut().for_each(|member| member.config.clone_from(&config));
            members
        });
        Self { members }
    }

    /// Keeps them for the rest of this process.
    pub fn share(self) -> &'static Self {
        let pids: Vec<i32> = self.members.iter().map(|member| member.daemon.pid()).collect();
        let dirs: Vec<&Path> = self.members.iter().flat_map(|m| [m.dir.path(), m.data.path()]).collect();
        end_with_us(&pids, &dirs);
        Box::leak(Box::new(self))
    }

    /// Which one leads, as the others say; not the one that stands still.
    pub fn leader(&self, but: Option<usize>) -> usize {
        crate::found(SOON * 2, "a leader is elected", || {
            let others = self.members.iter().enumerate().filter(|(n, _)| Some(*n) != but);
            let said = others.filter_map(|(_, member)| member.ask("GET", "/v1/status/leader")).map(|(_, said)| said);
            let leads = |said: &str| {
                self.members.iter().position(|member| said.contains(&format!("127.0.0.1:{}\"", member.rpc[0])))
            };
            said.filter_map(|said| leads(&said)).find(|leader| Some(*leader) != but)
        })
    }
}
