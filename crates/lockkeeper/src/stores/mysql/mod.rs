//! Locks across machines in one MySQL (8.0 or newer) or MariaDB (10.6 or newer) database.
//!
//! [`MysqlStore`] keeps rows with leases in tables of its own, [`ShedLockStore`] keeps a row of ShedLock's table in step
//! with each lock (`layout=shedlock`), and [`GetLockStore`] uses the server's session locks (`mode=get_lock`).

mod calls;
mod checks;
mod connect;
mod error;
#[cfg(test)]
mod fuzz;
mod get_lock;
mod lease;
mod options;
mod queue;
mod schema;
mod shedlock;
mod values;

pub use get_lock::GetLockStore;
pub use lease::MysqlStore;
pub use shedlock::ShedLockStore;

use crate::error::Result;
use crate::store::Store;
use options::{Mode, Options};
use std::sync::Arc;

/// The store that a URL names.
pub(crate) async fn open(place: &str, pairs: &[(String, String)]) -> Result<Arc<dyn Store>> {
    let options = Options::parse(place, pairs)?;
    Ok(match (options.mode, &options.shedlock) {
        (Mode::GetLock, _) => Arc::new(GetLockStore::from_options(options).await?),
        (Mode::Lease, Some(_)) => Arc::new(ShedLockStore::from_options(options).await?),
        (Mode::Lease, None) => Arc::new(MysqlStore::from_options(options).await?),
    })
}
