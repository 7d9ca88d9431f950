//! Names whose row somebody else was found to keep locked. The first to find out waits for it in the server, as long as
//! that may last; whoever follows looks first, for a moment only, so that all who wait are told together.

use crate::name::LockName;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long it is believed after it was last seen: longer than whoever asks now may wait for another row.
const BELIEVED: Duration = Duration::from_secs(10);

/// How many names are remembered.
const MOST: usize = 10_000;

#[derive(Debug, Default)]
struct Seen {
    names: HashMap<LockName, Instant>,
    latest: Option<Instant>,
}

/// See the [module](self). Nothing depends on it but time.
#[derive(Debug, Default)]
pub(in crate::stores) struct Stuck {
    /// Whether there are any: most of the time there are none, and every claim asks.
    any: AtomicBool,
    seen: Mutex<Seen>,
}

impl Stuck {
    pub(in crate::stores) fn knows(&self, name: &LockName) -> bool {
        let fresh = |seen: &mut Seen| seen.names.get(name).is_some_and(|at| at.elapsed() < BELIEVED);
        self.any.load(Ordering::Relaxed) && self.lock(fresh)
    }

    /// One of these rows was locked. Of several in one statement it is not known which: all are looked at.
    pub(in crate::stores) fn locked<'a>(&self, names: impl Iterator<Item = &'a LockName>) {
        self.lock(|seen| {
            let now = Instant::now();
            for name in names {
                if seen.names.len() < MOST {
                    seen.latest = Some(now);
                    seen.names.insert(name.clone(), now);
                }
            }
        });
    }

    /// These rows were not.
    pub(in crate::stores) fn free<'a>(&self, names: impl Iterator<Item = &'a LockName>) {
        if self.any.load(Ordering::Relaxed) {
            self.lock(|seen| {
                for name in names {
                    seen.names.remove(name);
                }
            });
        }
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
