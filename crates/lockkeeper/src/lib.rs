//! Locks shared by several processes or machines, with a fencing token on every grant.
//!
//! A [`Keeper`] is a connected client, a [`Lock`] a description of what to take, a [`Guard`] a held lock:
//!
//! ```
//! use lockkeeper::{Error, Keeper};
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let keeper = Keeper::connect("memory:").await?;
//! let guard = keeper.lock("billing/invoice-42").wait(Duration::from_secs(5)).acquire().await?;
//! let token = guard.token(); // hand it to whatever is written: a later holder's is always greater
//! guard.run(async { /* the work: cancelled before the lease can end */ }).await?;
//! guard.release().await?;
//! # assert!(token.get() > 0);
//! # Ok(())
//! # }
//! ```
//!
//! | store | URL | feature | excludes | token |
//! |---|---|---|---|---|
//! | memory | `memory:[NAME]` | always on | one process | max(previous + 1, wall clock µs) |
//! | SQLite | `sqlite:PATH` | `sqlite` | one machine | max(previous + 1, wall clock µs) |
//! | Redis, Valkey | `redis://HOST` | `redis` | many machines | max(previous + 1, server clock µs) |
//! | PostgreSQL | `postgres://HOST/DATABASE` | `postgres` | many machines | max(previous + 1, server clock µs) |
//! | Redlock | `redlock://HOST,HOST,HOST` | `redlock` | many machines | proposed, confirmed by a majority |
//! | etcd | `etcd://HOST,HOST,HOST` | `etcd` | many machines | revision |
//! | Consul | `consul://HOST` | `consul` | many machines | index of the transaction |
//!
//! What a lock can and cannot promise is in `docs/safety.md`; how to write a store of your own in
//! `docs/custom-store.md`.

pub mod blocking;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod duration;
mod engine;
pub mod error;
pub mod fence;
mod guard;
mod keeper;
mod lane;
mod lock;
mod log;
#[doc(hidden)]
pub mod machine;
pub mod name;
pub mod optimistic;
mod record;
pub mod register;
mod slots;
pub mod store;
pub mod stores;
#[cfg(feature = "testing")]
pub mod testing;
pub mod token;
#[cfg(any(feature = "postgres", feature = "transaction-tokio-postgres-0_7"))]
pub mod transaction;
mod url;

pub use engine::Leftover;
pub use error::{Error, ErrorKind, Result};
pub use fence::Fence;
pub use guard::{Guard, Lease, State};
pub use keeper::{Builder, Keeper};
pub use lock::Lock;
pub use name::LockName;
pub use optimistic::retry_on_conflict;
pub use register::{Pass, Register};
pub use store::{Guarantee, Held, LossReason, Mode, Note, Store, StoreInfo};
pub use token::{HolderId, Token};

/// Every public handle can be sent to and shared with any thread, and lives as long as it likes.
const _: () = {
    const fn all<T: Send + Sync + 'static>() {}
    all::<Keeper>();
    all::<Lock>();
    all::<Guard>();
    all::<Lease>();
    all::<Error>();
    all::<blocking::Keeper>();
    all::<blocking::Lock>();
    all::<blocking::Guard>();
};
