//! Holder ids for claims to come. The system's random source is asked for many at once, outside the tables' lock.

use crate::clock::Stamp;
use crate::token::HolderId;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub(in crate::engine) enum Ids {
    /// The store is this process's own memory, so a counter is enough.
    Counted,
    /// Random ids that no claim has used.
    Drawn(Vec<HolderId>),
}

impl Ids {
    /// How many are drawn at once.
    pub(in crate::engine) const DRAW: usize = 64;

    /// An id that no claim has; `None` when new ones must be drawn first. The time `now` is part of a drawn id: a virtual
    /// machine that is resumed twice from one image has the same random numbers in both copies, at different times.
    pub(in crate::engine) fn fresh(&mut self, now: Stamp) -> Option<HolderId> {
        match self {
            Self::Counted => {
                // One counter for the process: keepers may share a store.
                static NEXT: AtomicU64 = AtomicU64::new(1);
                Some(HolderId::from_u128(NEXT.fetch_add(1, Ordering::Relaxed).into()))
            }
            Self::Drawn(ids) => ids.pop().map(|id| HolderId::from_u128(id.to_u128() ^ u128::from(now.as_micros()))),
        }
    }

    /// Whether `count` of them can be had.
    pub(in crate::engine) fn lasts(&self, count: usize) -> bool {
        match self {
            Self::Counted => true,
            Self::Drawn(ids) => ids.len() >= count,
        }
    }

    pub(in crate::engine) fn keep(&mut self, drawn: Vec<HolderId>) {
        if let Self::Drawn(ids) = self {
            ids.extend(drawn);
        }
    }
}
