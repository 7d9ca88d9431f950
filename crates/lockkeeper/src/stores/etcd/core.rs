//! What all parts of the store share: the keeper's leases, one for each TTL, and a seat for each claim.

use super::keys::Keys;
use super::lease::Lease;
use super::registers::FenceLease;
use super::rpc::Rpc;
use super::seats::Seats;
use crate::clock::{Stamp, system_now};
use crate::error::Result;
use crate::name::LockName;
use crate::store::Event;
use crate::token::HolderId;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a question that no lease depends on may take.
pub(super) const ASK_LIMIT: Duration = Duration::from_secs(7);

/// The most operations in one transaction, of the 128 that a server allows.
pub(super) const MAX_OPS: usize = 100;

/// How long a claim that has ended is remembered for whoever still asks.
pub(super) const REMEMBERED: Duration = Duration::from_secs(60);

/// How long after a call without an answer its leftovers are looked for.
const DOUBT: Duration = Duration::from_secs(180);

/// What `tend` is told.
#[derive(Debug)]
pub(super) enum News {
    Event(Event),
    /// A new lease, whose end is to be noticed.
    Lease(Arc<Lease>),
    /// A claim's own key is to be watched, and what is before it in line.
    Watch(Watch),
    /// Nothing of a claim is to be watched any more.
    Forget(HolderId),
    /// Something may have been left over.
    Doubt,
}

#[derive(Debug)]
pub(super) struct Watch {
    pub(super) holder: HolderId,
    pub(super) name: LockName,
    pub(super) own: Vec<u8>,
    pub(super) before: Before,
    /// Everything up to this revision has been seen.
    pub(super) revision: i64,
}

/// What a claim in line waits for.
#[derive(Debug)]
pub(super) enum Before {
    Nobody,
    /// The end of one key.
    Key(Vec<u8>),
    /// That none of the others and fewer than so many of the same are left.
    Fewer {
        keys: Keys,
        than: usize,
        same: HashSet<Vec<u8>>,
        others: HashSet<Vec<u8>>,
    },
}

/// What all parts of the store share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) rpc: Rpc,
    /// The shortest lease of this server, in seconds.
    pub(super) floor: u64,
    pub(super) leases: Mutex<HashMap<u64, Arc<Lease>>>,
    pub(super) granting: tokio::sync::Mutex<()>,
    pub(super) seats: Mutex<Seats>,
    /// Claims that were released while an acquire of theirs may still be under way, and when. Locked after `seats`.
    pub(super) cancelled: Mutex<HashMap<HolderId, Stamp>>,
    news: mpsc::UnboundedSender<News>,
    doubted: AtomicU64,
    pub(super) fence_lease: FenceLease,
}

/// A step on the tables is never left half-way, so going on after a panic is safe.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a call may take: a third of the lease, as the engine allows, less what it takes to say so.
pub(super) fn limit(ttl: Duration) -> Duration {
    (ttl / 3).mul_f64(0.95).clamp(Duration::from_millis(50), Duration::from_secs(5))
}

impl Core {
    pub(super) fn new(rpc: Rpc, floor: u64, news: mpsc::UnboundedSender<News>) -> Self {
        let (leases, seats, cancelled) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (granting, doubted) = (tokio::sync::Mutex::default(), AtomicU64::new(0));
        Self { rpc, floor, leases, granting, seats, cancelled, news, doubted, fence_lease: FenceLease::default() }
    }

    pub(super) fn keys(&self, name: &LockName) -> Result<Keys> {
        Keys::of(self.rpc.options().names, name)
    }

    /// Nobody listens only when the store is being dropped.
    pub(super) fn tell(&self, news: News) {
        let _ = self.news.send(news);
    }

    /// A call came back without an answer: whatever it made is looked for soon.
    pub(super) fn doubt(&self) {
        self.doubted.fetch_max(system_now().as_micros(), Ordering::Relaxed);
        self.tell(News::Doubt);
    }

    /// When that was last the case, if not long ago.
    pub(super) fn doubted(&self, now: Stamp) -> Option<Stamp> {
        let doubted = Stamp::from_micros(self.doubted.load(Ordering::Relaxed));
        (now.since(doubted) < DOUBT).then_some(doubted)
    }
}
