//! A store under test: its server, where it listens, what it costs, what it keeps.

use super::Part;
use super::floors::Floor;
use lockkeeper::{Keeper, Result};
use std::path::PathBuf;
use std::time::Duration;
use testkit::{EtcdServer, MysqlServer, PostgresServer, RedisServer, ZooKeeperServer};

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    Sqlite,
    Redis,
    Postgres,
    MariaDb,
    Etcd,
    ZooKeeper,
}

impl Kind {
    pub(crate) const ALL: [Self; 7] =
        [Self::Memory, Self::Sqlite, Self::Redis, Self::Postgres, Self::MariaDb, Self::Etcd, Self::ZooKeeper];

    /// On the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
            Self::MariaDb => "mysql",
            Self::Etcd => "etcd",
            Self::ZooKeeper => "zookeeper",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// In plots and tables.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "SQLite",
            Self::Redis => "Redis",
            Self::Postgres => "PostgreSQL",
            Self::MariaDb => "MariaDB",
            Self::Etcd => "etcd",
            Self::ZooKeeper => "ZooKeeper",
        }
    }
}

/// No server waits for its disk: it would hide what the work costs.
pub(super) enum Server {
    Memory,
    Sqlite(PathBuf),
    Redis(&'static RedisServer),
    Postgres(&'static PostgresServer),
    MariaDb(&'static MysqlServer),
    Etcd(&'static EtcdServer),
    ZooKeeper(&'static ZooKeeperServer),
}

pub(super) struct Subject {
    pub(super) kind: Kind,
    pub(super) server: Server,
}

/// PostgreSQL has a process for each.
const POSTGRES_CONNECTIONS: &str = "max_connections=1300";

impl Subject {
    /// A server that ends with this process, however that ends.
    pub(super) fn start(kind: Kind) -> Self {
        let server = match kind {
            Kind::Memory => Server::Memory,
            Kind::Sqlite => Server::Sqlite(crate::sqlite::scratch()),
            Kind::Redis => Server::Redis(testkit::shared(RedisServer::with(&["--maxclients", "10000"]))),
            Kind::Postgres => {
                let settings = [
                    "fsync=on",
                    "synchronous_commit=off",
                    "shared_buffers=256MB",
                    "autovacuum=on",
                    POSTGRES_CONNECTIONS,
                ];
                Server::Postgres(PostgresServer::with(&settings).share())
            }
            Kind::MariaDb => {
                let options = ["--max-connections=10000", "--innodb-buffer-pool-size=256M"];
                Server::MariaDb(MysqlServer::with(&options).share())
            }
            Kind::Etcd => Server::Etcd(EtcdServer::with(&["--unsafe-no-fsync"]).share()),
            Kind::ZooKeeper => Server::ZooKeeper(ZooKeeperServer::new().share()),
        };
        Self { kind, server }
    }

    pub(super) async fn keeper(&self, ttl: Duration) -> Result<Keeper> {
        let url = match &self.server {
            // Its keepers share what has a name.
            Server::Memory => "memory:growth".to_owned(),
            Server::Sqlite(dir) => format!("sqlite:{}", dir.join("locks.db").display()),
            Server::Redis(server) => server.url(),
            Server::Postgres(server) => server.url(),
            Server::MariaDb(server) => server.url(),
            Server::Etcd(server) => server.url(),
            Server::ZooKeeper(server) => format!("{}/growth?session_timeout=60s", server.url()),
        };
        Keeper::builder().ttl(ttl).connect(url).await
    }

    /// The process whose CPU is the server's.
    pub(super) fn pids(&self) -> Vec<i32> {
        let pid = match &self.server {
            Server::Memory | Server::Sqlite(_) => return Vec::new(),
            Server::Redis(server) => server.pid(),
            Server::Postgres(server) => server.pid(),
            Server::MariaDb(server) => server.pid(),
            Server::Etcd(server) => server.pid(),
            Server::ZooKeeper(server) => server.pid(),
        };
        vec![pid]
    }

    /// What the store keeps outside this process, in bytes.
    pub(super) fn kept(&self) -> Option<f64> {
        let files = |dir: PathBuf, ending: &str| {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            let ours = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(ending));
            ours.filter_map(|entry| Some(entry.metadata().ok()?.len() as f64)).sum::<f64>()
        };
        match &self.server {
            Server::Memory => None,
            Server::Sqlite(dir) => Some(files(dir.clone(), ".db")),
            Server::Redis(server) => server.info("used_memory")?.parse().ok(),
            Server::Postgres(server) => {
                let sizes = "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n \
                    ON n.oid = c.relnamespace WHERE n.nspname = 'lockkeeper' AND c.relkind = 'r'";
                server.try_sql(sizes).ok()?.parse().ok()
            }
            Server::MariaDb(server) => Some(files(server.dir().join("data/test"), ".ibd")),
            Server::Etcd(server) => Some(server.metric("etcd_mvcc_db_total_size_in_use_in_bytes", "")),
            Server::ZooKeeper(server) => Some(server.counter("zk_approximate_data_size") as f64),
        }
    }

    /// The most keepers that the server has connections for.
    pub(super) fn most(&self, part: Part) -> Option<u64> {
        let many = matches!(part, Part::Crowd | Part::Keepers);
        (many && self.kind == Kind::Postgres).then_some(300)
    }

    /// The same work without Lockkeeper, for so many tasks.
    pub(super) async fn floor(&self, tasks: u64) -> Floor {
        Floor::open(&self.server, tasks).await
    }

    pub(super) fn clean(&self) {
        if let Server::Sqlite(dir) = &self.server {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}
