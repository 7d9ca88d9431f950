//! The leases of a claim: granted under the claim's own number, kept alive, and how much is left of them.

use super::{At, Claims};
use crate::store::Claim;
use crate::stores::etcd::entry::Entry;
use crate::stores::etcd::error::Fault;
use crate::stores::etcd::proto::Range;
use crate::stores::shared::session::whole_seconds;
use std::time::Duration;

impl Claims {
    /// The seconds of the lease of a claim that holds.
    pub(super) fn full(&self, claim: &Claim) -> u64 {
        whole_seconds(claim.ttl).max(self.core.floor)
    }

    /// The seconds of the lease of a claim in line: short, so that a dead waiter costs the others little.
    pub(super) fn short(&self, claim: &Claim) -> u64 {
        whole_seconds(claim.waiter_lease()).max(self.core.floor)
    }

    /// Sees to it that a lease is there, with all its time to go from now on.
    pub(super) async fn lease(&self, id: i64, seconds: u64, limit: Duration) -> Result<i64, Fault> {
        let ttl = i64::try_from(seconds).unwrap_or(i64::MAX);
        match self.core.rpc.lease_grant_as(id, ttl, limit).await {
            Ok(_) => Ok(id),
            // An earlier call of this claim has made it, and may be long ago.
            Err(Fault::LeaseExists) if self.prolong(id, limit).await? => Ok(id),
            Err(Fault::LeaseExists) => Err(Fault::NoLease),
            Err(fault) => Err(fault),
        }
    }

    /// Keeps a lease alive, proved; whether it is there.
    async fn prolong(&self, id: i64, limit: Duration) -> Result<bool, Fault> {
        let rpc = &self.core.rpc;
        rpc.logged_in(|| async {
            let connection = rpc.connection(limit).await.map_err(Fault::Refused)?;
            let Some(term) = rpc.keep(&connection, id, limit).await? else { return Ok(false) };
            // Which key is read does not matter.
            let read = vec![Range::one(&b"/lk/nothing"[..]).keys_only().into()];
            rpc.read_in(&connection, term, read, limit).await.map(|_| true)
        })
        .await
    }

    /// How much is left of the lease that a claim hangs on; `None` when the claim is not there any more as it was read.
    pub(super) async fn left(&self, at: &At, own: &Entry, limit: Duration) -> Result<Option<Duration>, Fault> {
        let rpc = &self.core.rpc;
        rpc.logged_in(|| async {
            let connection = rpc.connection(limit).await.map_err(Fault::Refused)?;
            let Some((left, term)) = rpc.left(&connection, own.lease, limit).await? else { return Ok(None) };
            let then = vec![Range::one(&at.own[..]).keys_only().into()];
            let read = rpc.read_in(&connection, term, then, limit).await?;
            let kv = read.ranges().next().and_then(|range| range.kvs.into_iter().next());
            Ok(kv.filter(|kv| kv.mod_revision == own.modified).map(|_| left))
        })
        .await
    }
}
