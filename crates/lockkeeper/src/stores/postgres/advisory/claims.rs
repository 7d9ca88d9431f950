//! What the session holds, claim by claim, and what it has lost.

use super::entries::Entry;
use super::session_task::Outcome;
use crate::error::Result;
use crate::name::LockName;
use crate::store::{Claim, Held, LossReason, Mode, Note};
use crate::stores::postgres::keys::Key;
use crate::stores::postgres::values::unexpected_reply;
use crate::stores::shared::sql::{Answer, out_of_tokens};
use crate::token::{HolderId, Token};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

/// How many claims that ended without their holder's doing are remembered.
const REMEMBERED: usize = 10_000;

/// How many cancelled claims are remembered: more than can be on their way at once.
const CANCELLED: usize = 1000;

/// A lock that the session holds for one claim.
#[derive(Clone, Debug)]
pub(super) struct ClaimState {
    pub(super) name: LockName,
    pub(super) holder: HolderId,
    pub(super) shared: bool,
    pub(super) token: Token,
    since: SystemTime,
    note: Arc<Note>,
}

impl ClaimState {
    pub(super) fn held(&self) -> Held {
        Held { holder: Some((*self.note).clone()), token: Some(self.token), since: Some(self.since), ..Held::default() }
    }
}

/// Everything of one session. To the server a key is held or not; whose it is, is known here only.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// One Exclusive holder, or any number of Shared ones.
    pub(super) own: HashMap<Key, Vec<ClaimState>>,
    ended: VecDeque<(HolderId, LossReason)>,
    /// Claims that were released while their acquire may still be on its way here.
    cancelled: VecDeque<HolderId>,
}

pub(super) fn is_shared(claim: &Claim) -> bool {
    claim.mode == Mode::Shared
}

impl Claims {
    pub(super) fn find(&self, key: Key, holder: HolderId) -> Option<&ClaimState> {
        self.own.get(&key)?.iter().find(|own| own.holder == holder)
    }

    pub(super) fn reason(&self, holder: HolderId) -> LossReason {
        let ended = self.ended.iter().rev().find(|(ended, _)| *ended == holder);
        ended.map_or(LossReason::Gone, |(_, reason)| *reason)
    }

    /// `held`: one of the holders is this claim itself.
    pub(super) fn entry<'a>(&self, (key, claim): &'a (Key, Claim), held: bool) -> Entry<'a> {
        let others = self.own.get(key).map_or(0, Vec::len) - usize::from(held);
        Entry { name: &claim.name, key: *key, shared: is_shared(claim), have: others > 0, holder: claim.holder }
    }

    pub(super) fn taken(&mut self, (key, claim): &(Key, Claim), answer: Answer) -> Result<Outcome> {
        match answer.code {
            1 => {
                let token = answer.token()?;
                self.own.entry(*key).or_default().push(ClaimState {
                    name: claim.name.clone(),
                    holder: claim.holder,
                    shared: is_shared(claim),
                    token,
                    since: SystemTime::now(),
                    note: claim.note.clone(),
                });
                Ok(Outcome::Granted(token))
            }
            0 => Ok(Outcome::Held(answer.held())),
            5 => Err(out_of_tokens()),
            _ => Err(unexpected_reply("an unknown code")),
        }
    }

    pub(super) fn freed(&mut self, (key, claim): &(Key, Claim), held: bool) -> Outcome {
        if !held {
            let name = claim.name.clone();
            crate::log::say(
                move || tracing::warn!(lock = %name, "an advisory lock was released that the session did not hold any more"),
            );
        }
        self.remove(*key, claim.holder);
        Outcome::Released(held)
    }

    pub(super) fn remove(&mut self, key: Key, holder: HolderId) {
        if let Some(owns) = self.own.get_mut(&key) {
            owns.retain(|own| own.holder != holder);
            if owns.is_empty() {
                self.own.remove(&key);
            }
        }
    }

    /// Calls reach the session in no certain order: an acquire that comes after its release must not be granted.
    pub(super) fn cancel(&mut self, claim: &Claim) {
        if claim.unsettled && !self.is_cancelled(claim.holder) {
            if self.cancelled.len() == CANCELLED {
                self.cancelled.pop_front();
            }
            self.cancelled.push_back(claim.holder);
        }
    }

    pub(super) fn is_cancelled(&self, holder: HolderId) -> bool {
        self.cancelled.iter().rev().any(|cancelled| *cancelled == holder)
    }

    pub(super) fn remember(&mut self, holder: HolderId, reason: LossReason) {
        if self.ended.len() == REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back((holder, reason));
    }
}
