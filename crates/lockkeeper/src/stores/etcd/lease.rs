//! A keeper's leases: granted at the first use of a TTL, kept alive, and ended with all their claims.
//!
//! A lease lives as long as keep-alives come: those of the engine's renewals, and while nothing is held those of
//! `tend`, so that an acquire finds one ready.

use super::core::{Core, MAX_OPS, News, limit, lock};
use super::error::{Fault, unknown};
use super::keys;
use super::proto::{Op, Range, RangeAnswer, Txn};
use crate::clock::{Stamp, system_now};
use crate::error::Result;
use crate::store::{Claim, Event, Grant, LossReason};
use crate::token::Token;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// One lease.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) id: i64,
    /// What the server granted.
    pub(super) ttl: Duration,
    /// What was asked for, in whole seconds.
    class: u64,
    /// The stamp of the last keep-alive that was acknowledged.
    acked: AtomicU64,
    /// When it was last looked for by an acquire.
    used: AtomicU64,
    ended: AtomicBool,
}

impl Lease {
    pub(super) fn acked(&self) -> Stamp {
        Stamp::from_micros(self.acked.load(Ordering::Relaxed))
    }

    pub(super) fn used(&self) -> Stamp {
        Stamp::from_micros(self.used.load(Ordering::Relaxed))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether a claim can be made on it without asking.
    fn is_fresh(&self, now: Stamp) -> bool {
        !self.has_ended() && now.since(self.acked()) < self.ttl / 2
    }

    pub(super) fn grant(&self, token: Token, claim: &Claim) -> Grant {
        Grant { token, stamp: claim.stamp, lease: self.left(claim) }
    }

    /// What is left from the claim's stamp on: the lease counts from its last keep-alive, whoever asked for that.
    pub(super) fn left(&self, claim: &Claim) -> Duration {
        let age = claim.stamp.since(self.acked());
        // The engine allows a hundredth of what it is told for clocks that differ; the age needs that allowance too.
        self.ttl.min(claim.ttl).saturating_sub(age + age / 99)
    }
}

/// What was seen after a keep-alive.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    /// Which of the keys are there.
    pub(super) there: Vec<bool>,
    pub(super) revision: i64,
}

impl Core {
    /// The lease for new claims of this TTL, if one is there that was kept alive not long ago.
    pub(super) fn ready_lease(&self, ttl: Duration, now: Stamp) -> Option<Arc<Lease>> {
        let leases = lock(&self.leases);
        let lease = leases.get(&self.class(ttl))?;
        lease.used.store(now.as_micros(), Ordering::Relaxed);
        lease.is_fresh(now).then(|| lease.clone())
    }

    /// The same, asking for it.
    pub(super) async fn lease_for(&self, ttl: Duration) -> Result<Arc<Lease>> {
        // One grant for all who come at once.
        let _one_at_a_time = self.granting.lock().await;
        let now = system_now();
        if let Some(lease) = self.ready_lease(ttl, now) {
            return Ok(lease);
        }
        let class = self.class(ttl);
        let old = lock(&self.leases).get(&class).cloned();
        if let Some(old) = old
            && self.keep_alive(&old, now, &[], limit(ttl)).await?.is_some()
        {
            return Ok(old);
        }
        let now = system_now();
        let seconds = i64::try_from(class).unwrap_or(i64::MAX);
        let granted = self.rpc.lease_grant(seconds, limit(ttl)).await?;
        let lease = Arc::new(Lease {
            id: granted.id,
            ttl: Duration::from_secs(u64::try_from(granted.ttl).unwrap_or(0)),
            class,
            used: AtomicU64::new(now.as_micros()),
            acked: AtomicU64::new(now.as_micros()),
            ended: AtomicBool::new(false),
        });
        // A login that may not keep what goes with a lease is told so by its first claim.
        if let Err(fault @ Fault::Refused(_)) = self.put_session(&lease, limit(ttl)).await {
            return Err(fault.into());
        }
        lock(&self.leases).insert(class, lease.clone());
        self.tell(News::Lease(lease.clone()));
        Ok(lease)
    }

    fn class(&self, ttl: Duration) -> u64 {
        (ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).max(self.floor)
    }

    /// Keeps a lease alive, then looks at some keys: which of them are there, created when they should. `None` when the lease has ended.
    ///
    /// A keep-alive is answered by one member on its own. One that has been replaced as the leader without noticing would
    /// prolong nothing, so it counts only when a read through the same member, which needs a majority, finds the same term
    /// afterwards: nobody else was the leader at the time of the keep-alive.
    pub(super) async fn keep_alive(
        &self,
        lease: &Arc<Lease>,
        stamp: Stamp,
        keys: &[(Vec<u8>, i64)],
        limit: Duration,
    ) -> Result<Option<Kept>> {
        let mut kept = self.keep_alive_once(lease, stamp, keys, limit).await;
        if matches!(kept, Err(Fault::LoggedOut)) && self.rpc.options().login.is_some() {
            kept = self.keep_alive_once(lease, stamp, keys, limit).await;
        }
        Ok(kept?)
    }

    async fn keep_alive_once(
        &self,
        lease: &Arc<Lease>,
        stamp: Stamp,
        keys: &[(Vec<u8>, i64)],
        limit: Duration,
    ) -> Result<Option<Kept>, Fault> {
        let line = self.rpc.line(limit).await.map_err(Fault::Refused)?;
        let answer = match self.rpc.keep_alive(&line, lease.id, limit).await {
            Ok(answer) if answer.ttl > 0 => answer,
            Ok(_) | Err(Fault::NoLease) => {
                self.lease_ended(lease);
                return Ok(None);
            }
            Err(fault) => return Err(fault),
        };
        let term = answer.header.map(|header| header.raft_term);
        let mut kept = Kept { there: Vec::with_capacity(keys.len()), revision: 0 };
        let mut chunks: Vec<&[(Vec<u8>, i64)]> = keys.chunks(MAX_OPS).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        for chunk in chunks {
            let mut then: Vec<Op> = chunk.iter().map(|(key, _)| Range::one(&key[..]).keys_only().into()).collect();
            if then.is_empty() {
                then.push(Range::one(keys::session(lease.id)).keys_only().into());
            }
            let read = self.rpc.txn_on(&line, Txn { then, ..Txn::default() }, limit).await?;
            if read.header.as_ref().map(|header| header.raft_term) != term {
                return Err(unknown("the leader has changed during the keep-alive"));
            }
            kept.revision = read.revision();
            let there = |(range, (_, created)): (RangeAnswer, &(Vec<u8>, i64))| {
                range.kvs.first().is_some_and(|kv| kv.create_revision == *created)
            };
            kept.there.extend(read.ranges().zip(chunk).map(there));
        }
        lease.acked.fetch_max(stamp.as_micros(), Ordering::Relaxed);
        Ok(Some(kept))
    }

    /// A lease is over, and so is every claim on it.
    pub(super) fn lease_ended(&self, lease: &Arc<Lease>) {
        if lease.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut leases = lock(&self.leases);
        if leases.get(&lease.class).is_some_and(|current| current.id == lease.id) {
            leases.remove(&lease.class);
        }
        drop(leases);
        let now = system_now();
        for (holder, seat) in lock(&self.seats).iter_mut() {
            if seat.lease.id == lease.id && seat.lost.is_none() {
                seat.lost = Some((LossReason::SessionEnded, now));
                self.tell(News::Event(Event::Lost(*holder, LossReason::SessionEnded)));
            }
        }
    }

    /// A lease that nobody has used for long is given up.
    pub(super) fn retire(&self, lease: &Arc<Lease>) -> bool {
        let mut leases = lock(&self.leases);
        let idle = !lock(&self.seats).values().any(|seat| seat.lease.id == lease.id);
        if idle {
            lease.ended.store(true, Ordering::Release);
            if leases.get(&lease.class).is_some_and(|current| current.id == lease.id) {
                leases.remove(&lease.class);
            }
        }
        idle
    }
}
