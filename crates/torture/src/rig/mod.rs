//! The stores under test: real servers, and what can be done to them.

mod damage;
mod gateways;
mod mesh;
mod quorum;
mod redis;
mod sql;
mod sqlite;

pub(crate) use damage::Damage;

use crate::history::Class;
use crate::link::Link;
use clap::ValueEnum;
use fastrand::Rng;
use std::path::PathBuf;
use std::process::Command;
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
    /// Two gateways of one PostgreSQL server; each worker talks to one of them.
    Gateways2,
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
    /// Faults which may take the store's data, tokens and registers, back to an earlier state or away. Of an operator's
    /// acts and of disks only those are meant whose words say so.
    pub(crate) forgets: Vec<Class>,
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
        // `Partition` is of links to workers, and between servers; `Disk` of one server's disk.
        use Class::{Admin, Clock, Disk, KillNode, Partition, PauseLeader, PauseNode, WipeNode};
        let (classes, excuses): (&[Class], &[Class]) = match self {
            Self::Sqlite => (&[Disk], &[]),
            Self::Redis1 => (&[PauseNode, KillNode, WipeNode, Clock], &[WipeNode, Clock]),
            // Replication is asynchronous: the replica may not know of the last grants. A cut between the two alone costs
            // nothing: no other server takes over meanwhile.
            Self::RedisPair => (&[PauseNode, KillNode], &[KillNode]),
            // A grant or renewal that the replica does not have is not believed.
            Self::RedisPairWait => (&[PauseNode, KillNode], &[]),
            // A primary that is away from the others is replaced by a replica without its last grants.
            Self::RedisCluster => {
                (&[PauseNode, PauseLeader, KillNode, Partition], &[KillNode, PauseNode, PauseLeader, Partition])
            }
            // A node whose log was torn has forgotten what it promised; with a flipped bit it may remember something else.
            Self::Redlock5 => (&[PauseNode, KillNode, WipeNode, Clock, Disk], &[WipeNode, Clock, Disk]),
            Self::Postgres | Self::Mariadb => (&[PauseNode, KillNode, Clock], &[Clock]),
            Self::PostgresPair => (&[PauseNode, KillNode], &[KillNode]),
            // The nodes are the gateways: they keep nothing, and their clocks are compared with no other.
            Self::Gateways2 => (&[PauseNode, KillNode, Clock], &[]),
            // A server that finds a flipped bit in its log refuses to start.
            Self::Etcd3 => (&[PauseNode, PauseLeader, KillNode, Disk], &[]),
            Self::Consul3 => (&[PauseNode, PauseLeader, KillNode], &[]),
            // A server that has lost what it had logged votes all the same. With another one that is behind, it can elect
            // that one, and what the third has is undone.
            Self::Zookeeper3 => (&[PauseNode, PauseLeader, KillNode, WipeNode, Disk], &[WipeNode, Disk]),
        };
        // A worker of the Cluster follows the servers' own addresses, so nothing stands between them.
        let links: &[Class] = if matches!(self, Self::Sqlite | Self::RedisCluster) { &[] } else { &OF_LINKS };
        let seconds = Duration::from_secs;
        let (ttl, bound) = match self {
            Self::Etcd3 => (seconds(2), seconds(5)),
            // The session of a dead worker, the lag of a follower, an election.
            Self::Zookeeper3 => (seconds(2), seconds(7)),
            // The server believes in a dead session for up to twice its TTL, and delays the lock after it.
            Self::Consul3 => (seconds(10), seconds(40)),
            // Not shorter: a busy machine may leave a process alone for a second, and that would be a loss without a fault.
            Self::Redlock5 | Self::RedisCluster | Self::Gateways2 => (seconds(2), seconds(2)),
            _ => (seconds(2), seconds(1)),
        };
        Traits {
            ttl,
            bound,
            classes: [&OF_WORKERS, links, classes].concat(),
            excuses: [&[Admin], excuses].concat(),
            // Through gateways a claim may wait for others' to be sent together: the order is that of arrival.
            fifo: !matches!(self, Self::Redlock5 | Self::Consul3 | Self::Gateways2),
            forgets: self.forgets(),
        }
    }

    /// What takes data back. A clock takes none: a lost update after a step of the clock alone is a defect everywhere.
    fn forgets(self) -> Vec<Class> {
        use Class::{Admin, Disk, KillNode, Partition, PauseLeader, PauseNode, WipeNode};
        match self {
            // What was answered is on disk: only a wipe or a FLUSHALL takes it away.
            Self::Redis1 => vec![WipeNode, Admin],
            // Of a majority one node may be the only one that knows a token.
            Self::Redlock5 => vec![WipeNode, Disk, Admin],
            // A server that has lost its log may elect one that is behind: see `traits`.
            Self::Zookeeper3 => vec![WipeNode, Disk],
            // The other server takes over without what it has not heard of.
            Self::RedisPair | Self::PostgresPair => vec![KillNode],
            // So does a replica whose primary the others do not hear of.
            Self::RedisCluster => vec![KillNode, PauseNode, PauseLeader, Partition],
            // One file, one server with a log, or a majority that has it: a restart forgets nothing. Nor does a
            // pair that counts only what its replica has.
            Self::Sqlite | Self::Postgres | Self::Mariadb | Self::RedisPairWait => Vec::new(),
            Self::Etcd3 | Self::Consul3 | Self::Gateways2 => Vec::new(),
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
            Self::Gateways2 => Box::new(gateways::Gateways::new()),
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

    /// Cuts a node off from the other servers, or from one of them: what exactly, and the links that are cut.
    fn part(&mut self, _node: usize, _rng: &mut Rng) -> Option<(String, Vec<Link>)> {
        None
    }

    /// Leaves no room on the disk; `false` when it has none of its own.
    fn fill_disk(&mut self) -> bool {
        false
    }
    /// Makes room again.
    fn clear_disk(&mut self) {}
    /// Lets all writes to the disk wait; `false` when it cannot freeze.
    fn freeze_disk(&mut self) -> bool {
        false
    }
    /// Lets them go on.
    fn thaw_disk(&mut self) {}
    /// The log of a node; `None` when such a damage is beyond what the store can bear, or not tried on it.
    fn log(&self, _node: usize, _damage: Damage) -> Option<PathBuf> {
        None
    }
    /// Starts a node whose log is damaged. One that refuses to serve is replaced by one without data, as operators do: then
    /// the answer is `false`.
    fn mend(&mut self, node: usize) -> bool {
        self.start(node);
        true
    }

    /// An operator's mistake that this store knows; `None` when it knows none.
    fn mistake(&mut self, _rng: &mut Rng) -> Option<Mistake> {
        None
    }

    /// Replaces a node by a new one without data, as operators do; `false` when this store's servers cannot leave.
    fn replace(&mut self, _node: usize) -> bool {
        false
    }

    /// The processes of all servers; 0 for those that were killed.
    fn pids(&self) -> Vec<i32> {
        Vec::new()
    }

    /// Commands that each print a number: together, how many entries the store has.
    fn entries(&self) -> Vec<Command> {
        Vec::new()
    }

    /// The versions of its servers.
    fn versions(&self) -> Vec<String>;
}

/// A program that is ended when it does not get an answer.
fn within_seconds(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["5", program]);
    command
}

/// What an operator did to a store.
pub(crate) struct Mistake {
    /// In a few words.
    pub(crate) words: String,
    /// Whether locks may be gone with it; otherwise only connections are.
    pub(crate) takes_locks: bool,
}

impl Mistake {
    fn of_clients(words: impl Into<String>) -> Option<Self> {
        Some(Self { words: words.into(), takes_locks: false })
    }

    fn of_locks(words: impl Into<String>) -> Option<Self> {
        Some(Self { words: words.into(), takes_locks: true })
    }
}

/// The first line that a program prints about its version.
fn version_of(program: &str, argument: &str) -> String {
    let asked = Command::new(program).arg(argument).output();
    let said = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    said.lines().next().unwrap_or_default().to_owned()
}
