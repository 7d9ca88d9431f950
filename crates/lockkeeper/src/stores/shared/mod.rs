//! What stores of servers share; each store says which of it it needs.

#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
))]
pub(super) mod address;
#[cfg(any(feature = "consul", feature = "etcd", feature = "mysql", feature = "postgres", feature = "redis"))]
pub(super) mod connecting;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
pub(super) mod lines;
#[cfg(any(feature = "consul", feature = "etcd", feature = "mysql", feature = "postgres", feature = "redis"))]
pub(super) mod server;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod shedlock;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(super) mod silence;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) mod sql;
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
))]
pub(super) mod timing;
#[cfg(any(feature = "consul", feature = "etcd", feature = "mysql", feature = "postgres", feature = "redis"))]
pub(super) mod tls_files;
