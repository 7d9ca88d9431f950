//! The PostgreSQL stores on real servers.
#![cfg(feature = "postgres")]

mod advisory;
mod durable;
mod interop;
mod page;
mod rows;
mod servers;
mod silent;
mod steps;
#[cfg(feature = "transaction-tokio-postgres-0_7")]
mod transaction;
mod trips;
