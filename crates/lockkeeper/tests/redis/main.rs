//! The Redis and Redlock stores on real servers.
#![cfg(feature = "redis")]

mod clock;
mod eviction;
mod foreign;
mod groups;
mod interop;
mod interop_extended;
mod layouts;
#[path = "../peers/mod.rs"]
mod peers;
#[cfg(feature = "redlock")]
mod redlock;
#[cfg(feature = "redlock")]
mod redlock_delays;
mod servers;
mod silent;
#[cfg(feature = "redlock")]
mod tls;
mod unconfirmed;
mod waits;
