//! The stores under test: real servers, and what can be done to them.

mod quorum;
mod redis;
mod sql;
mod sqlite;

use crate::history::Class;
use clap::ValueEnum;
use fastrand::Rng;
use std::time::Duration;

/// A password for stores that have one. The checkers look for it in everything that a run has written.
pub(crate) const SECRET: &str = "torture-secret";

/// A store with its servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub(crate) enum Mode {
    /// One file on this machine.
    Sqlite,
    /// One server that writes everything to disk before it answers.
    Redis1,
    /// A primary and a replica, promoted when the primary dies.
    RedisPair,
    /// The same, with `wait_replicas=1`: a grant counts only once the replica has it.
    RedisPairWait,
    /// Three primaries with a replica each.
    RedisCluster,
    /// Five independent servers.
    Redlock5,
    /// One server.
    Postgres,
    /// A primary and an asynchronous standby, promoted when the primary dies.
    PostgresPair,
    /// One server.
    Mariadb,
    /// Three servers.
    Etcd3,
    /// Three servers.
    Zookeeper3,
    /// Three servers; each worker talks to one.
    Consul3,
}

/// What a mode promises, and what can be done to it.
#[derive(Clone, Debug)]
pub(crate) struct Traits {
    pub(crate) ttl: Duration,
    /// A waiter gets in within the TTL and this, once all is well.
    pub(crate) bound: Duration,
    pub(crate) classes: Vec<Class>,
    /// Faults which may cost exclusion, by what the store promises. An operator's break always does, until its holder
    /// learns of it.
    pub(crate) excuses: Vec<Class>,
    /// Whether waiters are served in order.
    pub(crate) fifo: bool,
    /// Whether a fault of `excuses` may take the store's own registers back to an earlier state.
    pub(crate) forgets: bool,
}

/// Faults that need nothing of the store.
const OF_WORKERS: [Class; 6] =
    [Class::PauseWorker, Class::KillWorker, Class::Suspend, Class::Starve, Class::Admin, Class::Client];

/// Faults that need a way from worker to server.
const OF_LINKS: [Class; 2] = [Class::Partition, Class::Delay];

impl Mode {
    /// As on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    pub(crate) fn traits(self) -> Traits {
        use Class::{Admin, Clock, Disk, KillNode, Partition, PauseLeader, PauseNode, WipeNode};
        let (classes, excuses): (&[Class], &[Class]) = match self {
            Self::Sqlite => (&[Disk], &[]),
            Self::Redis1 => (&[PauseNode, KillNode, WipeNode, Clock], &[WipeNode, Clock]),
            // Replication is asynchronous: the replica may not know of the last grants.
            Self::RedisPair => (&[PauseNode, KillNode], &[KillNode]),
            // A grant or renewal that the replica does not have is not believed.
            Self::RedisPairWait => (&[PauseNode, KillNode], &[]),
            Self::RedisCluster => (&[PauseNode, PauseLeader, KillNode], &[KillNode, PauseNode, PauseLeader]),
            Self::Redlock5 => (&[PauseNode, KillNode, WipeNode, Clock], &[WipeNode, Clock]),
            Self::Postgres | Self::Mariadb => (&[PauseNode, KillNode, Clock], &[Clock]),
            Self::PostgresPair => (&[PauseNode, KillNode], &[KillNode]),
            Self::Etcd3 | Self::Consul3 => (&[PauseNode, PauseLeader, KillNode], &[]),
            Self::Zookeeper3 => (&[PauseNode, PauseLeader, KillNode, WipeNode], &[]),
        };
        // A worker of the Cluster follows the servers' own addresses, so nothing stands between them.
        let links: &[Class] = if matches!(self, Self::Sqlite | Self::RedisCluster) { &[] } else { &OF_LINKS };
        debug_assert!(!excuses.contains(&Partition), "a cut alone never costs exclusion");
        let seconds = Duration::from_secs;
        let (ttl, bound) = match self {
            Self::Etcd3 => (seconds(2), seconds(5)),
            // The session of a dead worker, the lag of a follower, an election.
            Self::Zookeeper3 => (seconds(2), seconds(7)),
            // The server believes in a dead session for up to twice its TTL, and delays the lock after it.
            Self::Consul3 => (seconds(10), seconds(40)),
            // Not shorter: a busy machine may leave a process alone for a second, and that would be a loss without a fault.
            Self::Redlock5 | Self::RedisCluster => (seconds(2), seconds(2)),
            _ => (seconds(2), seconds(1)),
        };
        Traits {
            ttl,
            bound,
            classes: [&OF_WORKERS, links, classes].concat(),
            excuses: [&[Admin], excuses].concat(),
            fifo: !matches!(self, Self::Redlock5 | Self::Consul3),
            forgets: !excuses.is_empty(),
        }
    }

    /// Starts the servers.
    pub(crate) fn start(self) -> Box<dyn Rig> {
        match self {
            Self::Sqlite => Box::new(sqlite::File::new()),
            Self::Redis1 => Box::new(redis::Single::new()),
            Self::RedisPair => Box::new(redis::Pair::new("")),
            Self::RedisPairWait => Box::new(redis::Pair::new("?wait_replicas=1")),
            Self::RedisCluster => Box::new(redis::Cluster::new()),
            Self::Redlock5 => Box::new(redis::Redlock::new()),
            Self::Postgres => Box::new(sql::Postgres::new()),
            Self::PostgresPair => Box::new(sql::Pair::new()),
            Self::Mariadb => Box::new(sql::Mariadb::new()),
            Self::Etcd3 => Box::new(quorum::Etcd::new()),
            Self::Zookeeper3 => Box::new(quorum::ZooKeeper::new()),
            Self::Consul3 => Box::new(quorum::Consul::new()),
        }
    }
}

/// Servers, and what the nemesis does to them. A node is one of `ports`.
pub(crate) trait Rig: Send {
    /// Where the nodes listen now.
    fn ports(&self) -> Vec<u16>;

    /// The URL for a worker that reaches node n at `ports[n]`.
    fn url(&self, ports: &[u16], slot: usize) -> String;

    /// Whether workers go through links; otherwise they follow addresses that the servers tell.
    fn linked(&self) -> bool {
        true
    }

    /// Freezes a node.
    fn pause(&mut self, _node: usize) {}
    /// Lets it go on.
    fn resume(&mut self, _node: usize) {}
    /// Kills a node.
    fn kill(&mut self, _node: usize) {}
    /// Takes away what a killed node had on disk.
    fn wipe(&mut self, _node: usize) {}
    /// Starts a killed node again.
    fn start(&mut self, _node: usize) {}

    /// The node that leads, if there is one.
    fn leader(&self) -> Option<usize> {
        None
    }

    /// Sets the wall clock of a node off by so many seconds.
    fn step_clock(&mut self, _node: usize, _seconds: i64) {}

    /// Leaves no room on the disk.
    fn fill_disk(&mut self) {}
    /// Makes room again.
    fn clear_disk(&mut self) {}

    /// An operator's mistake that this store knows, in a few words; `None` when it knows none.
    fn mistake(&mut self, _rng: &mut Rng) -> Option<String> {
        None
    }

    /// The versions of its servers.
    fn versions(&self) -> Vec<String>;
}

/// The first line that a program prints about its version.
fn version_of(program: &str, argument: &str) -> String {
    let asked = std::process::Command::new(program).arg(argument).output();
    let said = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    said.lines().next().unwrap_or_default().to_owned()
}
