//! The suite of `lockkeeper::conformance` over every store, one line each, and the checks that no store is left out.
//!
//! What a store skips is written down in `docs/conformance-skips.md`; `UPDATE=1` rewrites it.

#[path = "common/gated_detour.rs"]
mod gated;
#[path = "common/skips_page.rs"]
mod skips_page;

use lockkeeper::conformance::CASES;
use lockkeeper::stores::memory::MemoryStore;
use lockkeeper::{Store, conformance_suite};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

conformance_suite!(memory, {
    let root = MemoryStore::new();
    move || Arc::new(root.share()) as Arc<dyn Store>
});

#[cfg(feature = "sqlite")]
conformance_suite!(sqlite, sqlite_file::File::new());

#[cfg(feature = "redis")]
conformance_suite!(redis, redis_servers::Single::new("plain"));
#[cfg(feature = "redis")]
conformance_suite!(redis_redisson, redis_servers::Single::new("redisson"));
#[cfg(feature = "redis")]
conformance_suite!(redis_python_redis_lock, redis_servers::Single::new("python-redis-lock"));
#[cfg(feature = "redis")]
conformance_suite!(redis_replicated, redis_servers::open(&redis_servers::REPLICATED));
#[cfg(feature = "redis")]
conformance_suite!(redis_sentinel, redis_servers::open(&redis_servers::SENTINEL));
#[cfg(feature = "redis")]
conformance_suite!(redis_cluster, redis_servers::open(&redis_servers::CLUSTER));

#[cfg(feature = "redlock")]
conformance_suite!(redlock, redlock_servers::Majority::of(3));

#[cfg(feature = "redlock")]
conformance_suite!(redlock_of_five, redlock_servers::Majority::of(5));

#[cfg(feature = "mysql")]
conformance_suite!(mysql, |case| mysql_servers::At::new("", case));
#[cfg(feature = "mysql")]
conformance_suite!(mysql_shedlock, |case| mysql_servers::At::new("?layout=shedlock", case));

#[cfg(feature = "mysql")]
conformance_suite!(mysql_get_lock, |case| mysql_servers::At::new("?mode=get_lock", case));

#[cfg(feature = "etcd")]
conformance_suite!(etcd, etcd_servers::Single::new(""));
#[cfg(feature = "etcd")]
conformance_suite!(etcd_claim, etcd_servers::Single::new("?lease=claim"));
#[cfg(feature = "etcd")]
conformance_suite!(etcd_cluster, etcd_servers::Cluster(""));
#[cfg(feature = "etcd")]
conformance_suite!(etcd_claim_cluster, etcd_servers::Cluster("?lease=claim"));

#[cfg(feature = "postgres")]
conformance_suite!(postgres, postgres_servers::Single::new(""));
#[cfg(feature = "postgres")]
conformance_suite!(postgres_advisory, postgres_servers::Single::new("?mode=advisory"));
#[cfg(feature = "postgres")]
conformance_suite!(postgres_pooled, postgres_servers::Pooled);

#[cfg(feature = "postgres")]
conformance_suite!(postgres_shedlock, postgres_servers::Single::new("?layout=shedlock"));

#[cfg(feature = "zookeeper")]
conformance_suite!(zookeeper, |case| zookeeper_servers::Single::new(case));
#[cfg(feature = "zookeeper")]
conformance_suite!(zookeeper_ensemble, zookeeper_servers::Ensemble);

/// What every store that is built in leaves out. One line for each suite above.
async fn skips() -> Vec<skips_page::Skips> {
    Vec::from([
        ("memory", memory::skips().await),
        #[cfg(feature = "sqlite")]
        ("sqlite", sqlite::skips().await),
        #[cfg(feature = "redis")]
        ("redis", redis::skips().await),
        #[cfg(feature = "redis")]
        ("redis with layout=redisson", redis_redisson::skips().await),
        #[cfg(feature = "redis")]
        ("redis with layout=python-redis-lock", redis_python_redis_lock::skips().await),
        #[cfg(feature = "redlock")]
        ("redlock", redlock::skips().await),
        #[cfg(feature = "postgres")]
        ("postgres", postgres::skips().await),
        #[cfg(feature = "postgres")]
        ("postgres_advisory", postgres_advisory::skips().await),
        #[cfg(feature = "postgres")]
        ("postgres_shedlock", postgres_shedlock::skips().await),
        #[cfg(feature = "mysql")]
        ("mysql", mysql::skips().await),
        #[cfg(feature = "mysql")]
        ("mysql_get_lock", mysql_get_lock::skips().await),
        #[cfg(feature = "mysql")]
        ("mysql_shedlock", mysql_shedlock::skips().await),
        #[cfg(feature = "etcd")]
        ("etcd", etcd::skips().await),
        #[cfg(feature = "etcd")]
        ("etcd with lease=claim", etcd_claim::skips().await),
        #[cfg(feature = "zookeeper")]
        ("zookeeper", zookeeper::skips().await),
    ])
}

#[cfg(feature = "sqlite")]
mod sqlite_file {
    use lockkeeper::conformance::{Detour, Hook, Subject};
    use lockkeeper::stores::sqlite::{SqliteOptions, SqliteStore};
    use lockkeeper::{HolderId, Store};
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    /// A file in a directory of its own, removed at the end.
    pub(crate) struct File(PathBuf);

    impl File {
        pub(crate) fn new() -> Self {
            let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(HolderId::random().expect("random").to_hex());
            std::fs::create_dir_all(&dir).expect("a directory");
            Self(dir)
        }
    }

    #[async_trait::async_trait]
    impl Subject for File {
        async fn open(&self) -> Arc<dyn Store> {
            Arc::new(SqliteStore::open(self.0.join("locks.db"), SqliteOptions::default()).expect("opened"))
        }

        /// Nothing runs but the stores that were opened: the file is closed once they are gone.
        fn restart(&self) -> Option<Hook<'_>> {
            Some(Box::pin(async {}))
        }

        fn detour(&self) -> Option<Hook<'_, Detour>> {
            Some(Box::pin(async { Detour::by_faults(self.open().await, self.open().await) }))
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            // What a panicking test leaves open is removed all the same.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

#[cfg(feature = "redis")]
mod redis_servers {
    use crate::gated;
    use lockkeeper::Store;
    use lockkeeper::conformance::{Detour, Hook, Subject};
    use lockkeeper::stores::redis::RedisStore;
    use std::sync::{Arc, LazyLock, Mutex};
    use testkit::{RedisCluster, RedisReplicas, RedisSentinel, RedisServer};

    /// Servers that all cases of one suite share.
    pub(crate) static REPLICATED: LazyLock<String> =
        LazyLock::new(|| format!("{}?wait_replicas=1", RedisReplicas::new(1).share().primary.url()));
    pub(crate) static SENTINEL: LazyLock<String> = LazyLock::new(|| RedisSentinel::new().share().url());
    pub(crate) static CLUSTER: LazyLock<String> = LazyLock::new(|| RedisCluster::new(0).share().url());

    async fn connect(url: String) -> Arc<dyn Store> {
        Arc::new(RedisStore::connect(&url).await.expect("connected"))
    }

    /// The store at a URL.
    pub(crate) struct At(&'static str);

    pub(crate) fn open(url: &'static LazyLock<String>) -> At {
        At(url)
    }

    #[async_trait::async_trait]
    impl Subject for At {
        async fn open(&self) -> Arc<dyn Store> {
            connect(self.0.to_owned()).await
        }

        /// A group's members say themselves where they are.
        fn detour(&self) -> Option<Hook<'_, Detour>> {
            self.0.starts_with("redis:").then(|| Box::pin(gated::before(self.0, connect)) as Hook<'_, Detour>)
        }
    }

    /// A server that writes everything to its log, and so survives being killed; and how locks are kept there.
    pub(crate) struct Single(Mutex<RedisServer>, &'static str);

    impl Single {
        pub(crate) fn new(layout: &'static str) -> Self {
            Self(RedisServer::durable().into(), layout)
        }

        fn url(&self) -> String {
            format!("{}?layout={}", self.0.lock().expect("no case panics here").url(), self.1)
        }
    }

    #[async_trait::async_trait]
    impl Subject for Single {
        async fn open(&self) -> Arc<dyn Store> {
            connect(self.url()).await
        }

        fn detour(&self) -> Option<Hook<'_, Detour>> {
            Some(Box::pin(async { gated::before(&self.url(), connect).await }))
        }

        fn restart(&self) -> Option<Hook<'_>> {
            Some(Box::pin(async {
                let mut server = self.0.lock().expect("no case panics here");
                server.kill();
                server.start();
            }))
        }
    }
}

#[cfg(feature = "redlock")]
mod redlock_servers {
    use crate::gated;
    use lockkeeper::Store;
    use lockkeeper::conformance::{Detour, Hook, Subject};
    use lockkeeper::stores::redlock::RedlockStore;
    use std::sync::{Arc, Mutex};
    use testkit::{RedisServer, free_port};

    async fn connect(url: String) -> Arc<dyn Store> {
        Arc::new(RedlockStore::connect(&url).await.expect("connected"))
    }

    /// Servers that have everything on disk before they answer, so that they count although they have just started.
    pub(crate) struct Majority(Mutex<Vec<RedisServer>>);

    impl Majority {
        pub(crate) fn of(nodes: usize) -> Self {
            let server = |_| RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"]);
            Self(Mutex::new((0..nodes).map(server).collect()))
        }

        fn ports(&self) -> Vec<u16> {
            self.0.lock().expect("no case panics here").iter().map(RedisServer::port).collect()
        }
    }

    fn url(ports: &[impl ToString]) -> String {
        let places: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{}", port.to_string())).collect();
        format!("redlock://{}", places.join(","))
    }

    #[async_trait::async_trait]
    impl Subject for Majority {
        async fn open(&self) -> Arc<dyn Store> {
            connect(url(&self.ports())).await
        }

        /// One node is behind the gate; a caller that goes straight has a majority with it and none without.
        fn detour(&self) -> Option<Hook<'_, Detour>> {
            Some(Box::pin(async {
                let (ports, mut few) = (self.ports(), self.ports());
                few[ports.len() / 2 + 1..].fill_with(free_port);
                let late = url(&ports).replacen(&ports[0].to_string(), "GATE", 1);
                gated::between(ports[0], &late, &url(&few), connect).await
            }))
        }

        fn restart(&self) -> Option<Hook<'_>> {
            Some(Box::pin(async {
                for server in self.0.lock().expect("no case panics here").iter_mut() {
                    server.kill();
                    server.start();
                }
            }))
        }
    }
}

#[cfg(feature = "mysql")]
mod mysql_servers {
    use crate::gated;
    use lockkeeper::Store;
    use lockkeeper::conformance::{Case, Detour, Hook, Need, Subject};
    use lockkeeper::stores::mysql::{GetLockStore, MysqlStore, ShedLockStore};
    use std::sync::{Arc, LazyLock, Mutex};
    use testkit::MysqlServer;

    /// One server for all cases but those that restart it: starting one takes seconds.
    static SHARED: LazyLock<&'static MysqlServer> = LazyLock::new(|| MysqlServer::new().share());

    /// The store with these options, on the shared server or on one of its own.
    pub(crate) struct At(&'static str, Option<Mutex<MysqlServer>>);

    impl At {
        pub(crate) fn new(options: &'static str, case: Case) -> Self {
            Self(options, case.asks_for(Need::Restart).then(|| MysqlServer::new().into()))
        }
    }

    impl At {
        fn url(&self) -> String {
            let url = match &self.1 {
                Some(own) => own.lock().expect("no case panics here").url(),
                None => SHARED.url(),
            };
            // A MySQL has TLS, which takes longer to begin than the shortest leases here wait; other tests are about it.
            format!("{url}{}{}ssl-mode=disabled", self.0, if self.0.is_empty() { '?' } else { '&' })
        }
    }

    async fn connect(url: String) -> Arc<dyn Store> {
        if url.contains("get_lock") {
            return Arc::new(GetLockStore::connect(&url).await.expect("connected"));
        }
        if url.contains("shedlock") {
            return Arc::new(ShedLockStore::connect(&url).await.expect("connected"));
        }
        Arc::new(MysqlStore::connect(&url).await.expect("connected"))
    }

    #[async_trait::async_trait]
    impl Subject for At {
        async fn open(&self) -> Arc<dyn Store> {
            connect(self.url()).await
        }

        fn detour(&self) -> Option<Hook<'_, Detour>> {
            Some(Box::pin(async { gated::before(&self.url(), connect).await }))
        }

        fn restart(&self) -> Option<Hook<'_>> {
            Some(Box::pin(async {
                let mut server = self.1.as_ref().expect("a case that restarts asks for it").lock().expect("no panic");
                server.kill();
                server.start();
            }))
        }
    }
}

#[cfg(feature = "etcd")]
mod etcd_servers {
    use crate::gated;
    use lockkeeper::Store;
    use lockkeeper::conformance::{Detour, Hook, Subject};
    use lockkeeper::stores::etcd::EtcdStore;
    use std::sync::{Arc, LazyLock, Mutex};
    use testkit::{EtcdCluster, EtcdServer};

    async fn connect(url: String) -> Arc<dyn Store> {
        Arc::new(EtcdStore::connect(&url).await.expect("connected"))
    }

    /// A server of each case's own, which can be restarted, and what the URL adds.
    pub(crate) struct Single(Mutex<EtcdServer>, &'static str);

    impl Single {
        pub(crate) fn new(kind: &'static str) -> Self {
            Self(EtcdServer::new().into(), kind)
        }

        fn url(&self) -> String {
            self.0.lock().expect("no case panics here").url() + self.1
        }
    }

    #[async_trait::async_trait]
    impl Subject for Single {
        async fn open(&self) -> Arc<dyn Store> {
            connect(self.url()).await
        }

        fn detour(&self) -> Option<Hook<'_, Detour>> {
            Some(Box::pin(async { gated::before(&self.url(), connect).await }))
        }

        fn restart(&self) -> Option<Hook<'_>> {
            Some(Box::pin(async {
                let mut server = self.0.lock().expect("no case panics here");
                server.kill();
                server.start();
            }))
        }
    }

    /// Three servers that all cases share, and what the URL adds.
    pub(crate) struct Cluster(pub(crate) &'static str);

    static SHARED: LazyLock<String> = LazyLock::new(|| EtcdCluster::new().share().url());

    #[async_trait::async_trait]
    impl Subject for Cluster {
        async fn open(&self) -> Arc<dyn Store> {
            connect(SHARED.clone() + self.0).await
        }
    }
}

#[cfg(feature = "postgres")]
mod postgres_servers {
    use crate::gated;
    use lockkeeper::Store;
    use lockkeeper::conformance::{Detour, Hook, Subject};
    use lockkeeper::stores::postgres::{AdvisoryStore, PostgresStore, ShedLockStore};
    use std::sync::{Arc, Condvar, LazyLock, Mutex};
    use testkit::{PgBouncer, PostgresServer};

    /// One server for all cases: a start takes longer than most of them. It is restarted when every case that runs has
    /// asked for that; until then no further case begins.
    struct Shared {
        server: PostgresServer,
        running: u32,
        asking: u32,
        restarts: u64,
    }

    static SHARED: LazyLock<Mutex<Shared>> = LazyLock::new(|| {
        let server = PostgresServer::with(&["max_connections=400"]);
        server.end_with_us();
        Mutex::new(Shared { server, running: 0, asking: 0, restarts: 0 })
    });
    static CHANGED: Condvar = Condvar::new();

    /// One of the kinds of lock on that server: what the URL adds.
    pub(crate) struct Single(&'static str);

    impl Single {
        pub(crate) fn new(kind: &'static str) -> Self {
            let mut shared = SHARED.lock().expect("no case panics here");
            while shared.asking > 0 {
                shared = CHANGED.wait(shared).expect("no case panics here");
            }
            shared.running += 1;
            Self(kind)
        }
    }

    impl Drop for Single {
        fn drop(&mut self) {
            SHARED.lock().expect("no case panics here").running -= 1;
            CHANGED.notify_all();
        }
    }

    impl Single {
        fn url(&self) -> String {
            SHARED.lock().expect("no case panics here").server.url() + self.0
        }
    }

    async fn connect(url: String) -> Arc<dyn Store> {
        match url.split_once('?').map_or("", |(_, options)| options) {
            "mode=advisory" => Arc::new(AdvisoryStore::connect(&url).await.expect("connected")),
            "layout=shedlock" => Arc::new(ShedLockStore::connect(&url).await.expect("connected")),
            _ => Arc::new(PostgresStore::connect(&url).await.expect("connected")),
        }
    }

    #[async_trait::async_trait]
    impl Subject for Single {
        async fn open(&self) -> Arc<dyn Store> {
            connect(self.url()).await
        }

        fn detour(&self) -> Option<Hook<'_, Detour>> {
            Some(Box::pin(async { gated::before(&self.url(), connect).await }))
        }

        fn restart(&self) -> Option<Hook<'_>> {
            Some(Box::pin(async {
                let mut shared = SHARED.lock().expect("no case panics here");
                shared.asking += 1;
                CHANGED.notify_all();
                let before = shared.restarts;
                while shared.restarts == before {
                    if shared.asking == shared.running {
                        shared.server.kill();
                        shared.server.start();
                        shared.restarts += 1;
                        CHANGED.notify_all();
                    } else {
                        shared = CHANGED.wait(shared).expect("no case panics here");
                    }
                }
                shared.asking -= 1;
                CHANGED.notify_all();
            }))
        }
    }

    /// Behind a pooler with few connections to a server of its own.
    pub(crate) struct Pooled;

    static POOLED: LazyLock<String> = LazyLock::new(|| PgBouncer::new(PostgresServer::new().share(), 8).share().url());

    #[async_trait::async_trait]
    impl Subject for Pooled {
        async fn open(&self) -> Arc<dyn Store> {
            connect(POOLED.clone()).await
        }

        fn detour(&self) -> Option<Hook<'_, Detour>> {
            Some(Box::pin(gated::before(&POOLED, connect)))
        }
    }
}

#[cfg(feature = "zookeeper")]
mod zookeeper_servers {
    use lockkeeper::Store;
    use lockkeeper::conformance::{Case, Hook, Need, Subject};
    use lockkeeper::stores::zookeeper::ZooKeeperStore;
    use std::sync::{Arc, LazyLock, Mutex};
    use testkit::{ZooKeeperEnsemble, ZooKeeperServer};

    static SHARED: LazyLock<&ZooKeeperServer> = LazyLock::new(|| ZooKeeperServer::new().share());
    static ENSEMBLE: LazyLock<&ZooKeeperEnsemble> = LazyLock::new(|| ZooKeeperEnsemble::new().share());

    async fn connect(url: &str) -> Arc<dyn Store> {
        let url = format!("{url}/conformance?follower_lag=1s");
        Arc::new(ZooKeeperStore::connect(&url).await.expect("connected"))
    }

    /// One server for all cases, and one of its own for a case that restarts it: they take a second each to start.
    pub(crate) enum Single {
        Shared,
        Own(Mutex<ZooKeeperServer>),
    }

    impl Single {
        pub(crate) fn new(case: Case) -> Self {
            if case.asks_for(Need::Restart) { Self::Own(ZooKeeperServer::new().into()) } else { Self::Shared }
        }
    }

    #[async_trait::async_trait]
    impl Subject for Single {
        async fn open(&self) -> Arc<dyn Store> {
            let url = match self {
                Self::Shared => SHARED.url(),
                Self::Own(server) => server.lock().expect("no case panics here").url(),
            };
            connect(&url).await
        }

        fn restart(&self) -> Option<Hook<'_>> {
            Some(Box::pin(async {
                let Self::Own(server) = self else { panic!("a case that restarts its server asks for it") };
                let mut server = server.lock().expect("no case panics here");
                server.kill();
                server.start();
            }))
        }
    }

    /// Three servers; each keeper is at one of them.
    pub(crate) struct Ensemble;

    #[async_trait::async_trait]
    impl Subject for Ensemble {
        async fn open(&self) -> Arc<dyn Store> {
            connect(&ENSEMBLE.url()).await
        }
    }
}

#[tokio::test]
async fn every_skip_is_written_down() {
    skips_page::check(&skips().await);
}

/// The stores there are: files and folders of `src/stores`, but for what they share.
fn stores() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/stores");
    let paths = std::fs::read_dir(folder).expect("src/stores").map(|entry| entry.expect("an entry").path());
    let stems = paths.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    // The store of a gateway needs one: its suite stands where gateways are.
    let gateways = include_str!("../../lockkeeper-server/tests/two_gateways.rs");
    assert!(gateways.contains("conformance_suite!(postgres, "));
    stems.filter(|name| !["mod", "remote", "shared", "slot"].contains(&name.as_str())).collect()
}

#[test]
fn every_store_runs_the_suite() {
    let files = [include_str!("conformance.rs"), include_str!("conformance_consul.rs")];
    let lines: BTreeSet<&str> = files.iter().flat_map(|file| file.lines()).map(str::trim).collect();
    let written = skips_page::sections();
    for store in stores() {
        let suite = format!("conformance_suite!({store},");
        assert!(lines.iter().any(|line| line.starts_with(&suite)), "no tests/conformance*.rs has a line `{suite} …)`");
        let skips = format!("{store}::skips().await");
        assert!(lines.iter().any(|line| line.contains(&skips)), "no tests/conformance*.rs looks at `{skips}`");
        let updating = std::env::var_os("UPDATE").is_some();
        assert!(updating || written.contains_key(&store), "docs/conformance-skips.md has no section for {store}");
    }
}

#[test]
fn every_case_has_a_name_of_its_own() {
    let names: BTreeSet<_> = CASES.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), CASES.len());
}
