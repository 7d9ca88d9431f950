//! Ending claims.

use super::{At, Claims};
use crate::error::Result;
use crate::store::{Claim, Release};
use crate::stores::etcd::entry::notes_of;
use crate::stores::etcd::error::Fault;
use crate::stores::etcd::proto::{Compare, Op, Range, Txn};
use crate::stores::shared::session::whole_seconds;
use crate::stores::shared::timing::{TOMBSTONE_EXTRA, call_limit};
use std::time::Duration;

/// The value of a tombstone that a release leaves.
const RELEASED: &[u8] = b"released";

impl Claims {
    /// `release` of the contract, for one claim: one transaction deletes its key and, if an acquire may still arrive, puts
    /// the tombstone that such an acquire compares.
    pub(in crate::stores::etcd) async fn release(&self, claim: &Claim) -> Result<Release> {
        let (at, limit) = (self.at(claim)?, call_limit(claim.ttl));
        self.forget(&at);
        let tomb = if claim.unsettled { self.tombstone(claim, &at, limit).await? } else { None };
        let compare = Compare::value_between(&at.own, notes_of(claim.holder)).into();
        let mut then = vec![Range::one(&at.own[..]).keys_only().into(), Op::delete(&at.own[..])];
        then.extend(tomb.clone());
        let answer = self.core.rpc.txn(Txn { compare, then, otherwise: tomb.into_iter().collect() }, limit).await?;
        if !answer.succeeded {
            return Ok(Release::NotHeld);
        }
        let kv = answer.ranges().next().and_then(|range| range.kvs.into_iter().next());
        if let Some(kv) = kv.filter(|kv| at.number.seconds(kv.lease) > 0) {
            // Nothing hangs on it any more. Left alone it ends by itself.
            let _ = self.core.rpc.lease_revoke(kv.lease, limit).await;
        }
        Ok(Release::Released)
    }

    /// What puts a claim's tombstone, on a lease that ends when no acquire can arrive any more.
    async fn tombstone(&self, claim: &Claim, at: &At, limit: Duration) -> Result<Option<Op>, Fault> {
        let seconds = whole_seconds(claim.ttl + TOMBSTONE_EXTRA);
        match self.lease(at.number.tomb_lease(), seconds, limit).await {
            Ok(lease) => Ok(Some(Op::put(&at.tomb[..], RELEASED, lease))),
            // The server refuses all writes, so also those of an acquire that arrives late.
            Err(Fault::Full) => Ok(None),
            Err(fault) => Err(fault),
        }
    }
}
