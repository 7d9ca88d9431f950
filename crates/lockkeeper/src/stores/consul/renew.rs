//! Keeping locks, and giving them back.

use super::acquire::{Look, MAX_RACES, judge};
use super::api::MAX_OPS;
use super::core::{ClaimState, Core};
use super::json::{Entry, Op, Txn};
use super::keys::Value;
use crate::error::{Error, Result};
use crate::store::{Claim, LossReason, Release, Renewal};
use crate::stores::shared::batch::in_order;
use crate::stores::shared::timing::call_limit;
use crate::token::HolderId;
use futures_util::future::{join, join_all};
use std::collections::BTreeMap;
use std::time::Duration;

impl Core {
    /// `renew` of the contract: one renewal for each session, and a look whether the keys are still there.
    pub(super) async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let mut answers: Vec<(usize, Result<Renewal>)> = Vec::with_capacity(claims.len());
        let mut held: BTreeMap<String, Vec<(usize, ClaimState)>> = BTreeMap::new();
        for (at, claim) in claims.iter().enumerate() {
            match self.sessions.state(claim.holder) {
                Some(ClaimState { lost: Some((reason, _)), .. }) => answers.push((at, Ok(self.lost(claim, reason)))),
                Some(state) if state.token.is_some() => {
                    held.entry(state.session.id.clone()).or_default().push((at, state));
                }
                _ => answers.push((at, Ok(Renewal::Lost(LossReason::Gone)))),
            }
        }
        let kept = join_all(held.values().map(|states| self.keep(claims, states))).await;
        in_order(claims, "consul", answers.into_iter().chain(kept.into_iter().flatten()))
    }

    /// All held claims of one session.
    async fn keep(&self, claims: &[Claim], states: &[(usize, ClaimState)]) -> Vec<(usize, Result<Renewal>)> {
        let Some((_, ClaimState { session, .. })) = states.first() else { return Vec::new() };
        // The earliest stamp: the renewal was sent after every one of them.
        let stamp = states.iter().map(|(at, _)| claims[*at].stamp).min().unwrap_or_default();
        let limit = call_limit(session.ttl);
        let looks = join_all(states.chunks(MAX_OPS).map(|chunk| self.unchanged(chunk, limit)));
        let (prolonged, looks) = join(self.prolong(session, stamp, limit), looks).await;
        let looks = looks.into_iter().flatten();
        let answer = |((at, state), look): (&(usize, ClaimState), Result<bool>)| {
            let (at, state, prolonged) = (*at, state.clone(), prolonged.clone());
            async move {
                let answer = match (prolonged, look) {
                    (Ok(false), _) => Ok(self.lost(&claims[at], LossReason::SessionEnded)),
                    (Err(error), _) | (_, Err(error)) => Err(error),
                    (Ok(true), Ok(true)) => Ok(Renewal::Renewed(state.session.left(&claims[at]))),
                    (Ok(true), Ok(false)) => self.look_closer(&claims[at], &state, limit).await,
                };
                (at, answer)
            }
        };
        join_all(states.iter().zip(looks).map(answer)).await
    }

    /// Which of the keys are as they were, in one read.
    async fn unchanged(&self, states: &[(usize, ClaimState)], limit: Duration) -> Vec<Result<bool>> {
        let ops = states.iter().map(|(_, state)| Op::unchanged(&state.key, state.index)).collect();
        match self.http.txn(ops, limit).await {
            Ok(Txn::Done(_)) => states.iter().map(|_| Ok(true)).collect(),
            Ok(Txn::Not(why)) => (0..states.len()).map(|at| Ok(why.iter().all(|(op, _)| *op != at))).collect(),
            Err(error) => states.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// The key of a held claim is not as it was: whether it is still the claim's.
    async fn look_closer(&self, claim: &Claim, state: &ClaimState, limit: Duration) -> Result<Renewal> {
        let (entry, _) = self.http.get(&state.key, limit).await?;
        Ok(match self.whose(claim.holder, state, entry)? {
            Look::Own(index) => {
                self.sessions.edit(claim.holder, |state| state.index = index);
                Renewal::Renewed(state.session.left(claim))
            }
            Look::Broken(index) => {
                // The mark was for this claim alone.
                let ops = vec![Op::unchanged(&state.key, index), Op::delete(&state.key)];
                let _ = self.http.txn(ops, limit).await;
                self.lost(claim, LossReason::Broken)
            }
            Look::Free(_) | Look::Other(_) => {
                let over = self.http.session_info(&state.session.id, None).await?.0.is_none();
                if over {
                    self.session_ended(&state.session);
                }
                self.lost(claim, if over { LossReason::SessionEnded } else { LossReason::Gone })
            }
        })
    }

    /// Like [`judge`], for a claim that held the key: another client may have changed its value, which ends nothing.
    fn whose(&self, holder: HolderId, state: &ClaimState, entry: Option<Entry>) -> Result<Look> {
        if let Some(entry) = &entry
            && entry.session == state.session.id
            && entry.parsed() == Value::Foreign
            && !self.taken_by_another(holder, state)
        {
            return Ok(Look::Own(entry.modify_index));
        }
        judge(&state.key, entry, &state.session, holder)
    }

    fn lost(&self, claim: &Claim, reason: LossReason) -> Renewal {
        self.sessions.forget(claim.holder);
        Renewal::Lost(reason)
    }

    /// `release` of the contract, for one claim.
    ///
    /// If an acquire of it may still be under way, the session's gate is moved first: what was sent before either
    /// has been done by then, and is found here, or is refused.
    pub(super) async fn release(&self, claim: &Claim) -> Result<Release> {
        let Some(state) = self.sessions.release(claim, |_| {}) else { return Ok(Release::NotHeld) };
        let unsettled = claim.unsettled || state.unanswered > 0;
        self.finish(claim.holder, &state, unsettled, call_limit(claim.ttl)).await
    }

    /// Ends claims that were released and are still there: the release was lost, and the session that would end them lives.
    pub(super) async fn sweep(&self) {
        for (holder, state) in self.left_behind() {
            if let Err(error) = self.finish(holder, &state, true, call_limit(state.session.ttl)).await {
                crate::log::say(move || tracing::debug!(%error, "a claim is removed later"));
            }
        }
    }

    /// Removes a claim's key, and the claim once that is certain.
    pub(super) async fn finish(
        &self,
        holder: HolderId,
        state: &ClaimState,
        unsettled: bool,
        limit: Duration,
    ) -> Result<Release> {
        // A session that was given up here may still be there, and the key with it.
        let over = unsettled && !self.move_gate(&state.session, limit).await?;
        let released = !over && self.end(holder, state, limit).await?;
        self.sessions.forget(holder);
        Ok(if released { Release::Released } else { Release::NotHeld })
    }

    /// Deletes the key of a claim if it is its own.
    async fn end(&self, holder: HolderId, state: &ClaimState, limit: Duration) -> Result<bool> {
        let mut index = state.token.map(|_| state.index);
        for _ in 0..MAX_RACES {
            if let Some(index) = index {
                let ops = vec![Op::unchanged(&state.key, index), Op::delete(&state.key)];
                if let Txn::Done(_) = self.http.txn(ops, limit).await? {
                    return Ok(true);
                }
            }
            let (entry, _) = self.http.get(&state.key, limit).await?;
            index = match self.whose(holder, state, entry) {
                Ok(Look::Own(index)) => Some(index),
                // What is there is not this claim's.
                Ok(_) | Err(_) => return Ok(false),
            };
        }
        Err(Error::unavailable("another client changes the key of the lock all the time").in_store("consul"))
    }
}
