//! The ZooKeeper store on real servers.
#![cfg(feature = "zookeeper")]

mod claims;
mod helpers;
mod interop;
#[path = "../common/keepers.rs"]
mod keepers;
#[path = "../peers/mod.rs"]
mod peers;
mod servers;
mod silent;
