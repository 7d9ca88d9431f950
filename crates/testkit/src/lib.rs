//! What tests of real processes need: temporary directories, terminals, and processes that are watched, stopped and
//! killed. Tests wait for a condition, not for a time.

mod certificates;
mod consul;
mod counted;
mod daemon;
mod disk;
mod etcd;
mod fuzz;
mod gate;
mod isolated;
mod mysql;
mod mysql_group;
mod network;
mod ports;
mod postgres;
mod postgres_groups;
mod process;
mod prometheus;
mod proxy;
mod pty;
mod redis;
mod redis_groups;
mod server_clock;
mod temp;
mod zookeeper;

pub use certificates::{Certificates, certificates};
pub use consul::{CONSUL_MANAGEMENT, ConsulCluster, ConsulServer};
pub use counted::Counted;
pub use disk::{FreezingDisk, SmallDisk};
pub use etcd::{EtcdCluster, EtcdServer};
pub use fuzz::{fuzz, fuzz_text};
pub use gate::Gate;
pub use isolated::alone;
pub use mysql::MysqlServer;
pub use mysql_group::MysqlGroup;
pub use network::Network;
pub use ports::{free_port, listens};
pub use postgres::PostgresServer;
pub use postgres_groups::{PgBouncer, PgPair};
pub use process::{Ended, Proc};
pub use prometheus::{Prometheus, promtool};
pub use proxy::Proxy;
pub use pty::Pty;
pub use redis::{RedisServer, shared};
pub use redis_groups::{RedisCluster, RedisReplicas, RedisSentinel};
pub use rustix::process::Signal;
pub use server_clock::ProcessClock;
pub use temp::TempDir;
pub use zookeeper::{Paused, ZooKeeperEnsemble, ZooKeeperServer};

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Long enough for anything that happens at all, on a busy machine too.
pub const SOON: Duration = Duration::from_secs(30);

/// For data that is made once for all tests of a program: if that fails, all of them do. For a server with much to read, too.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// For `env`: tests may be started in the background, where a shell makes its children ignore Ctrl-C for good.
pub const DEFAULT_SIGNALS: &str = "--default-signal=HUP,INT,QUIT,TERM,TSTP,TTIN,TTOU";

/// Waits until `condition` holds; panics with `what` when it has not within `limit`.
pub fn eventually(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `look` finds something; panics with `what` when it has not within `limit`.
pub fn found<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let mut seen = None;
    eventually(limit, what, || {
        seen = look();
        seen.is_some()
    });
    seen.expect("eventually() returns only when it was found")
}

/// Where our scripts keep what they have made for the tests.
pub fn cached(path: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|cache| !cache.is_empty()).map(PathBuf::from);
    let home = || Path::new(&std::env::var_os("HOME").expect("HOME or XDG_CACHE_HOME is set")).join(".cache");
    cache.unwrap_or_else(home).join("lockkeeper").join(path)
}

/// Whether a process exists and is not just waiting to be reaped.
pub fn is_alive(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
}

/// Whether a process is stopped by a signal.
pub fn is_stopped(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}

/// Sends a signal to any process; one that is gone is no failure.
pub fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}
