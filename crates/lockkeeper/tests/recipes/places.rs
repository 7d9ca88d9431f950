//! Where the recipes are tried: a URL on a real server for each store, one server for all cases.

use lockkeeper::HolderId;
#[allow(unused_imports, reason = "each store uses its own")]
use {
    std::sync::LazyLock,
    testkit::{ConsulCluster, EtcdServer, MysqlServer, PostgresServer, RedisCluster, RedisServer, ZooKeeperServer},
};

/// A name that no other case has.
pub(crate) fn unique() -> String {
    HolderId::random().expect("random").to_hex()
}

pub(crate) fn memory() -> String {
    format!("memory:{}", unique())
}

#[cfg(feature = "sqlite")]
pub(crate) fn sqlite() -> String {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique());
    std::fs::create_dir_all(&dir).expect("a directory");
    format!("sqlite:{}", dir.join("locks.db").display())
}

#[cfg(feature = "redis")]
pub(crate) fn redis() -> String {
    static SERVER: LazyLock<&RedisServer> = LazyLock::new(|| testkit::shared(RedisServer::new()));
    SERVER.url()
}

#[cfg(feature = "redis")]
pub(crate) fn redis_cluster() -> String {
    static SERVERS: LazyLock<&RedisCluster> = LazyLock::new(|| RedisCluster::new(0).share());
    SERVERS.url()
}

#[cfg(feature = "redlock")]
pub(crate) fn redlock() -> String {
    static SERVERS: LazyLock<Vec<&RedisServer>> = LazyLock::new(|| {
        let server = || RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"]);
        (0..3).map(|_| testkit::shared(server())).collect()
    });
    let places: Vec<String> = SERVERS.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    format!("redlock://{}", places.join(","))
}

#[cfg(feature = "postgres")]
fn postgres_server() -> &'static PostgresServer {
    static SERVER: LazyLock<&PostgresServer> = LazyLock::new(|| PostgresServer::with(&["max_connections=400"]).share());
    &SERVER
}

#[cfg(feature = "postgres")]
pub(crate) fn postgres() -> String {
    postgres_server().url()
}

#[cfg(feature = "postgres")]
pub(crate) fn postgres_advisory() -> String {
    postgres() + "?mode=advisory"
}

#[cfg(feature = "postgres")]
pub(crate) fn postgres_shedlock() -> String {
    postgres() + "?layout=shedlock"
}

#[cfg(feature = "mysql")]
fn mysql_with(option: &str) -> String {
    static SERVER: LazyLock<&MysqlServer> = LazyLock::new(|| MysqlServer::new().share());
    format!("{}?ssl-mode=disabled{option}", SERVER.url())
}

#[cfg(feature = "mysql")]
pub(crate) fn mysql() -> String {
    mysql_with("")
}

#[cfg(feature = "mysql")]
pub(crate) fn mysql_get_lock() -> String {
    mysql_with("&mode=get_lock")
}

#[cfg(feature = "mysql")]
pub(crate) fn mysql_shedlock() -> String {
    mysql_with("&layout=shedlock")
}

#[cfg(feature = "etcd")]
pub(crate) fn etcd() -> String {
    static SERVER: LazyLock<&EtcdServer> = LazyLock::new(|| EtcdServer::new().share());
    SERVER.url()
}

#[cfg(feature = "zookeeper")]
pub(crate) fn zookeeper() -> String {
    static SERVER: LazyLock<&ZooKeeperServer> = LazyLock::new(|| ZooKeeperServer::new().share());
    SERVER.url()
}

#[cfg(feature = "consul")]
pub(crate) fn consul() -> String {
    static SERVERS: LazyLock<&ConsulCluster> = LazyLock::new(|| ConsulCluster::new().share());
    SERVERS.members[0].url()
}
