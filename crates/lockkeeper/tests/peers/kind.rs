//! Which libraries there are, how they are started, and what tells them apart.

use super::installed::installed;
use super::rust;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testkit::RedisServer;

/// Which library, and which of its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    RedisPy,
    /// Beside the plain layout: made to poll, since its waiters wait for a signal that only the python-redis-lock
    /// layout sends.
    PythonRedisLock,
    /// Beside its own layout, waiting as it does by itself.
    PythonRedisLockSignals,
    NodeRedlock,
    Rslock,
    Redsync,
    RLock,
    RFencedLock,
    RFairLock,
    RReadLock,
    RWriteLock,
}

impl Kind {
    /// How our locks are kept beside it.
    pub(crate) fn layout(self) -> &'static str {
        match self {
            Self::PythonRedisLockSignals => "python-redis-lock",
            Self::RLock | Self::RFencedLock | Self::RFairLock | Self::RReadLock | Self::RWriteLock => "redisson",
            _ => "plain",
        }
    }

    /// The key of a name of theirs.
    pub(crate) fn key(self, name: &str) -> String {
        match self {
            Self::PythonRedisLock | Self::PythonRedisLockSignals => format!("lock:{name}"),
            _ => name.to_owned(),
        }
    }

    /// The name of our lock for a name of theirs.
    pub(crate) fn ours(self, name: &str) -> String {
        if self == Self::PythonRedisLockSignals { name.to_owned() } else { self.key(name) }
    }

    /// Whether we can share a lock beside it, and count permits.
    pub(crate) fn all_modes(self) -> bool {
        self.layout() != "redisson"
    }

    /// Whether it can hold without a TTL.
    pub(crate) fn endless(self) -> bool {
        matches!(self, Self::RedisPy | Self::PythonRedisLock | Self::PythonRedisLockSignals)
    }

    /// Whether its locks have tokens.
    pub(crate) fn fenced(self) -> bool {
        self == Self::RFencedLock
    }

    /// The shortest TTL it can ask for.
    pub(crate) fn short(self) -> Duration {
        let seconds = matches!(self, Self::PythonRedisLock | Self::PythonRedisLockSignals);
        Duration::from_millis(if seconds { 1000 } else { 300 })
    }

    /// Who holds a key, as a value that does not change while it is held.
    pub(crate) fn holder(self, server: &RedisServer, key: &str) -> String {
        match self.layout() {
            "redisson" => server.cli(&["HKEYS", key]),
            _ => server.cli(&["GET", key]).split(':').take(3).collect::<Vec<_>>().join(":"),
        }
    }

    /// Whether one of our claims waits for a key: it is in line, or watches it.
    pub(crate) fn we_wait(self, server: &RedisServer, key: &str) -> bool {
        match self.layout() {
            "redisson" => server.info("tracking_total_keys").is_some_and(|keys| keys != "0"),
            _ => server.cli(&["EXISTS", &format!("lk:q:{{{key}}}")]) == "1",
        }
    }

    /// A counter that grows while a peer waits.
    pub(crate) fn tries(self, server: &RedisServer) -> u64 {
        server.calls(if self == Self::NodeRedlock { "evalsha" } else { "set" })
    }

    /// Whether a peer waits for a key, compared with the `tries` seen before.
    pub(crate) fn they_wait(self, server: &RedisServer, key: &str, tries: u64) -> bool {
        // A Cluster has channels of a slot as well.
        let channels = |of: &str, channel: &str| !server.cli(&["PUBSUB", of, channel]).is_empty();
        let subscribed = |channel: String| channels("CHANNELS", &channel) || channels("SHARDCHANNELS", &channel);
        match self {
            Self::PythonRedisLockSignals => server.info("blocked_clients").is_some_and(|clients| clients != "0"),
            Self::RLock | Self::RFencedLock => subscribed(format!("redisson_lock__channel:{{{key}}}")),
            Self::RFairLock => subscribed(format!("redisson_lock__channel:{{{key}}}:*")),
            Self::RReadLock | Self::RWriteLock => subscribed(format!("redisson_rwlock:{{{key}}}")),
            _ => self.tries(server) > tries + 2,
        }
    }

    pub(super) fn command(self, ports: &str) -> Command {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers");
        let python = |kind: &str| {
            let mut command = Command::new(installed("python", &["requirements.txt"]).join("bin/python"));
            command.arg(here.join("peer.py")).args([kind, ports]);
            command
        };
        let java = |kind: &str| {
            let place = installed("redisson", &["pom.xml", "src/main/java/Peer.java"]).join("target");
            let mut command = Command::new("java");
            // Small and quick to start; two of them run beside everything else.
            command.args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dslf4j.internal.verbosity=ERROR", "-cp"]);
            command.arg(format!("{0}/classes:{0}/lib/*", place.display())).args(["Peer", kind, ports]);
            command
        };
        match self {
            Self::RedisPy => python("redis-py"),
            Self::PythonRedisLock => python("python-redis-lock"),
            Self::PythonRedisLockSignals => python("python-redis-lock-signals"),
            Self::NodeRedlock => {
                let mut command = Command::new("node");
                let place = installed("node", &["package.json"]);
                command.arg(here.join("peer.mjs")).arg(ports).env("PEERS", place.parent().expect("below the cache"));
                command
            }
            Self::Rslock => {
                let mut command = Command::new(std::env::current_exe().expect("this program has a file"));
                command
                    .args(["--exact", "interop::rslock_in_a_process_of_its_own", "--nocapture"])
                    .env(rust::PORTS, ports);
                command
            }
            Self::Redsync => {
                let mut command = Command::new(installed("redsync", &["go.mod", "go.sum", "main.go"]).join("peer"));
                command.arg(ports);
                command
            }
            Self::RLock => java("lock"),
            Self::RFencedLock => java("fenced"),
            Self::RFairLock => java("fair"),
            Self::RReadLock => java("read"),
            Self::RWriteLock => java("write"),
        }
    }
}
