//! This keeper's claims in line, and how often it asks whether they were let in.

use crate::store::Claim;
use crate::token::HolderId;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How often the first in line asks.
pub(super) const PAUSE: Duration = Duration::from_millis(25);

/// From this place in line on, a keeper asks no less often.
const FAR_BACK: u32 = 8;

/// What the server said of a claim.
#[derive(Clone, Copy, Debug)]
pub(super) enum ClaimStatus {
    /// Its place in line.
    InLine(u32),
    /// It has the lock, or has ended.
    NotInLine,
}

impl ClaimStatus {
    /// The status of a claim that was not let in.
    pub(super) fn at(place: Option<u32>) -> Self {
        place.map_or(Self::NotInLine, Self::InLine)
    }
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    claims: Mutex<HashMap<HolderId, Entry>>,
    /// Notified when a claim that must ask soon came into the line.
    pub(super) joined: Notify,
}

#[derive(Debug)]
struct Entry {
    place: u32,
    /// When the server forgets it, if nothing more is heard.
    until: Instant,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, HashMap<HolderId, Entry>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, claim: &Claim, status: ClaimStatus) {
        let mut claims = self.lock();
        let ClaimStatus::InLine(place) = status else {
            claims.remove(&claim.holder);
            return;
        };
        let first = claims.is_empty();
        claims.insert(claim.holder, Entry { place, until: Instant::now() + claim.waiter_lease() });
        drop(claims);
        if first || place == 1 {
            self.joined.notify_one();
        }
    }

    /// The engine is told that a claim was let in.
    pub(super) fn let_in(&self, holder: HolderId) {
        self.lock().remove(&holder);
    }

    /// How long until this keeper asks again; `None` while none of its claims waits.
    pub(super) fn pause(&self) -> Option<Duration> {
        let (mut claims, now) = (self.lock(), Instant::now());
        claims.retain(|_, entry| entry.until > now);
        claims.values().map(|entry| PAUSE * entry.place.min(FAR_BACK)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;
    use crate::name::LockName;

    fn claim() -> Claim {
        let (name, holder) = (LockName::new("x").unwrap(), HolderId::random().unwrap());
        Claim::new(name, holder, Duration::from_secs(60), Stamp::from_micros(0), Default::default())
    }

    #[test]
    fn the_claim_that_is_nearest_to_the_lock_sets_the_pause() {
        let (waiting, far, near) = (Waiting::default(), claim(), claim());
        assert_eq!(waiting.pause(), None);
        waiting.note(&far, ClaimStatus::InLine(100));
        assert_eq!(waiting.pause(), Some(PAUSE * FAR_BACK));
        waiting.note(&near, ClaimStatus::InLine(2));
        assert_eq!(waiting.pause(), Some(PAUSE * 2));
        waiting.let_in(near.holder);
        assert_eq!(waiting.pause(), Some(PAUSE * FAR_BACK));
        waiting.note(&far, ClaimStatus::NotInLine);
        assert_eq!(waiting.pause(), None);
    }
}
