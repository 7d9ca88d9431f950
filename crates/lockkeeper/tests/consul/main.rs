//! The Consul store; what needs an agent is run by `scripts/test-extended`, since no distribution has one.
#![cfg(feature = "consul")]

mod broken_replies;
mod cluster;
mod interop;
#[path = "../common/keepers.rs"]
mod keepers;
mod lost_requests;
mod servers;
mod silent;
