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
//! | store | URL | feature | excludes within | token |
//! |---|---|---|---|---|
//! | [memory][memory] | `memory:[NAME]` | always on | one process | max(previous + 1, wall clock µs) |
//! | [SQLite][sqlite] | `sqlite:PATH` | `sqlite` | one machine | max(previous + 1, wall clock µs) |
//! | [Redis, Valkey][redis] | `redis://HOST`, `rediss://HOST`, `redis+sentinel://HOSTS/NAME`, `redis+cluster://HOSTS` | `redis` | many machines | max(previous + 1, server clock µs) |
//! | [Redlock][redlock] | `redlock://HOST,HOST,HOST` | `redlock` | many machines | proposed, confirmed by a majority |
//! | [PostgreSQL][postgres] | `postgres://HOST/DATABASE` | `postgres` | many machines | max(previous + 1, server clock µs) |
//! | [MySQL, MariaDB][mysql] | `mysql://HOST/DATABASE` | `mysql` | many machines | max(previous + 1, server clock µs) |
//! | [etcd][etcd] | `etcd://HOST,HOST,HOST`, `etcds://…` | `etcd` | many machines | revision |
//! | [ZooKeeper][zookeeper] | `zookeeper://HOST,HOST,HOST` | `zookeeper` | many machines | czxid |
//! | [Consul][consul] | `consul://HOST`, `consuls://HOST` | `consul` | many machines | index of the transaction |
//! | [a gateway][https] | `https://HOST` | `remote` | as its store | its store's |
//!
//! Default features have the memory store alone. `testing` is for tests of your code, `conformance` for stores of your
//! own; `fence-…` and `transaction-…` are helpers for one driver each. `internals` opens the machines to this repository's
//! own models, benchmarks and tests, and may change in any version.
//!
//! Read next: what a lock can and cannot promise ([safety]), how a database refuses late writes ([fencing]), what is
//! simpler than a lock ([when not to lock]), metrics and log events ([operations]), and how to write a store
//! ([custom store]).
//!
//! [memory]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/stores/memory.md
//! [sqlite]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/stores/sqlite.md
//! [redis]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/stores/redis.md
//! [redlock]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/stores/redlock.md
//! [postgres]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/stores/postgres.md
//! [mysql]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/stores/mysql.md
//! [etcd]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/stores/etcd.md
//! [zookeeper]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/stores/zookeeper.md
//! [consul]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/stores/consul.md
//! [https]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/stores/https.md
//! [safety]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/safety.md
//! [fencing]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/fencing.md
//! [when not to lock]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/when-not-to-lock.md
//! [operations]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/operations.md
//! [custom store]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/custom-store.md

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
#[doc(hidden)]
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
#[doc(hidden)]
pub mod duration;
mod engine;
pub mod error;
pub mod fence;
#[cfg(test)]
mod fuzz;
mod guard;
mod keeper;
mod lane;
mod lock;
mod log;
#[cfg(feature = "internals")]
pub mod machine;
#[cfg(not(feature = "internals"))]
#[allow(unreachable_pub, dead_code, reason = "the models see it all, by the feature `internals`")]
mod machine;
pub mod metrics;
mod mutant;
pub mod name;
pub mod optimistic;
mod pass;
pub mod recipes;
mod redis_slots;
pub mod register;
#[doc(hidden)]
pub mod similar;
pub mod store;
pub mod stores;
#[cfg(feature = "testing")]
pub mod testing;
mod text;
mod timing;
pub mod token;
mod trace;
#[cfg(any(feature = "postgres", feature = "transaction-tokio-postgres-0-7"))]
pub mod transaction;
mod url;
#[cfg(feature = "remote")]
#[doc(hidden)]
pub mod wire;

pub use engine::Leftover;
pub use error::{Error, ErrorKind, Result};
pub use fence::Fence;
pub use guard::{Guard, Lease, Phase};
pub use keeper::{FencedRegister, Keeper, KeeperBuilder};
pub use lock::Lock;
pub use name::LockName;
pub use pass::{Pass, SharedPass};
pub use register::Register;
pub use store::{Guarantee, Held, LossReason, Mode, Note, Store, StoreInfo};
pub use token::{HolderId, Token};

/// Every public handle can be sent to and shared with any thread, and lives as long as it likes.
const _: () = {
    const fn all<T: Send + Sync + 'static>() {}
    all::<Keeper>();
    all::<Lock>();
    all::<FencedRegister>();
    all::<Guard>();
    all::<Lease>();
    all::<Error>();
    all::<blocking::FencedRegister>();
    all::<blocking::Keeper>();
    all::<blocking::Lock>();
    all::<blocking::Guard>();
};
