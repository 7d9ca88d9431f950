//! The stores, one file each.

#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
))]
mod address;
#[cfg(any(feature = "consul", feature = "etcd", feature = "mysql", feature = "postgres", feature = "redis"))]
mod connecting;
#[cfg(feature = "consul")]
pub mod consul;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
mod lines;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
pub mod redlock;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod shedlock;
pub mod slot;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "consul", feature = "etcd", feature = "mysql", feature = "postgres", feature = "redis"))]
mod tls_files;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
