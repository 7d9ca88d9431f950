//! The PostgreSQL stores on real servers.
#![cfg(feature = "postgres")]

mod advisory;
mod durable;
mod growth;
mod heirs;
mod interop;
mod late;
mod locked_rows;
mod page;
mod servers;
mod silent;
mod steps;
#[cfg(feature = "transaction-tokio-postgres-0_7")]
mod transaction;
mod trips;
