//! What is known here of each claim, from before its acquire is sent until its release was answered.

use super::core::{Core, News};
use super::keys::Keys;
use super::lease::{Granted, Lease};
use crate::clock::Stamp;
use crate::name::LockName;
use crate::store::{Claim, Held};
use crate::stores::shared::{lock, session};
use crate::token::HolderId;
use std::sync::Arc;
use std::time::Duration;

pub(super) type ClaimState = session::ClaimState<Granted, Place>;

/// Where a claim is in etcd.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) name: LockName,
    pub(super) key: Vec<u8>,
    /// When its key was created, once that is known.
    pub(super) created: Option<i64>,
    /// What it was told last while in line.
    pub(super) held: Option<Held>,
    /// The key right before it in line, and when that was created.
    pub(super) before: Option<(Vec<u8>, i64)>,
    /// Whether something happened to the line since.
    pub(super) hinted: bool,
    pub(super) watched: bool,
    /// How many of its releases are under way.
    leaving: u32,
}

impl ClaimState {
    /// Whether a call still has to do with its key: not when a release came back without an answer. To sweep what an
    /// answer is still awaited for would make that answer wrong.
    pub(super) fn is_taken(&self) -> bool {
        self.released.is_none() || self.leaving > 0
    }

    /// Whether its release was never answered, for so long that the engine does not repeat it any more.
    fn is_given_up(&self, now: Stamp) -> bool {
        let repeated = self.session.ttl + self.session.ttl / 50 + Duration::from_secs(1);
        self.released.is_some_and(|since| now.since(since) >= repeated)
    }
}

/// A release under way, also when it is given up half-way.
pub(super) struct Leaving<'a>(&'a Core, HolderId);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.sessions.edit(self.1, |state| state.leaving = state.leaving.saturating_sub(1));
    }
}

impl Core {
    /// An acquire begins: the state of its claim, or a new one on this lease. `None` for a claim that is over.
    pub(super) fn begin(&self, claim: &Claim, keys: &Keys, lease: &Arc<Lease>) -> Option<ClaimState> {
        self.sessions.begin(claim.holder, lease, || Place {
            name: claim.name.clone(),
            key: self.free_key(claim, keys, lease.id),
            created: None,
            held: None,
            before: None,
            hinted: false,
            watched: false,
            leaving: 0,
        })
    }

    /// A key that no other claim of this keeper has.
    fn free_key(&self, claim: &Claim, keys: &Keys, lease: i64) -> Vec<u8> {
        let mut taken = lock(&self.taken);
        let mut number = 0;
        loop {
            let key = keys.claim(claim.mode, lease, number);
            if taken.insert(key.clone()) {
                return key;
            }
            number += 1;
        }
    }

    /// A release begins: the state of its claim, and what ends with the call.
    pub(super) fn leave(&self, claim: &Claim) -> Option<(ClaimState, Leaving<'_>)> {
        let state = self.sessions.release(claim, |place| place.leaving += 1)?;
        Some((state, Leaving(self, claim.holder)))
    }

    /// One acquire has been answered. With `nothing` the claim has nothing at the server, unless another acquire is under
    /// way. Whether the claim is still wanted.
    pub(super) fn answered(&self, holder: HolderId, nothing: bool) -> bool {
        let (wanted, state) = self.sessions.answered(holder, nothing);
        self.gone(holder, state);
        wanted
    }

    /// Forgets a claim that has ended.
    pub(super) fn forget(&self, holder: HolderId) {
        self.gone(holder, self.sessions.forget(holder));
    }

    /// Forgets claims that ended so long ago that no caller asks for them any more. What they left is swept.
    pub(super) fn forget_old(&self, now: Stamp) {
        for (holder, state) in self.sessions.forget_old(now, |state| state.is_given_up(now)) {
            self.gone(holder, Some(state));
        }
    }

    fn gone(&self, holder: HolderId, state: Option<ClaimState>) {
        let Some(state) = state else { return };
        lock(&self.taken).remove(&state.key);
        if state.watched {
            self.news.tell(News::Forget(holder));
        }
    }
}
