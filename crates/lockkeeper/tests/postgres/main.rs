//! The PostgreSQL stores on real servers.
#![cfg(feature = "postgres")]

mod advisory;
mod advisory_heirs;
mod concurrent_steps;
mod docs_page;
mod durable;
mod interop;
#[path = "../common/keepers.rs"]
mod keepers;
mod locked_rows;
mod overtaken_renewals;
mod round_trips;
mod servers;
mod silent;
#[cfg(feature = "transaction-tokio-postgres-0-7")]
mod transaction;
mod unused_rows;
