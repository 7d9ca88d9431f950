//! The MySQL stores on a real server: MariaDB, or the MySQL that `LOCKKEEPER_TEST_MYSQL` names.
#![cfg(feature = "mysql")]

mod documented;
mod group;
mod growth;
mod interop;
mod locked_rows;
mod logins;
mod procedures;
mod servers;
mod sessions;
mod silent;
mod steps;
