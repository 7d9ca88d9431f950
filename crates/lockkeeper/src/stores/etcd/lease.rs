//! A keeper's leases: granted at the first use of a TTL, kept alive, and ended with all their claims.
//!
//! A lease lives as long as keep-alives come: those of the engine's renewals, and while nothing is held those of
//! `tend`, so that an acquire finds one ready.

use super::core::{Core, MAX_OPS, News};
use super::error::Fault;
use super::keys;
use super::proto::{Op, Range, RangeAnswer};
use crate::clock::Stamp;
use crate::error::Result;
use crate::store::{Event, LossReason};
use crate::stores::shared::session::{Session, whole_seconds};
use crate::stores::shared::timing::call_limit;
use std::sync::Arc;
use std::time::Duration;

pub(super) type Lease = Session<Granted>;

/// A lease as the server knows it.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) id: i64,
}

/// What was seen after a keep-alive.
#[derive(Clone, Debug)]
pub(super) struct AfterKeepAlive {
    /// Which of the keys are there.
    pub(super) there: Vec<bool>,
    pub(super) revision: i64,
}

impl Core {
    /// The lease for new claims of this TTL, if it was kept alive not long ago.
    pub(super) fn ready_lease(&self, ttl: Duration, now: Stamp) -> Option<Arc<Lease>> {
        self.sessions.ready(self.class(ttl), now)
    }

    /// The lease for new claims of this TTL: kept alive, or granted.
    pub(super) async fn lease_for(&self, ttl: Duration) -> Result<Arc<Lease>> {
        let (class, limit) = (self.class(ttl), call_limit(ttl));
        let renew = |old: Arc<Lease>, now| async move { Ok(self.keep_alive(&old, now, &[], limit).await?.is_some()) };
        let open = async {
            let seconds = i64::try_from(class).unwrap_or(i64::MAX);
            let granted = self.rpc.lease_grant(seconds, limit).await?;
            // A login that may not keep what goes with a lease is told so by its first claim.
            if let Err(fault @ Fault::Refused(_)) = self.put_session(granted.id, limit).await {
                return Err(fault.into());
            }
            let ttl = Duration::from_secs(u64::try_from(granted.ttl).unwrap_or(0));
            Ok((ttl, Granted { id: granted.id }))
        };
        let (lease, new) = self.sessions.get(class, renew, open).await?;
        if new {
            self.news.tell(News::Lease(lease.clone()));
        }
        Ok(lease)
    }

    fn class(&self, ttl: Duration) -> u64 {
        whole_seconds(ttl).max(self.floor)
    }

    /// Keeps a lease alive, then looks at some keys: which of them are there, created when they should. `None` when the
    /// lease has ended. See `proof.rs` for when a keep-alive counts.
    pub(super) async fn keep_alive(
        &self,
        lease: &Arc<Lease>,
        stamp: Stamp,
        keys: &[(Vec<u8>, i64)],
        limit: Duration,
    ) -> Result<Option<AfterKeepAlive>> {
        Ok(self.rpc.logged_in(|| self.keep_alive_once(lease, stamp, keys, limit)).await?)
    }

    async fn keep_alive_once(
        &self,
        lease: &Arc<Lease>,
        stamp: Stamp,
        keys: &[(Vec<u8>, i64)],
        limit: Duration,
    ) -> Result<Option<AfterKeepAlive>, Fault> {
        let connection = self.rpc.connection(limit).await.map_err(Fault::Refused)?;
        let Some(term) = self.rpc.keep(&connection, lease.id, limit).await? else {
            self.lease_ended(lease);
            return Ok(None);
        };
        let mut kept = AfterKeepAlive { there: Vec::with_capacity(keys.len()), revision: 0 };
        let mut chunks: Vec<&[(Vec<u8>, i64)]> = keys.chunks(MAX_OPS).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        for chunk in chunks {
            let mut then: Vec<Op> = chunk.iter().map(|(key, _)| Range::one(&key[..]).keys_only().into()).collect();
            if then.is_empty() {
                then.push(Range::one(keys::session(lease.id)).keys_only().into());
            }
            let read = self.rpc.read_in(&connection, term, then, limit).await?;
            kept.revision = read.revision();
            let there = |(range, (_, created)): (RangeAnswer, &(Vec<u8>, i64))| {
                range.kvs.first().is_some_and(|kv| kv.create_revision == *created)
            };
            kept.there.extend(read.ranges().zip(chunk).map(there));
        }
        lease.renewed(stamp);
        Ok(Some(kept))
    }

    /// A lease is over, and so is every claim on it.
    pub(super) fn lease_ended(&self, lease: &Arc<Lease>) {
        for holder in self.sessions.end(lease) {
            self.news.tell(News::Event(Event::Lost(holder, LossReason::SessionEnded)));
        }
    }
}
