//! Keeping claims, and ending them.

use super::acquire::Asked;
use super::claims::ClaimState;
use super::core::{Before, Core, News, Watch};
use super::entry::{self, Entry};
use super::error::Fault;
use super::keys;
use super::proto::{Compare, Op, Range, Txn};
use crate::error::{Error, Result};
use crate::mutant::planted;
use crate::store::{Claim, LossReason, Release, Renewal};
use crate::stores::shared::batch::in_order;
use crate::stores::shared::timing::call_limit;
use futures_util::future::join_all;
use std::collections::BTreeMap;

impl Core {
    /// `renew` of the contract: one keep-alive for each lease, one look for each claim in line.
    pub(super) async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let mut answers: Vec<(usize, Result<Renewal>)> = Vec::with_capacity(claims.len());
        let mut held: BTreeMap<i64, Vec<(usize, ClaimState)>> = BTreeMap::new();
        let mut waiting = Vec::new();
        for (at, claim) in claims.iter().enumerate() {
            match self.sessions.state(claim.holder) {
                None => answers.push((at, Ok(Renewal::Lost(LossReason::Gone)))),
                // A planted bug: see `mutant.rs`.
                Some(state) if state.token.is_none() && planted("no-recheck-after-wait") => waiting.push((at, state)),
                Some(ClaimState { lost: Some((reason, _)), .. }) => answers.push((at, Ok(self.lost(claim, reason)))),
                Some(state) if state.token.is_some() => {
                    held.entry(state.session.id).or_default().push((at, state));
                }
                Some(state) => waiting.push((at, state)),
            }
        }
        // A claim in line needs its lease too, but its look need not wait for the keep-alive.
        let idle: BTreeMap<i64, &ClaimState> = waiting
            .iter()
            .map(|(_, state)| (state.session.id, state))
            .filter(|(id, _)| !held.contains_key(id))
            .collect();
        let keep = join_all(held.values().map(|states| self.keep(claims, states)));
        let keep_idle = join_all(idle.values().map(|state| self.keep_waiting(claims, state)));
        let look =
            join_all(waiting.iter().map(|(at, state)| async { (*at, self.renew_waiting(&claims[*at], state).await) }));
        let (kept, _, looked) = futures_util::future::join3(keep, keep_idle, look).await;
        in_order(claims, "etcd", answers.into_iter().chain(kept.into_iter().flatten()).chain(looked))
    }

    /// All held claims of one lease.
    async fn keep(&self, claims: &[Claim], states: &[(usize, ClaimState)]) -> Vec<(usize, Result<Renewal>)> {
        let Some((_, ClaimState { session: lease, .. })) = states.first() else { return Vec::new() };
        let own: Vec<_> = states.iter().map(|(_, state)| (state.key.clone(), state.created.unwrap_or(0))).collect();
        // The earliest stamp: the keep-alive was sent after every one of them.
        let stamp = states.iter().map(|(at, _)| claims[*at].stamp).min().unwrap_or_default();
        let ttl = states.iter().map(|(at, _)| claims[*at].ttl).min().unwrap_or_default();
        let kept = self.keep_alive(lease, stamp, &own, call_limit(ttl)).await;
        let answer = |(n, (at, state)): (usize, &(usize, ClaimState))| {
            let (at, state, kept, lease) = (*at, state.clone(), kept.clone(), lease.clone());
            async move {
                let claim = &claims[at];
                let answer = match kept {
                    Err(error) => Err(error),
                    Ok(None) => Ok(self.lost(claim, LossReason::SessionEnded)),
                    Ok(Some(kept)) if kept.there.get(n) == Some(&true) => {
                        self.watch_own(claim, &state, kept.revision);
                        Ok(Renewal::Renewed(lease.left(claim)))
                    }
                    Ok(Some(_)) => {
                        let reason = self.why_gone(&keys::tomb(lease.id, claim.holder), &lease).await;
                        Ok(self.lost(claim, reason.unwrap_or(LossReason::Gone)))
                    }
                };
                (at, answer)
            }
        };
        join_all(states.iter().enumerate().map(answer)).await
    }

    /// The lease of claims that only wait; whether it lives shows in their looks.
    async fn keep_waiting(&self, claims: &[Claim], state: &ClaimState) {
        let stamp = claims.iter().map(|claim| claim.stamp).min().unwrap_or_default();
        if stamp.since(state.session.acked()) >= state.session.ttl / 6 {
            // A failure changes nothing yet: the next one comes soon.
            let _ = self.keep_alive(&state.session, stamp, &[], call_limit(state.session.ttl)).await;
        }
    }

    async fn renew_waiting(&self, claim: &Claim, state: &ClaimState) -> Result<Renewal> {
        let keys = self.keys(&claim.name)?;
        let mut state = state.clone();
        if state.created.is_none() {
            // Its acquire was never answered: what is there is found out here.
            let then = vec![Range::one(&state.key[..]).into()];
            let read =
                self.rpc.txn(Txn { then, ..Txn::default() }, call_limit(claim.ttl)).await.map_err(Error::from)?;
            let kv = read.ranges().next().and_then(|range| range.kvs.into_iter().next());
            let own = kv.map(|kv| Entry::read(&keys, kv)).filter(|own| own.holder == Some(claim.holder));
            let found = own.map(|own| own.created);
            self.sessions.edit(claim.holder, |state| state.created = found);
            state.created = found;
        }
        Ok(match self.look(claim, &keys, &state).await? {
            Asked::Holds(token) => Renewal::Granted(state.session.grant(token, claim)),
            Asked::Waits(held) | Asked::Refused(held) => Renewal::Waiting(held),
            Asked::Over(reason) => self.lost(claim, reason),
            Asked::Known(_) | Asked::Leftover(_) => self.lost(claim, LossReason::Gone),
        })
    }

    fn lost(&self, claim: &Claim, reason: LossReason) -> Renewal {
        self.forget(claim.holder);
        Renewal::Lost(reason)
    }

    /// A claim that is held for long is told at once when another client deletes its key.
    fn watch_own(&self, claim: &Claim, state: &ClaimState, revision: i64) {
        if state.watched || self.sessions.edit(claim.holder, |state| state.watched = true).is_none() {
            return;
        }
        self.news.tell(News::Watch(Watch {
            holder: claim.holder,
            name: claim.name.clone(),
            own: state.key.clone(),
            before: Before::Nothing,
            revision,
        }));
    }

    /// `release` of the contract, for one claim.
    pub(super) async fn release(&self, claim: &Claim) -> Result<Release> {
        let Some((state, _leaving)) = self.leave(claim) else {
            if claim.unsettled {
                self.doubt();
            }
            return Ok(Release::NotHeld);
        };
        if state.lost.is_some() {
            self.forget(claim.holder);
            return Ok(Release::NotHeld);
        }
        match self.end(claim, &state).await {
            Ok(released) => {
                self.forget(claim.holder);
                if claim.unsettled || state.unanswered > 0 {
                    // What may still arrive is swept.
                    self.doubt();
                }
                Ok(if released { Release::Released } else { Release::NotHeld })
            }
            Err(fault) => {
                self.doubt();
                Err(fault.into())
            }
        }
    }

    /// Deletes a claim's key if it is its own.
    async fn end(&self, claim: &Claim, state: &ClaimState) -> Result<bool, Fault> {
        let key = &state.key;
        // Keys are used again, and this may arrive late: without a revision to compare, the key must be the holder's own.
        let compare = match state.created {
            Some(created) => vec![Compare::created(key, created)],
            None => Compare::value_between(key, entry::notes_of(claim.holder)).into(),
        };
        let txn = Txn { compare, then: vec![Op::delete(&key[..])], otherwise: Vec::new() };
        Ok(self.rpc.txn(txn, call_limit(claim.ttl)).await?.succeeded)
    }
}
