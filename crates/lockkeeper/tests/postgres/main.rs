//! The PostgreSQL stores on real servers.
#![cfg(feature = "postgres")]

mod advisory;
mod durable;
mod growth;
mod heirs;
mod interop;
mod late;
mod page;
mod rows;
mod servers;
mod silent;
mod steps;
#[cfg(feature = "transaction-tokio-postgres-0-7")]
mod transaction;
mod trips;
