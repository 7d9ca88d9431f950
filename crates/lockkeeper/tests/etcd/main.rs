//! The etcd store on real servers.
#![cfg(feature = "etcd")]

mod chaos;
mod claims;
mod interop;
#[path = "../common/keepers.rs"]
mod keepers;
mod late_calls;
mod refusals;
mod rights;
mod servers;
mod silent;
mod thousand_waiters;
