//! The stores, one file each.

#[cfg(feature = "etcd")]
pub mod etcd;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
pub mod redlock;
pub mod slot;
#[cfg(feature = "sqlite")]
pub mod sqlite;
