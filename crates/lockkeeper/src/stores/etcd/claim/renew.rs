//! Keeping claims: all at once where everything is as expected, one by one where it is not.

use super::turn::Turn;
use super::{At, Claims, MAX_ROUNDS, grant, is_of, too_many};
use crate::error::{Error, Result};
use crate::store::{Claim, LossReason, Renewal};
use crate::stores::etcd::acquire::BROKEN;
use crate::stores::etcd::core::MAX_OPS;
use crate::stores::etcd::entry::{Entry, Standing};
use crate::stores::etcd::error::Fault;
use crate::stores::etcd::proof::{changed, is_in};
use crate::stores::etcd::proto::{KeyValue, Op, Range, Txn};
use crate::stores::shared::timing::call_limit;
use futures_util::future::join_all;
use std::time::Duration;

/// A claim that is looked at, and the seconds of the lease that it is thought to hang on.
type Asked<'a> = (&'a Claim, &'a At, u64);

/// What was found of a claim after a keep-alive.
struct Seen {
    /// Whether the lease of the keep-alive was there.
    kept: bool,
    own: Option<Entry>,
    tomb: Option<KeyValue>,
}

impl Claims {
    /// `renew` of the contract: a keep-alive for each claim side by side, then one read for fifty of them.
    pub(in crate::stores::etcd) async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let places: Vec<Result<At>> = claims.iter().map(|claim| self.at(claim)).collect();
        let asked = claims.iter().zip(&places).filter_map(|(claim, at)| {
            let at = at.as_ref().ok()?;
            // A wrong guess costs another keep-alive.
            let seconds = if self.is_waiting(at) { self.short(claim) } else { self.full(claim) };
            Some((claim, at, seconds))
        });
        let asked: Vec<Asked<'_>> = asked.collect();
        let took = join_all(asked.iter().map(|asked| self.take_at_once(*asked))).await;
        let left: Vec<Asked<'_>> =
            asked.iter().zip(&took).filter(|(_, took)| took.is_none()).map(|(a, _)| *a).collect();
        let limit = call_limit(left.iter().map(|(claim, ..)| claim.ttl).min().unwrap_or_default());
        let seen = self.look(&left, limit).await;
        let renewed = left.iter().zip(seen).map(|(asked, seen)| self.renewed(*asked, seen));
        let mut renewed = join_all(renewed).await.into_iter();
        let mut answers = took.into_iter().map(|took| took.map(Ok).or_else(|| renewed.next()));
        let answer = |(claim, at): (&Claim, Result<At>)| {
            let answer = at.and_then(|_| answers.next().flatten().unwrap_or_else(|| Err(too_many().into())));
            answer.map_err(|error| error.for_lock(&claim.name))
        };
        claims.iter().zip(places).map(answer).collect()
    }

    /// A claim that was woken most likely has its turn: it then needs no keep-alive of its place.
    async fn take_at_once(&self, (claim, at, _): Asked<'_>) -> Option<Renewal> {
        let created = self.woken(at)?;
        match self.turn(claim, at, created, call_limit(claim.ttl)).await {
            Ok(Turn::Came(token)) => Some(Renewal::Granted(grant(claim, token, claim.ttl))),
            // What else may be so is found out in the usual way.
            _ => None,
        }
    }

    /// Keeps leases alive, then looks at the claims that are thought to hang on them.
    async fn look(&self, asked: &[Asked<'_>], limit: Duration) -> Vec<Result<Seen, Fault>> {
        let looked = self.core.rpc.logged_in(|| self.look_once(asked, limit)).await;
        looked.unwrap_or_else(|fault| asked.iter().map(|_| Err(fault.clone())).collect())
    }

    async fn look_once(&self, asked: &[Asked<'_>], limit: Duration) -> Result<Vec<Result<Seen, Fault>>, Fault> {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let rpc = &self.core.rpc;
        let connection = rpc.connection(limit).await.map_err(Fault::Refused)?;
        let keep = |(_, at, seconds): &Asked<'_>| rpc.keep(&connection, at.number.lease(*seconds), limit);
        let kept = join_all(asked.iter().map(keep)).await;
        if kept.iter().any(|kept| matches!(kept, Err(Fault::LoggedOut))) {
            return Err(Fault::LoggedOut);
        }
        let mut seen = Vec::with_capacity(asked.len());
        for (asked, kept) in asked.chunks(MAX_OPS / 2).zip(kept.chunks(MAX_OPS / 2)) {
            let both = |(_, at, _): &Asked<'_>| [&at.own, &at.tomb].map(|key| Op::from(Range::one(&key[..])));
            let then = asked.iter().flat_map(both).collect();
            let read = rpc.txn_on(&connection, Txn { then, ..Txn::default() }, limit).await?;
            let proved = kept.iter().map(|kept| match kept {
                Ok(Some(term)) if is_in(&read, *term) => Ok(true),
                Ok(Some(_)) => Err(changed()),
                Ok(None) => Ok(false),
                Err(fault) => Err(fault.clone()),
            });
            let proved: Vec<Result<bool, Fault>> = proved.collect();
            let mut found = read.ranges().map(|range| range.kvs.into_iter().next());
            let mut next = || found.next().flatten();
            seen.extend(asked.iter().zip(proved).map(|((_, at, _), proved)| {
                let (own, tomb) = (next().map(|kv| Entry::read(&at.keys, kv)), next());
                proved.map(|kept| Seen { kept, own, tomb })
            }));
        }
        Ok(seen)
    }

    /// What a claim is told that was looked at.
    async fn renewed(&self, (claim, at, mut seconds): Asked<'_>, mut seen: Result<Seen, Fault>) -> Result<Renewal> {
        let limit = call_limit(claim.ttl);
        for _ in 0..MAX_ROUNDS {
            let Seen { kept, own, tomb } = seen?;
            let Some(own) = own.filter(is_of(claim)) else {
                self.forget(at);
                return Ok(Renewal::Lost(why(tomb.as_ref(), kept)));
            };
            let has = at.number.seconds(own.lease);
            let is_kept = kept && has == seconds;
            let wanted = if own.standing == Standing::Waits {
                let wanted = self.short(claim);
                match self.turn(claim, at, own.created, limit).await? {
                    Turn::Came(token) => return Ok(Renewal::Granted(grant(claim, token, claim.ttl))),
                    Turn::NotYet(own, held) => {
                        if (is_kept && has >= wanted) || (has < wanted && self.moved(claim, at, &own, wanted).await?) {
                            return Ok(Renewal::Waiting(held));
                        }
                    }
                    Turn::Changed => {}
                }
                wanted
            } else {
                let wanted = self.full(claim);
                if (is_kept && has >= wanted) || (has < wanted && self.moved(claim, at, &own, wanted).await?) {
                    self.forget(at);
                    return Ok(Renewal::Renewed(claim.ttl));
                }
                wanted
            };
            // Once more, with the lease that it hangs on.
            seconds = has.max(wanted);
            let again = self.look(&[(claim, at, seconds)], limit).await;
            seen = again.into_iter().next().unwrap_or_else(|| Err(too_many()));
        }
        Err(Error::from(too_many()))
    }

    /// Moves a claim to a longer lease; whether it was there as it was read.
    async fn moved(&self, claim: &Claim, at: &At, own: &Entry, seconds: u64) -> Result<bool, Fault> {
        let Some(value) = own.rewritten() else { return Ok(false) };
        Ok(self.rewrite(claim, at, own, value, seconds).await?.is_some())
    }
}

/// Why a claim's key is not there: an operator broke it, another client deleted it, or its lease has ended.
fn why(tomb: Option<&KeyValue>, lease_is_there: bool) -> LossReason {
    match tomb {
        Some(tomb) if tomb.value == BROKEN => LossReason::Broken,
        None if !lease_is_there => LossReason::Expired,
        _ => LossReason::Gone,
    }
}
