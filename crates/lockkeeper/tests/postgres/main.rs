//! The PostgreSQL stores on real servers.
#![cfg(feature = "postgres")]

mod advisory;
mod delayed_renewal;
mod documented;
mod durable;
mod growth;
mod inherited_place;
mod interop;
mod locked_rows;
mod round_trips;
mod servers;
mod silent;
mod steps;
#[cfg(feature = "transaction-tokio-postgres-0_7")]
mod transaction;
