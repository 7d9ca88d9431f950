//! What the stores in SQL databases share.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long calls look first after a row was found locked.
const CAUTION: Duration = Duration::from_secs(5);

/// How often a call looks before it says that a row is locked: steps of other keepers lock it for a moment, too.
pub(in crate::stores) const LOOKS: u32 = 3;

/// The pause between two looks.
pub(in crate::stores) const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Whether another client's transaction was found to keep a row of ours locked a moment ago.
///
/// The first call that meets such a row waits for it, in the server, until the lock timeout. For a few seconds after that
/// every call looks first, and leaves locked rows out, so that calls for other names are not held up.
#[derive(Debug, Default)]
pub(in crate::stores) struct LockedRows(Mutex<Option<Instant>>);

impl LockedRows {
    /// A row was locked, or a call took so long that one may have been.
    pub(in crate::stores) fn seen(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    pub(in crate::stores) fn lately(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|seen| seen.elapsed() < CAUTION)
    }
}
