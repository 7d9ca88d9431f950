//! The Redis stores on real servers, and Redlock.
#![cfg(feature = "redis")]

mod clock;
mod eviction;
mod groups;
mod interop;
mod interop_extended;
#[path = "../common/keepers.rs"]
mod keepers;
mod layouts;
mod other_programs;
#[path = "../peers/mod.rs"]
mod peers;
#[cfg(feature = "redlock")]
mod redlock;
#[cfg(feature = "redlock")]
mod redlock_late_messages;
mod servers;
mod silent;
#[cfg(feature = "redlock")]
mod tls;
mod unconfirmed_grants;
mod waiting;
