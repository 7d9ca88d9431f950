//! Real ZooKeeper servers on free loopback ports, alone or as an ensemble of three.

use crate::daemon::{Daemon, Server, end_with_us};
use crate::{SOON, Signal, TempDir, eventually, free_port};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Where Debian keeps what a server is made of.
const JARS: [&str; 2] = ["/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-nop.jar"];

/// A server's own short time, so that sessions can be short too; the longest session is 2 minutes.
const CONFIG: &str = "tickTime=250\ninitLimit=20\nsyncLimit=8\nminSessionTimeout=500\nmaxSessionTimeout=120000\n\
    clientPortAddress=127.0.0.1\nadmin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\nforceSync=no\n";

/// A ZooKeeper server of a test's own; killed when dropped.
#[derive(Debug)]
pub struct ZooKeeperServer {
    daemon: Daemon,
    config: String,
    /// Options of the Java machine, such as `-Dreadonlymode.enabled=true`.
    java: Vec<String>,
    dir: TempDir,
}

impl ZooKeeperServer {
    /// Starts one that stands alone.
    #[allow(clippy::new_without_default, reason = "it starts a process: not a value to have by default")]
    pub fn new() -> Self {
        Self::with("")
    }

    /// Starts one with more lines of configuration.
    pub fn with(config: &str) -> Self {
        Self::prepared(config, None, &[]).begin()
    }

    fn prepared(config: &str, id: Option<usize>, java: &[&str]) -> Self {
        let dir = TempDir::new();
        if let Some(id) = id {
            dir.write("data/myid", &id.to_string());
        }
        let java = java.iter().map(|o| (*o).to_owned()).collect();
        Self { daemon: Daemon::new(), config: config.to_owned(), java, dir }
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.daemon.port()
    }

    /// Its URL, without a login.
    pub fn url(&self) -> String {
        format!("zookeeper://127.0.0.1:{}", self.port())
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.daemon.pid()
    }

    /// The answer to a word of four letters, such as `mntr`; nothing when it does not answer.
    pub fn ask(&self, word: &str) -> String {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port()));
        let answer = TcpStream::connect_timeout(&address, Duration::from_secs(2)).and_then(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.write_all(word.as_bytes())?;
            let mut text = String::new();
            stream.read_to_string(&mut text).map(|_| text)
        });
        answer.unwrap_or_default()
    }

    /// `standalone`, `leader` or `follower`; `None` when it does not serve clients.
    pub fn mode(&self) -> Option<String> {
        self.ask("srvr").lines().find_map(|line| Some(line.strip_prefix("Mode: ")?.to_owned()))
    }

    /// A number of `mntr`, such as `zk_packets_received`.
    pub fn counter(&self, name: &str) -> u64 {
        let text = self.ask("mntr");
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("mntr has no number {name}: {text}"))
    }

    /// Kills it, as a power failure would; its data stays.
    pub fn kill(&mut self) {
        self.daemon.kill();
    }

    /// Starts it again after `kill`, without waiting until it serves clients.
    pub fn restart(&mut self) {
        self.spawn();
    }

    /// Starts it again after `kill`.
    pub fn start(&mut self) {
        self.start_again();
    }

    /// Loses what it has on disk, once it is killed; its number in the ensemble stays.
    pub fn wipe(&self) {
        // It may have written nothing.
        let _ = std::fs::remove_dir_all(self.dir.join("data/version-2"));
    }

    /// Starts it again, if it can read its data.
    pub fn try_start(&mut self) -> bool {
        self.try_start_again()
    }

    /// Its newest log.
    pub fn log(&self) -> Option<PathBuf> {
        self.dir.newest("data/version-2", |name| name.starts_with("log."))
    }

    /// Stops it for as long as the answer lives: it neither answers nor closes anything.
    pub fn pause(&self) -> Paused {
        let pid = self.pid();
        crate::signal(pid, Signal::STOP);
        eventually(SOON, "the server stands still", || crate::is_stopped(pid));
        Paused(pid)
    }

    /// Keeps it for the rest of this process.
    pub fn share(self) -> &'static Self {
        end_with_us(&[self.pid()], &[self.dir.path()]);
        Box::leak(Box::new(self))
    }
}

impl Server for ZooKeeperServer {
    const WHAT: &str = "ZooKeeper";

    fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    fn daemon_mut(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    fn start_command(&self) -> Command {
        for jar in JARS {
            assert!(
                Path::new(jar).exists(),
                "{jar} is missing: apt-get install --no-install-recommends zookeeper default-jre-headless"
            );
        }
        let data = self.dir.join("data");
        let text = format!("{CONFIG}dataDir={}\nclientPort={}\n{}\n", data.display(), self.port(), self.config);
        let file = self.dir.write("zoo.cfg", &text);
        let mut command = Command::new("java");
        // A small machine that starts fast.
        command.args(["-Xmx256m", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
        command.args(&self.java).args(["-cp", &JARS.join(":")]);
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(file);
        command
    }

    fn is_ready(&self) -> bool {
        self.mode().is_some()
    }
}

/// A process that stands still, until this is dropped.
#[derive(Debug)]
pub struct Paused(i32);

impl Drop for Paused {
    fn drop(&mut self) {
        crate::signal(self.0, Signal::CONT);
    }
}

/// Three servers that elect a leader among them.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    /// All of them, in order of their numbers.
    pub servers: Vec<ZooKeeperServer>,
}

impl ZooKeeperEnsemble {
    /// Starts them, and waits until all serve clients.
    #[allow(clippy::new_without_default, reason = "it starts processes: not a value to have by default")]
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// Starts them with options for the Java machine.
    pub fn with(java: &[&str]) -> Self {
        Self::through(java, |ports| ports)
    }

    /// The same, with a way to each server for the others: it is given the server's two ports, and answers the way's.
    pub fn through(java: &[&str], mut way: impl FnMut([u16; 2]) -> [u16; 2]) -> Self {
        let servers = ZooKeeperServer::begin_together(|| {
            let own = [0; 3].map(|_| [free_port(), free_port()]);
            let told = own.map(&mut way);
            // A server listens where its own line says, and finds the others where their lines say.
            let config = |me: usize| -> String {
                let ports = |id: usize| if id == me { own[id] } else { told[id] };
                let line = |id: usize| format!("server.{}=127.0.0.1:{}:{}\n", id + 1, ports(id)[0], ports(id)[1]);
                (0..3).map(line).collect()
            };
            (0..3).map(|me| ZooKeeperServer::prepared(&config(me), Some(me + 1), java)).collect()
        });
        Self { servers }
    }

    /// The URL with all of them.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        format!("zookeeper://{}", hosts.join(","))
    }

    /// Which one leads.
    pub fn leader(&self) -> usize {
        crate::found(SOON, "a leader is elected", || {
            self.servers.iter().position(|server| server.mode().as_deref() == Some("leader"))
        })
    }

    /// Waits until all of them serve clients.
    pub fn whole(&self) {
        eventually(SOON * 2, "all servers are back", || self.servers.iter().all(|server| server.mode().is_some()));
    }

    /// Waits until all but one serve clients.
    pub fn whole_but(&self, one: usize) {
        eventually(SOON * 2, "a quorum is back", || {
            let mut others = self.servers.iter().enumerate().filter(|(i, _)| *i != one);
            others.all(|(_, server)| server.mode().is_some_and(|mode| mode == "leader" || mode == "follower"))
        });
    }

    /// Keeps them for the rest of this process.
    pub fn share(self) -> &'static Self {
        let pids: Vec<i32> = self.servers.iter().map(ZooKeeperServer::pid).collect();
        let dirs: Vec<&Path> = self.servers.iter().map(|server| server.dir.path()).collect();
        end_with_us(&pids, &dirs);
        Box::leak(Box::new(self))
    }
}
