//! A claim in line: where it stands, and how it takes the lock when its turn has come.

use super::{At, Claims, is_of};
use crate::store::{Claim, Held};
use crate::stores::etcd::entry::{Entry, Standing, note_text, token};
use crate::stores::etcd::error::Fault;
use crate::stores::etcd::line::{Line, reads};
use crate::stores::etcd::proto::{Compare, Op, Txn};
use crate::stores::shared::timing::call_limit;
use crate::token::Token;
use std::time::Duration;

/// Whether it is a claim's turn.
pub(super) enum Turn {
    /// It holds now, on a lease of its whole TTL.
    Came(Token),
    /// It stands in line with this key.
    NotYet(Box<Entry>, Held),
    /// It is not there any more, or holds already.
    Changed,
}

impl Claims {
    /// Looks where a claim in line stands, and takes the lock if it is its turn.
    ///
    /// The keys before it can only become fewer, so a turn that has come once stays; taking it writes the claim's key anew,
    /// and the revision of that is the token. It is written once: a repeat finds it written.
    pub(super) async fn turn(&self, claim: &Claim, at: &At, created: i64, limit: Duration) -> Result<Turn, Fault> {
        let then = reads(&at.keys, claim.mode, &at.own, &at.tomb, created);
        let read = self.core.rpc.txn(Txn { then, ..Txn::default() }, limit).await?;
        let mut line = Line::read(&at.keys, read.revision(), read.ranges());
        let own = line.own.take().filter(is_of(claim));
        let Some(own) = own.filter(|own| own.created == created && own.standing == Standing::Waits) else {
            return Ok(Turn::Changed);
        };
        if !line.admits(claim.mode, &at.own, created) {
            return Ok(Turn::NotYet(own.into(), self.stands(claim, at, created, &line)));
        }
        let Some(revision) = self.rewrite(claim, at, &own, note_text(claim), self.full(claim)).await? else {
            return Ok(Turn::Changed);
        };
        self.forget(at);
        token(revision).map(Turn::Came).map_err(Fault::Refused)
    }

    /// Writes a claim's key anew, on the lease of so many seconds, if it is as it was read; the revision of that.
    pub(super) async fn rewrite(
        &self,
        claim: &Claim,
        at: &At,
        own: &Entry,
        value: Vec<u8>,
        seconds: u64,
    ) -> Result<Option<i64>, Fault> {
        let limit = call_limit(claim.ttl);
        let lease = self.lease(at.number.lease(seconds), seconds, limit).await?;
        let compare = vec![Compare::created(&at.own, own.created), Compare::modified(&at.own, own.modified)];
        let txn = Txn { compare, then: vec![Op::put(&at.own[..], value, lease)], otherwise: Vec::new() };
        let answer = self.core.rpc.txn(txn, limit).await?;
        Ok(answer.succeeded.then(|| answer.revision()))
    }
}
