//! Locks across machines in one PostgreSQL database (12 or newer).
//!
//! [`PostgresStore`] keeps rows with leases in tables of its own, [`ShedLockStore`] takes rows of ShedLock's table
//! (`layout=shedlock`), and [`AdvisoryStore`] uses the server's advisory locks (`mode=advisory`).

mod advisory;
mod checks;
mod connect;
mod error;
#[cfg(test)]
mod fuzz;
mod lease;
mod options;
mod schema;
mod shedlock;
mod socket;
mod tls;
mod values;

pub use advisory::AdvisoryStore;
pub use lease::PostgresStore;
pub use shedlock::ShedLockStore;

use super::postgres_keys as keys;
use crate::error::Result;
use crate::store::Store;
use options::{Kind, Options};
use std::sync::Arc;
use std::time::Duration;

/// The pause when there are more unused rows than one statement removes.
const CLEAN_MORE: Duration = Duration::from_secs(5);

/// The store that a URL names.
pub(crate) async fn open(place: &str, pairs: &[(String, String)]) -> Result<Arc<dyn Store>> {
    let options = Options::parse(place, pairs)?;
    Ok(match options.kind {
        Kind::Lease => Arc::new(PostgresStore::from_options(options).await?),
        Kind::ShedLock(_) => Arc::new(ShedLockStore::from_options(options).await?),
        Kind::Advisory(_) => Arc::new(AdvisoryStore::from_options(options).await?),
    })
}
