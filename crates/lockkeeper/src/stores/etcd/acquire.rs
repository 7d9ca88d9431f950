//! Taking a lock, or a place in its line; and the claim that asks again.

use super::ask::{Asking, Found, free};
use super::claims::ClaimState;
use super::core::Core;
use super::entry::{Entry, note_text};
use super::error::Fault;
use super::keys::{self, Keys};
use super::lease::Lease;
use super::line;
use super::proto::{Compare, Op, Txn};
use crate::clock::system_now;
use crate::error::Result;
use crate::store::{Attempt, Claim, Held, LossReason, Mode};
use crate::stores::shared::timing::call_limit;
use crate::token::Token;
use std::sync::Arc;

/// What became of a claim.
#[derive(Debug)]
pub(super) enum Asked {
    Holds(Token),
    Waits(Held),
    /// Not free, and the claim does not wait.
    Refused(Held),
    /// The claim has been there since that revision.
    Known(i64),
    /// Its key is there since that revision, left over from a claim that is forgotten.
    Leftover(i64),
    /// It has ended.
    Over(LossReason),
}

impl Core {
    /// `try_acquire` of the contract, for one claim. What is rare is boxed: the rest is small enough to be made each time.
    pub(super) async fn acquire(&self, claim: &Claim) -> Result<Attempt> {
        let keys = self.keys(&claim.name)?;
        let mut first = true;
        loop {
            let known = self.sessions.state(claim.holder);
            if known.as_ref().is_some_and(|state| state.is_over()) {
                return Ok(Attempt::Cancelled);
            }
            if let Some(state) = known.as_ref().filter(|state| state.created.is_some()) {
                return Box::pin(self.ask_again(claim, &keys, state)).await;
            }
            let lease = match known {
                Some(state) if !state.session.has_ended() => state.session,
                _ => match self.ready_lease(claim.ttl, system_now()) {
                    Some(lease) => lease,
                    None => Box::pin(self.lease_for(claim.ttl)).await?,
                },
            };
            let Some(state) = self.begin(claim, &keys, &lease) else { return Ok(Attempt::Cancelled) };
            let asked = match claim.mode {
                Mode::Permit { .. } => Box::pin(self.ask_closely(claim, &keys, &state)).await,
                _ => self.ask(claim, &keys, &state).await,
            };
            match asked {
                Err(fault) if !fault.is_definite() => {
                    self.doubt();
                    return Err(fault.into());
                }
                Err(Fault::NoLease) => {}
                _ if lease.has_ended() => {}
                Ok(Asked::Leftover(created)) if first => {
                    first = false;
                    self.answered(claim.holder, false);
                    // While the claim has its state, no other claim of this keeper has its key.
                    if self.sessions.state(claim.holder).is_none_or(|now| now.key != state.key) {
                        return Ok(Attempt::Cancelled);
                    }
                    Box::pin(self.clear(&state.key, created, call_limit(claim.ttl))).await?;
                    continue;
                }
                Err(fault) => {
                    self.answered(claim.holder, true);
                    return Err(fault.into());
                }
                Ok(asked) => return self.settle(claim, &keys, &lease, asked).await,
            }
            // A claim on a lease that has ended was not made, or is gone: once more, on another lease.
            self.forget(claim.holder);
            self.lease_ended(&lease);
            if !std::mem::take(&mut first) {
                return Err(Fault::NoLease.into());
            }
        }
    }

    async fn settle(&self, claim: &Claim, keys: &Keys, lease: &Arc<Lease>, asked: Asked) -> Result<Attempt> {
        let wanted = self.answered(claim.holder, matches!(asked, Asked::Refused(_)));
        Ok(match asked {
            // Its release came first, and this answer late.
            Asked::Holds(_) | Asked::Waits(_) if !wanted => Attempt::Cancelled,
            Asked::Holds(token) => Attempt::Granted(lease.grant(token, claim)),
            Asked::Waits(held) | Asked::Refused(held) => Attempt::Held(held),
            Asked::Over(_) | Asked::Leftover(_) => {
                self.forget(claim.holder);
                Attempt::Cancelled
            }
            Asked::Known(created) => {
                self.sessions.edit(claim.holder, |state| state.created = Some(created));
                match self.sessions.state(claim.holder) {
                    Some(state) => return Box::pin(self.ask_again(claim, keys, &state)).await,
                    None => Attempt::Cancelled,
                }
            }
        })
    }

    /// Takes a free lock, or a place in line, in one transaction that writes nothing when refused.
    async fn ask(&self, claim: &Claim, keys: &Keys, state: &ClaimState) -> Result<Asked, Fault> {
        if state.unanswered == 1
            && let Some(asked) = self.ask_first(claim, keys, state).await?
        {
            return Ok(asked);
        }
        Box::pin(self.ask_closely(claim, keys, state)).await
    }

    /// What a claim asks whose key may be there already, and a permit always.
    async fn ask_closely(&self, claim: &Claim, keys: &Keys, state: &ClaimState) -> Result<Asked, Fault> {
        let (own, lease) = (&state.key, state.session.id);
        let tomb = keys::tomb(lease, claim.holder);
        // The line alone tells who holds: what is written is the same.
        let text = note_text(claim);
        let asking = Asking { claim, keys, own, tomb: &tomb, lease, holds: text.clone(), waits: text };
        let found = match claim.mode {
            Mode::Permit { .. } => self.ask_permit_line(&asking).await?,
            _ => self.ask_line(&asking).await?,
        };
        Ok(match found {
            Found::Took(revision) => return self.holds(claim, revision, revision),
            Found::Joined(created, line) => self.waits(claim, keys, own, created, &line),
            Found::There(own) => known(claim, &own),
            Found::Ended => Asked::Over(LossReason::Broken),
            Found::Refused(held) => Asked::Refused(held),
        })
    }

    /// What a claim asks first, as short as can be: it goes to the log of every member. `None` when its own key is there
    /// already, which takes a closer look.
    async fn ask_first(&self, claim: &Claim, keys: &Keys, state: &ClaimState) -> Result<Option<Asked>, Fault> {
        let own = &state.key;
        let put = Op::put(&own[..], note_text(claim), state.session.id);
        let joins = claim.queue && claim.mode == Mode::Exclusive;
        let txn = if joins {
            // The first in line then holds.
            Txn { compare: vec![Compare::absent(own)], then: vec![put, line::first(keys)], otherwise: Vec::new() }
        } else {
            let otherwise = if claim.queue {
                let (compare, then) = (vec![Compare::absent(own)], vec![put.clone()]);
                vec![Txn { compare, then, otherwise: Vec::new() }.into()]
            } else {
                vec![line::first(keys)]
            };
            Txn { compare: free(claim.mode, keys, own), then: vec![put], otherwise }
        };
        let mut answer = self.rpc.txn(txn, call_limit(claim.ttl)).await?;
        let (succeeded, revision) = (answer.succeeded, answer.revision());
        let queued = answer.nested().is_some_and(|nested| nested.succeeded);
        let first = answer.ranges().next().and_then(|range| range.kvs.into_iter().next());
        let first = first.map(|kv| Entry::read(keys, kv));
        let is_own = first.as_ref().is_some_and(|first| first.key == *own);
        match (succeeded, first) {
            (true, _) if !joins || is_own => self.holds(claim, revision, revision).map(Some),
            // In line; where, takes a second look.
            (true, _) => Ok(Some(Asked::Known(revision))),
            (false, _) if queued => Ok(Some(Asked::Known(revision))),
            (false, Some(first)) if !is_own => Ok(Some(Asked::Refused(first.held(None)))),
            (false, _) => Ok(None),
        }
    }
}

/// What a key of the claim's own means.
fn known(claim: &Claim, own: &Entry) -> Asked {
    if own.holder == Some(claim.holder) { Asked::Known(own.created) } else { Asked::Leftover(own.created) }
}

/// The value of a tombstone that an operator's break leaves.
pub(super) const BROKEN: &[u8] = b"broken";
