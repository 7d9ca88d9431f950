//! Several Redis servers that belong together: replicas, Sentinels, a Cluster.

use crate::daemon::end_with_us;
use crate::redis::{cli, program};
use crate::{Certificates, Proc, RedisServer, SOON, TempDir, eventually, free_port, listens};

/// A primary and its replicas.
#[derive(Debug)]
pub struct RedisReplicas {
    /// The primary.
    pub primary: RedisServer,
    /// Its replicas.
    pub replicas: Vec<RedisServer>,
}

impl RedisReplicas {
    /// Starts them and waits until every replica is in step.
    pub fn new(count: usize) -> Self {
        Self::of(count, RedisServer::with)
    }

    fn of(count: usize, server: impl Fn(&[&str]) -> RedisServer) -> Self {
        let primary = server(&["--repl-diskless-sync-delay", "0"]);
        let port = primary.port().to_string();
        let options = ["--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", &port];
        let replicas = (0..count).map(|_| server(&options)).collect();
        let group = Self { primary, replicas };
        group.in_step(count);
        group
    }

    /// Keeps them for the rest of this process.
    pub fn share(self) -> &'static Self {
        let group: &'static Self = Box::leak(Box::new(self));
        let servers = || std::iter::once(&group.primary).chain(&group.replicas);
        let dirs: Vec<_> = servers().map(|server| server.dir().path()).collect();
        end_with_us(&servers().map(RedisServer::pid).collect::<Vec<_>>(), &dirs);
        group
    }

    /// Waits until so many replicas are in step with the primary.
    pub fn in_step(&self, count: usize) {
        eventually(SOON, "the replicas are in step", || {
            self.primary.cli(&["INFO", "replication"]).matches("state=online").count() >= count
                && self.primary.confirms(count)
                && self.replicas.iter().filter(|r| r.info("master_link_status").as_deref() == Some("up")).count()
                    >= count
        });
    }
}

/// A primary, a replica, and three Sentinels that watch them.
#[derive(Debug)]
pub struct RedisSentinel {
    /// What they watch.
    pub servers: RedisReplicas,
    sentinels: Vec<Proc>,
    ports: Vec<u16>,
    dir: TempDir,
    login: Vec<String>,
}

impl RedisSentinel {
    /// The name the Sentinels give the primary.
    pub const NAME: &'static str = "main";

    /// Starts them and waits until they know each other.
    #[allow(clippy::new_without_default, reason = "it starts processes: not a value to have by default")]
    pub fn new() -> Self {
        Self::of(RedisReplicas::new(1), None)
    }

    /// The same over TLS, on all sides.
    pub fn with_tls(certificates: &Certificates) -> Self {
        let servers = RedisReplicas::of(1, |options| RedisServer::with_certificates(certificates, options));
        Self::of(servers, Some(certificates))
    }

    fn of(servers: RedisReplicas, certificates: Option<&Certificates>) -> Self {
        let dir = TempDir::new();
        let (listen, login) = match certificates {
            None => ("port", Vec::new()),
            Some(certificates) => ("tls-port", certificates.cli()),
        };
        let tls = certificates.map(Certificates::server).unwrap_or_default();
        let tls: String = tls.iter().map(|[key, value]| format!("{key} {value}\n")).collect();
        let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let start = |port: &u16| {
            let (name, at) = (Self::NAME, servers.primary.port());
            let text = format!(
                "{tls}{listen} {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {name} 127.0.0.1 {at} 2\n\
                 sentinel down-after-milliseconds {name} 1000\nsentinel failover-timeout {name} 5000\n",
                dir.path().display()
            );
            let file = dir.write(&format!("{port}.conf"), &text);
            Proc::start(program("redis-server").arg(file).arg("--sentinel"))
        };
        let sentinels = ports.iter().map(start).collect();
        ports.iter().for_each(|port| listens(*port));
        let group = Self { servers, sentinels, ports, dir, login };
        eventually(SOON, "the Sentinels know each other", || {
            group.ports.iter().all(|port| {
                let text = cli(*port, &group.login, &["INFO", "sentinel"]);
                text.contains("slaves=1") && text.contains("sentinels=3")
            })
        });
        group
    }

    /// Their URL.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+sentinel://{}/{}", hosts.join(","), Self::NAME)
    }

    /// The port of the primary, as the Sentinels see it.
    pub fn primary_port(&self) -> u16 {
        let text = cli(self.ports[0], &self.login, &["SENTINEL", "get-master-addr-by-name", Self::NAME]);
        text.lines().nth(1).and_then(|port| port.trim().parse().ok()).expect("a port")
    }

    /// Keeps them for the rest of this process.
    pub fn share(self) -> &'static Self {
        let group: &'static Self = Box::leak(Box::new(self));
        let servers = std::iter::once(&group.servers.primary).chain(&group.servers.replicas);
        let pids: Vec<i32> = servers.map(RedisServer::pid).chain(group.sentinels.iter().map(Proc::pid)).collect();
        end_with_us(&pids, &[group.dir.path(), group.servers.primary.dir().path()]);
        group
    }
}

/// A Cluster of primaries, each with as many replicas.
#[derive(Debug)]
pub struct RedisCluster {
    /// All of its servers, the first primaries first.
    pub nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts three primaries with so many replicas each, and waits until they agree.
    pub fn new(replicas: usize) -> Self {
        Self::of(replicas, &[], RedisServer::with)
    }

    /// The same over TLS, on all sides.
    pub fn with_tls(certificates: &Certificates, replicas: usize) -> Self {
        Self::of(replicas, &certificates.cli(), |options| {
            RedisServer::with_certificates(certificates, &[options, &["--tls-cluster", "yes"]].concat())
        })
    }

    fn of(replicas: usize, login: &[String], server: impl Fn(&[&str]) -> RedisServer) -> Self {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0"];
        let nodes: Vec<RedisServer> = (0..3 * (replicas + 1)).map(|_| server(&options)).collect();
        let mut command = program("redis-cli");
        command.args(login);
        command.args(["--cluster", "create"]).args(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())));
        command.args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"]);
        let made = Proc::start(&mut command).wait();
        assert_eq!(made.code, Some(0), "the Cluster is not made: {} {}", made.stdout, made.stderr);
        let cluster = Self { nodes };
        cluster.agrees();
        cluster
    }

    /// Waits until every server says that all is well.
    pub fn agrees(&self) {
        eventually(SOON, "the Cluster agrees", || {
            self.nodes.iter().filter(|node| node.pid() != 0).all(|node| {
                node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
                    && node.cli(&["CLUSTER", "SLOTS"]).matches("127.0.0.1").count() >= self.nodes.len()
            })
        });
    }

    /// Its URL, naming two of its servers.
    pub fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", self.nodes[0].port(), self.nodes[1].port())
    }

    /// Keeps it for the rest of this process.
    pub fn share(self) -> &'static Self {
        let cluster: &'static Self = Box::leak(Box::new(self));
        let pids: Vec<i32> = cluster.nodes.iter().map(RedisServer::pid).collect();
        let dirs: Vec<_> = cluster.nodes.iter().map(|node| node.dir().path()).collect();
        end_with_us(&pids, &dirs);
        cluster
    }
}
