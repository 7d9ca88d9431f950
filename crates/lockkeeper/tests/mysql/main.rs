//! The MySQL stores on a real server: MariaDB, or the MySQL that `LOCKKEEPER_TEST_MYSQL` names.
#![cfg(feature = "mysql")]

mod concurrent_steps;
mod docs_page;
mod get_lock_sessions;
mod group_replication;
mod interop;
#[path = "../common/keepers.rs"]
mod keepers;
mod locked_rows;
mod logins;
mod procedures;
mod servers;
mod silent;
mod unused_rows;
