//! Keeping claims, and ending them.

use super::acquire::Asked;
use super::core::{Before, Core, News, Watch, limit};
use super::error::Fault;
use super::keys::{self, Entry};
use super::proto::{Compare, Op, Range, Txn};
use super::seats::Seat;
use crate::error::{Error, Result};
use crate::store::{Claim, LossReason, Release, Renewal};
use crate::token::HolderId;
use futures_util::future::join_all;
use std::collections::BTreeMap;

/// A release under way, also when it is given up half-way.
struct Leaving<'a>(&'a Core, HolderId);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.left(self.1);
    }
}

impl Core {
    /// `renew` of the contract: one keep-alive for each lease, one look for each claim in line.
    pub(super) async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let mut answers: Vec<Option<Result<Renewal>>> = Vec::with_capacity(claims.len());
        let mut held: BTreeMap<i64, Vec<(usize, Seat)>> = BTreeMap::new();
        let mut waiting = Vec::new();
        for (at, claim) in claims.iter().enumerate() {
            let answer = match self.seat(claim.holder) {
                None => Some(Ok(Renewal::Lost(LossReason::Gone))),
                Some(Seat { lost: Some((reason, _)), .. }) => Some(Ok(self.lost(claim, reason))),
                Some(seat) if seat.token.is_some() => {
                    held.entry(seat.lease.id).or_default().push((at, seat));
                    None
                }
                Some(seat) => {
                    waiting.push((at, seat));
                    None
                }
            };
            answers.push(answer);
        }
        // A claim in line needs its lease too, but its look need not wait for the keep-alive.
        let idle: BTreeMap<i64, &Seat> =
            waiting.iter().map(|(_, seat)| (seat.lease.id, seat)).filter(|(id, _)| !held.contains_key(id)).collect();
        let keep = join_all(held.values().map(|seats| self.keep(claims, seats)));
        let keep_idle = join_all(idle.values().map(|seat| self.keep_waiting(claims, seat)));
        let look =
            join_all(waiting.iter().map(|(at, seat)| async { (*at, self.renew_waiting(&claims[*at], seat).await) }));
        let (kept, _, looked) = futures_util::future::join3(keep, keep_idle, look).await;
        for (at, answer) in kept.into_iter().flatten().chain(looked) {
            answers[at] = Some(answer);
        }
        let unanswered = || Err(Error::unavailable("the renewal was left unanswered").in_store("etcd"));
        let named = |(claim, answer): (&Claim, Option<Result<Renewal>>)| {
            answer.unwrap_or_else(unanswered).map_err(|e| e.for_lock(&claim.name))
        };
        claims.iter().zip(answers).map(named).collect()
    }

    /// All held claims of one lease.
    async fn keep(&self, claims: &[Claim], seats: &[(usize, Seat)]) -> Vec<(usize, Result<Renewal>)> {
        let Some((_, Seat { lease, .. })) = seats.first() else { return Vec::new() };
        let own: Vec<_> = seats.iter().map(|(_, seat)| (seat.key.clone(), seat.created.unwrap_or(0))).collect();
        // The earliest stamp: the keep-alive was sent after every one of them.
        let stamp = seats.iter().map(|(at, _)| claims[*at].stamp).min().unwrap_or_default();
        let ttl = seats.iter().map(|(at, _)| claims[*at].ttl).min().unwrap_or_default();
        let kept = self.keep_alive(lease, stamp, &own, limit(ttl)).await;
        let answer = |(n, (at, seat)): (usize, &(usize, Seat))| {
            let (at, seat, kept, lease) = (*at, seat.clone(), kept.clone(), lease.clone());
            async move {
                let claim = &claims[at];
                let answer = match kept {
                    Err(error) => Err(error),
                    Ok(None) => Ok(self.lost(claim, LossReason::SessionEnded)),
                    Ok(Some(kept)) if kept.there.get(n) == Some(&true) => {
                        self.watch_own(claim, &seat, kept.revision);
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
        join_all(seats.iter().enumerate().map(answer)).await
    }

    /// The lease of claims that only wait; whether it lives shows in their looks.
    async fn keep_waiting(&self, claims: &[Claim], seat: &Seat) {
        let stamp = claims.iter().map(|claim| claim.stamp).min().unwrap_or_default();
        if stamp.since(seat.lease.acked()) >= seat.lease.ttl / 6 {
            // A failure changes nothing yet: the next one comes soon.
            let _ = self.keep_alive(&seat.lease, stamp, &[], limit(seat.lease.ttl)).await;
        }
    }

    async fn renew_waiting(&self, claim: &Claim, seat: &Seat) -> Result<Renewal> {
        let keys = self.keys(&claim.name)?;
        let mut seat = seat.clone();
        if seat.created.is_none() {
            // Its acquire was never answered: what is there is found out here.
            let then = vec![Range::one(&seat.key[..]).into()];
            let read = self.rpc.txn(Txn { then, ..Txn::default() }, limit(claim.ttl)).await.map_err(Error::from)?;
            let kv = read.ranges().next().and_then(|range| range.kvs.into_iter().next());
            let own = kv.map(|kv| Entry::read(&keys, kv)).filter(|own| own.holder == Some(claim.holder));
            let found = own.map(|own| own.created);
            self.edit(claim.holder, |seat| seat.created = found);
            seat.created = found;
        }
        Ok(match self.look(claim, &keys, &seat).await? {
            Asked::Holds(token) => Renewal::Granted(seat.lease.grant(token, claim)),
            Asked::Waits(held) | Asked::Refused(held) => Renewal::Waiting(held),
            Asked::Over(reason) => self.lost(claim, reason),
            Asked::Known(_) | Asked::Leftover(_) => self.lost(claim, LossReason::Gone),
        })
    }

    fn lost(&self, claim: &Claim, reason: LossReason) -> Renewal {
        self.stand_up(claim.holder);
        Renewal::Lost(reason)
    }

    /// A claim that is held for long is told at once when somebody deletes its key.
    fn watch_own(&self, claim: &Claim, seat: &Seat, revision: i64) {
        if seat.watched || self.edit(claim.holder, |seat| seat.watched = true).is_none() {
            return;
        }
        self.tell(News::Watch(Watch {
            holder: claim.holder,
            name: claim.name.clone(),
            own: seat.key.clone(),
            before: Before::Nobody,
            revision,
        }));
    }

    /// `release` of the contract, for one claim.
    pub(super) async fn release(&self, claim: &Claim) -> Result<Release> {
        let Some(seat) = self.leave(claim) else { return Ok(Release::NotHeld) };
        let _leaving = Leaving(self, claim.holder);
        if seat.lost.is_some() {
            self.stand_up(claim.holder);
            return Ok(Release::NotHeld);
        }
        match self.end(claim, &seat).await {
            Ok(released) => {
                self.stand_up(claim.holder);
                if claim.unsettled || seat.unanswered > 0 {
                    // What may still arrive is refused here, or swept there.
                    self.refuse(claim.holder);
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
    async fn end(&self, claim: &Claim, seat: &Seat) -> Result<bool, Fault> {
        let Seat { key, created, .. } = seat;
        // Keys are used again, and this may arrive late: without a revision to compare, the key must be the holder's own.
        let compare = match created {
            Some(created) => vec![Compare::created(key, *created)],
            None => Compare::value_between(key, keys::notes_of(claim.holder)).into(),
        };
        let txn = Txn { compare, then: vec![Op::delete(&key[..])], otherwise: Vec::new() };
        Ok(self.rpc.txn(txn, limit(claim.ttl)).await?.succeeded)
    }
}
