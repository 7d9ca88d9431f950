//! The MySQL stores on a real server: MariaDB, or the MySQL that `LOCKKEEPER_TEST_MYSQL` names.
#![cfg(feature = "mysql")]

mod doorbell;
mod group;
mod growth;
mod interop;
mod logins;
mod page;
mod procedures;
mod rows;
mod servers;
mod sessions;
mod silent;
mod steps;
