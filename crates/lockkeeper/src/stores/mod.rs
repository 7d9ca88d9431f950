//! The stores, one file each.

pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
pub mod redlock;
pub mod slot;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
