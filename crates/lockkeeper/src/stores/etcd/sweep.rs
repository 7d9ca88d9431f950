//! What keeps a lease's surroundings in order: the key that ends with it, and claims that nobody owns.

use super::core::{ASK_LIMIT, Core, MAX_OPS, lock};
use super::error::Fault;
use super::keys;
use super::lease::Lease;
use super::proto::{Compare, Op, Range, Txn};
use crate::error::{Error, Result};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

impl Core {
    /// Puts the key whose end is the end of the lease; the revision up to which it is known to be there.
    pub(super) async fn put_session(&self, lease: &Lease, limit: Duration) -> Result<i64, Fault> {
        let key = keys::session(lease.id);
        let compare = vec![Compare::absent(&key)];
        let then = vec![Op::put(&key[..], "lk1", lease.id)];
        let otherwise = vec![Range::one(&key[..]).keys_only().into()];
        Ok(self.rpc.txn(Txn { compare, then, otherwise }, limit).await?.revision())
    }

    /// Deletes a key that was left over from an earlier claim.
    pub(super) async fn clear(&self, key: &[u8], created: i64, limit: Duration) -> Result<()> {
        let compare = vec![Compare::created(key, created)];
        let txn = Txn { compare, then: vec![Op::delete(key)], otherwise: Vec::new() };
        self.rpc.txn(txn, limit).await.map(drop).map_err(Error::from)
    }

    /// Deletes what hangs on a lease and belongs to no claim, and old tombstones; the tombstones that are left.
    ///
    /// A claim takes its seat before its acquire is sent and keeps it until its release has come back, so a key without a
    /// seat is a leftover: of a release that was lost, or of an acquire that came after it.
    pub(super) async fn sweep(&self, lease: &Arc<Lease>, old: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        let listed = self.rpc.lease_left(lease.id, true, ASK_LIMIT).await.map_err(Error::from)?;
        let (keys, revision) = (listed.keys, listed.header.map_or(0, |header| header.revision));
        let owned: HashSet<Vec<u8>> =
            lock(&self.seats).values().filter(|seat| seat.is_taken()).map(|seat| seat.key.clone()).collect();
        let session = keys::session(lease.id);
        let (tombs, claims): (Vec<_>, Vec<_>) =
            keys.into_iter().filter(|key| *key != session).partition(|key| keys::tomb_of(key).is_some());
        let (ended, kept): (Vec<_>, Vec<_>) = tombs.into_iter().partition(|key| old.contains(key));
        let leftovers: Vec<_> = claims.into_iter().filter(|key| !owned.contains(key)).chain(ended).collect();
        for chunk in leftovers.chunks(MAX_OPS) {
            // Keys are used again: only what was there when they were listed.
            let delete = |key: &Vec<u8>| {
                let compare = vec![Compare::created_until(key, revision)];
                Op::from(Txn { compare, then: vec![Op::delete(&key[..])], otherwise: Vec::new() })
            };
            let then = chunk.iter().map(delete).collect();
            self.rpc.txn(Txn { then, ..Txn::default() }, ASK_LIMIT).await.map_err(Error::from)?;
        }
        Ok(kept)
    }
}
