//! A claim that is there already: where it stands, whether its turn has come, and why it is gone.

use super::acquire::Asked;
use super::claims::ClaimState;
use super::core::{Core, News, Watch};
use super::entry::{note_text, token};
use super::error::Fault;
use super::keys::{self, Keys};
use super::lease::Lease;
use super::line::{COUNTED, Line, reads};
use super::proto::{Compare, KeyValue, Op, Range, Txn};
use crate::error::{Error, Result};
use crate::mutant::planted;
use crate::store::{Attempt, Claim, LossReason, Mode};
use crate::stores::shared::timing::{ASK_LIMIT, call_limit};
use std::sync::Arc;

/// What the first transaction of a look does.
enum Step {
    Glance,
    Take,
    Read,
}

impl Core {
    /// A claim that is known to be there asks again.
    pub(super) async fn ask_again(&self, claim: &Claim, keys: &Keys, state: &ClaimState) -> Result<Attempt> {
        let asked = match state.token {
            None => self.look(claim, keys, state).await?,
            Some(token) => {
                let then = vec![Range::one(&state.key[..]).keys_only().into()];
                let answer =
                    self.rpc.txn(Txn { then, ..Txn::default() }, call_limit(claim.ttl)).await.map_err(Error::from)?;
                let found = answer.ranges().next().and_then(|range| Some(range.kvs.first()?.create_revision));
                match found == state.created && !state.session.has_ended() {
                    true => Asked::Holds(token),
                    false => Asked::Over(LossReason::Gone),
                }
            }
        };
        Ok(match asked {
            Asked::Holds(token) => Attempt::Granted(state.session.grant(token, claim)),
            Asked::Waits(held) | Asked::Refused(held) => Attempt::Held(held),
            Asked::Over(_) | Asked::Known(_) | Asked::Leftover(_) => {
                self.forget(claim.holder);
                Attempt::Cancelled
            }
        })
    }

    /// Looks where a claim in line stands, and takes the lock if it is its turn.
    ///
    /// The keys before it can only become fewer, so a turn that has come once stays; taking it writes the claim's key anew,
    /// and the revision of that is the token, which every client can read. It is written once: a repeat finds it written.
    pub(super) async fn look(&self, claim: &Claim, keys: &Keys, state: &ClaimState) -> Result<Asked> {
        let Some(created) = state.created else { return Ok(Asked::Over(LossReason::Gone)) };
        let (own, tomb) = (&state.key, keys::tomb(state.session.id, claim.holder));
        // Before it is sent: what happens meanwhile must be looked at again.
        let hinted = self.sessions.edit(claim.holder, |state| std::mem::take(&mut state.hinted)).unwrap_or(true);
        let otherwise = reads(keys, claim.mode, own, &tomb, created);
        let mine = vec![Compare::created(own, created), Compare::modified(own, created)];
        let put = Op::put(&own[..], note_text(claim), state.session.id);
        let far = state.held.as_ref().and_then(|held| held.place).is_some_and(|place| place > COUNTED);
        let (step, txn) = match (&state.before, claim.mode) {
            // Far behind, and nothing has happened right in front: that is all there is to know.
            (Some((before, since)), _) if far && !hinted => {
                let compare = vec![Compare::created(own, created), Compare::created(before, *since)];
                (Step::Glance, Txn { compare, then: Vec::new(), otherwise })
            }
            // The key right in front is gone: most likely it is the claim's turn.
            (_, Mode::Exclusive) if hinted && state.held.is_some() => {
                let mut compare = mine.clone();
                compare.push(Compare::none_before(keys.all(), created));
                (Step::Take, Txn { compare, then: vec![put.clone()], otherwise })
            }
            // A read goes to no log. What is in the way of the other modes is decided here.
            _ => (Step::Read, Txn { then: otherwise, ..Txn::default() }),
        };
        let answer = match self.rpc.txn(txn, call_limit(claim.ttl)).await {
            Err(Fault::NoLease) => return Ok(self.ended(state)),
            answer => answer.map_err(Error::from)?,
        };
        let revision = answer.revision();
        match step {
            Step::Glance if answer.succeeded => return Ok(Asked::Waits(state.held.clone().unwrap_or_default())),
            Step::Take if answer.succeeded => {
                return Ok(self.still(state, self.holds(claim, created, revision).map_err(Error::from)?));
            }
            _ => {}
        }
        let line = Line::read(keys, revision, answer.ranges());
        let Some(own_entry) = line.own.as_ref().filter(|entry| entry.created == created) else {
            // A planted bug: see `mutant.rs`.
            if planted("no-recheck-after-wait") {
                return self.unchecked(claim, keys, state, created, &line);
            }
            return Ok(self.why(state, line.tomb.as_ref()));
        };
        if own_entry.modified > created {
            return Ok(self.still(state, self.holds(claim, created, own_entry.modified).map_err(Error::from)?));
        }
        if !line.admits(claim.mode, own, created) {
            return Ok(self.waits(claim, keys, own, created, &line));
        }
        let txn = Txn { compare: mine, then: vec![put], otherwise: vec![Range::one(&own[..]).keys_only().into()] };
        let answer = match self.rpc.txn(txn, call_limit(claim.ttl)).await {
            Err(Fault::NoLease) => return Ok(self.ended(state)),
            answer => answer.map_err(Error::from)?,
        };
        let written = match (answer.succeeded, answer.revision()) {
            (true, revision) => Some(revision),
            (false, _) => {
                let kv = answer.ranges().next().and_then(|range| range.kvs.into_iter().next());
                kv.filter(|kv| kv.create_revision == created).map(|kv| kv.mod_revision)
            }
        };
        match written {
            Some(revision) => Ok(self.still(state, self.holds(claim, created, revision).map_err(Error::from)?)),
            None => Ok(self.why(state, None)),
        }
    }

    pub(super) fn holds(&self, claim: &Claim, created: i64, revision: i64) -> Result<Asked, Fault> {
        let token = token(revision).map_err(Fault::Refused)?;
        self.sessions.edit(claim.holder, |state| (state.created, state.token) = (Some(created), Some(token)));
        Ok(Asked::Holds(token))
    }

    pub(super) fn waits(&self, claim: &Claim, keys: &Keys, own: &[u8], created: i64, line: &Line) -> Asked {
        let before = line.last_before(own, created).map(|entry| (entry.key.clone(), entry.created));
        let changed = self.sessions.edit(claim.holder, |state| {
            let place = line.place(own, state.held.as_ref().and_then(|held| held.place));
            let changed = !state.watched || state.before != before || before.is_none();
            (state.created, state.watched, state.before) = (Some(created), true, before);
            let held = line.held(Some(place));
            state.held = Some(held.clone());
            (held, changed)
        });
        let (held, changed) = changed.unwrap_or_default();
        if changed {
            self.news.tell(News::Watch(Watch {
                holder: claim.holder,
                name: claim.name.clone(),
                own: own.to_vec(),
                before: line.before(keys, claim.mode, own, created),
                revision: line.revision,
            }));
        }
        Asked::Waits(held)
    }

    /// With the bug planted that a waiter never looks whether its own key is there: what it makes of the others.
    fn unchecked(&self, claim: &Claim, keys: &Keys, state: &ClaimState, created: i64, line: &Line) -> Result<Asked> {
        if !line.admits(claim.mode, &state.key, created) {
            return Ok(self.waits(claim, keys, &state.key, created, line));
        }
        state.session.renewed(claim.stamp);
        Ok(self.holds(claim, created, line.revision)?)
    }

    /// A lock on a lease that has ended meanwhile is none.
    fn still(&self, state: &ClaimState, asked: Asked) -> Asked {
        if state.session.has_ended() { Asked::Over(LossReason::SessionEnded) } else { asked }
    }

    fn ended(&self, state: &ClaimState) -> Asked {
        self.lease_ended(&state.session);
        Asked::Over(LossReason::SessionEnded)
    }

    fn why(&self, state: &ClaimState, tomb: Option<&KeyValue>) -> Asked {
        let ended = state.session.has_ended().then_some(LossReason::SessionEnded);
        Asked::Over(ended.or(tomb.map(|_| LossReason::Broken)).unwrap_or(LossReason::Gone))
    }

    /// Why a key that should be there is not: its lease has ended, it was broken, or another client deleted it.
    pub(super) async fn why_gone(&self, claim_tomb: &[u8], lease: &Arc<Lease>) -> Result<LossReason> {
        let then = vec![Range::one(claim_tomb).into()];
        let read = self.rpc.txn(Txn { then, ..Txn::default() }, ASK_LIMIT).await.map_err(Error::from)?;
        if read.ranges().next().is_some_and(|range| !range.kvs.is_empty()) {
            return Ok(LossReason::Broken);
        }
        let left = self.rpc.lease_left(lease.id, false, ASK_LIMIT).await.map_err(Error::from)?;
        // Less than a second left counts as 0; a lease that is over, as -1.
        if left.ttl >= 0 {
            return Ok(LossReason::Gone);
        }
        self.lease_ended(lease);
        Ok(LossReason::SessionEnded)
    }
}
