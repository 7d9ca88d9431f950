//! The stores, one file each.

#[cfg(feature = "consul")]
pub mod consul;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
pub mod redlock;
pub mod slot;
#[cfg(feature = "sqlite")]
pub mod sqlite;
