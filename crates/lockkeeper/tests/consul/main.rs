//! The Consul store; what needs an agent is run by `scripts/test-extended`, since no distribution has one.
#![cfg(feature = "consul")]

mod cluster;
mod interop;
mod lost;
mod replies;
mod servers;
mod silent;
