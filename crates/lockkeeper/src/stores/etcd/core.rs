//! What all parts of the store share: the way to the cluster, the keeper's leases and its claims.

use super::claims::Place;
use super::keys::Keys;
use super::lease::{Granted, Lease};
use super::registers::FenceLease;
use super::rpc::Rpc;
use crate::clock::{Stamp, system_now};
use crate::error::Result;
use crate::name::LockName;
use crate::store::Event;
use crate::stores::shared::inbox::Inbox;
use crate::stores::shared::sessions::Sessions;
use crate::token::HolderId;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The most operations in one transaction, of the 128 that a server allows.
pub(super) const MAX_OPS: usize = 100;

/// How long after a call without an answer its leftovers are looked for.
const DOUBT: Duration = Duration::from_secs(180);

/// What calls leave for `tend`.
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
    Nothing,
    /// The end of one key.
    Key(Vec<u8>),
    /// That no key of `others` and fewer than `than` keys of `same` are left.
    Fewer {
        keys: Keys,
        than: usize,
        same: HashSet<Vec<u8>>,
        others: HashSet<Vec<u8>>,
    },
}

impl Before {
    /// What is watched for it.
    pub(super) fn range(&self) -> Option<[Vec<u8>; 2]> {
        match self {
            Self::Nothing => None,
            Self::Key(key) => Some([key.clone(), Vec::new()]),
            Self::Fewer { keys, .. } => Some([keys.prefix.clone(), keys.end.clone()]),
        }
    }

    /// A key of that range is gone: whether the claim's turn may have come.
    pub(super) fn left(&mut self, key: &[u8]) -> bool {
        match self {
            Self::Nothing => false,
            Self::Key(_) => true,
            Self::Fewer { than, same, others, .. } => {
                let known = same.remove(key) || others.remove(key);
                known && others.is_empty() && same.len() < *than
            }
        }
    }
}

/// What all parts of the store share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) rpc: Rpc,
    /// The shortest lease of this server, in seconds.
    pub(super) floor: u64,
    pub(super) sessions: Sessions<Granted, Place>,
    /// The keys of all claims.
    pub(super) taken: Mutex<HashSet<Vec<u8>>>,
    pub(super) news: Inbox<News>,
    doubted: AtomicU64,
    pub(super) fence_lease: FenceLease,
}

impl Core {
    pub(super) fn new(rpc: Rpc, floor: u64) -> Self {
        let (sessions, taken, news) = (Sessions::default(), Mutex::default(), Inbox::default());
        Self { rpc, floor, sessions, taken, news, doubted: AtomicU64::new(0), fence_lease: FenceLease::default() }
    }

    pub(super) fn keys(&self, name: &LockName) -> Result<Keys> {
        Keys::of(self.rpc.options().names, name)
    }

    /// A call came back without an answer: what it may have left is looked for soon.
    pub(super) fn doubt(&self) {
        self.doubted.fetch_max(system_now().as_micros(), Ordering::Relaxed);
        self.news.tell(News::Doubt);
    }

    /// When that was last the case, if not long ago.
    pub(super) fn doubted(&self, now: Stamp) -> Option<Stamp> {
        let doubted = Stamp::from_micros(self.doubted.load(Ordering::Relaxed));
        (now.since(doubted) < DOUBT).then_some(doubted)
    }
}
