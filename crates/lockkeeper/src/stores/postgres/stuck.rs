//! Names whose row somebody else was found to keep locked. The first to find out waits for it in the server, as long as
//! that may last; whoever follows looks first, for a moment only, so that all who wait are told together.

use super::error::is_locked;
use crate::error::Result;
use crate::name::LockName;
use crate::store::Claim;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long it is believed after it was last seen.
const BELIEVED: Duration = Duration::from_secs(5);

/// How many names are remembered.
const MOST: usize = 10_000;

#[derive(Debug, Default)]
struct Seen {
    names: HashMap<LockName, Instant>,
    latest: Option<Instant>,
}

/// See the [module](self). Nothing depends on it but time.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    /// Whether there are any: most of the time there are none, and every claim asks.
    any: AtomicBool,
    seen: Mutex<Seen>,
}

impl Stuck {
    pub(super) fn knows(&self, name: &LockName) -> bool {
        let fresh = |seen: &mut Seen| seen.names.get(name).is_some_and(|at| at.elapsed() < BELIEVED);
        self.any.load(Ordering::Relaxed) && self.lock(fresh)
    }

    /// Learns from an answer. Of several claims in one statement it is not known whose row it was: all are looked at.
    pub(super) fn note<T>(&self, claims: &[Claim], answer: &Result<T>) {
        match answer {
            Err(error) if is_locked(error) => self.suspect(claims),
            Ok(_) if self.any.load(Ordering::Relaxed) => self.lock(|seen| {
                for claim in claims {
                    seen.names.remove(&claim.name);
                }
            }),
            _ => {}
        }
    }

    /// Somebody keeps the rows of all of these locked, or of some.
    pub(super) fn suspect(&self, claims: &[Claim]) {
        if claims.is_empty() {
            return;
        }
        self.lock(|seen| {
            if seen.names.len() + claims.len() <= MOST {
                let now = Instant::now();
                seen.latest = Some(now);
                seen.names.extend(claims.iter().map(|claim| (claim.name.clone(), now)));
            }
        });
    }

    fn lock<T>(&self, work: impl FnOnce(&mut Seen) -> T) -> T {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.latest.is_some_and(|latest| latest.elapsed() >= BELIEVED) {
            *seen = Seen::default();
        }
        let done = work(&mut seen);
        self.any.store(!seen.names.is_empty(), Ordering::Relaxed);
        done
    }
}
