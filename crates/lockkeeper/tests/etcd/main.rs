//! The etcd store on real servers.
#![cfg(feature = "etcd")]

mod chaos;
mod interop;
mod late;
mod line;
mod refusals;
mod rights;
mod servers;
mod silent;
