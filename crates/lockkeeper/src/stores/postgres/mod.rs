//! Locks across machines in one PostgreSQL database (12 or newer).
//!
//! [`PostgresStore`] keeps rows with leases in tables of its own, [`ShedLockStore`](shedlock::ShedLockStore) takes rows of
//! ShedLock's table (`layout=shedlock`), and [`AdvisoryStore`](advisory::AdvisoryStore) uses the server's advisory locks
//! (`mode=advisory`).

pub mod advisory;
mod clean;
mod connect;
mod error;
mod lease;
mod options;
mod schema;
pub mod shedlock;
mod socket;
mod tls;
mod values;

pub use lease::PostgresStore;

use super::postgres_keys as keys;
use crate::error::Result;
use crate::store::Store;
use options::{Kind, Options};
use std::sync::Arc;

/// The store that a URL names.
pub(crate) async fn open(place: &str, pairs: &[(String, String)]) -> Result<Arc<dyn Store>> {
    let options = Options::parse(place, pairs)?;
    Ok(match options.kind {
        Kind::Lease => Arc::new(PostgresStore::from_options(options).await?),
        Kind::ShedLock(_) => Arc::new(shedlock::ShedLockStore::from_options(options).await?),
        Kind::Advisory(_) => Arc::new(advisory::AdvisoryStore::from_options(options).await?),
    })
}
