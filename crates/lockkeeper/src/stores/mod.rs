//! The stores, one file or folder each; `shared` is for all of them.

#[cfg(feature = "consul")]
pub mod consul;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
// A file of its own: `transaction` needs the rules without the store.
#[cfg(any(feature = "postgres", feature = "transaction-tokio-postgres-0-7"))]
#[path = "postgres/keys.rs"]
pub(crate) mod postgres_keys;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redlock")]
pub mod redlock;
#[cfg(feature = "remote")]
pub mod remote;
mod shared;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
