//! The stores, one file each.

pub mod memory;
pub mod redlock;
pub mod slot;
#[cfg(feature = "sqlite")]
pub mod sqlite;
