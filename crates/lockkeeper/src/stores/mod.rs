//! The stores, one file each.

pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
pub mod redlock;
#[cfg(feature = "postgres")]
pub(crate) mod shedlock;
pub mod slot;
#[cfg(feature = "sqlite")]
pub mod sqlite;
