//! The Redis and Redlock stores on real servers.
#![cfg(feature = "redis")]

mod clock;
mod eviction;
mod gathered;
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
mod redlock_delays;
#[cfg(feature = "redlock")]
mod redlock_layout;
mod servers;
mod silent;
#[cfg(feature = "redlock")]
mod tls;
mod unconfirmed_grants;
mod upgrade;
mod version1;
mod waiting;
