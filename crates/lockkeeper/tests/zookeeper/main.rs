//! The ZooKeeper store on real servers.
#![cfg(feature = "zookeeper")]

mod claims;
mod interop;
#[path = "../peers/mod.rs"]
mod peers;
mod servers;
mod silent;
mod zk;
