//! The stores, one file each.

pub mod memory;
pub mod slot;
