//! Taking a lock, or a place in its line; and the claim that asks again.

use super::turn::Turn;
use super::{At, Claims, MAX_ROUNDS, grant, is_of, too_many};
use crate::error::Result;
use crate::store::{Attempt, Claim, Mode};
use crate::stores::etcd::ask::{Asking, Found, agrees};
use crate::stores::etcd::entry::{Entry, Standing, note_text, token, waiting_text};
use crate::stores::etcd::error::Fault;
use crate::stores::etcd::line::{Line, few, reads};
use crate::stores::etcd::proto::Txn;
use crate::stores::shared::timing::call_limit;
use std::time::Duration;

impl Claims {
    /// `try_acquire` of the contract, for one claim.
    ///
    /// A read comes first: a refused claim then leaves no lease behind, and one that waits gets a short lease. To revoke a
    /// lease instead would be wrong: the message could arrive after a repeat was granted on that lease.
    pub(in crate::stores::etcd) async fn acquire(&self, claim: &Claim) -> Result<Attempt> {
        let (at, limit) = (self.at(claim)?, call_limit(claim.ttl));
        for _ in 0..MAX_ROUNDS {
            let mut line = self.glance(claim, &at, limit).await?;
            if line.tomb.is_some() {
                return Ok(Attempt::Cancelled);
            }
            if let Some(own) = line.own.take() {
                if !is_of(claim)(&own) {
                    return Ok(Attempt::Held(line.held(None)));
                }
                match self.ask_again(claim, &at, &own, limit).await? {
                    Some(attempt) => return Ok(attempt),
                    None => continue,
                }
            }
            let free = line.is_free(claim.mode);
            agrees(claim, &line)?;
            if !free && !claim.queue {
                return Ok(Attempt::Held(line.held(None)));
            }
            let seconds = if free { self.full(claim) } else { self.short(claim) };
            match self.ask(claim, &at, seconds, limit).await? {
                Found::Took(revision) => {
                    return Ok(Attempt::Granted(grant(claim, token(revision)?, Duration::from_secs(seconds))));
                }
                Found::Joined(created, line) => return Ok(Attempt::Held(self.stands(claim, &at, created, &line))),
                Found::Refused(held) => return Ok(Attempt::Held(held)),
                Found::Ended => return Ok(Attempt::Cancelled),
                // Another call of this claim was faster.
                Found::There(_) => {}
            }
        }
        Err(too_many().into())
    }

    /// The claim itself, its tombstone, and as much of the line as says whether the lock is free.
    async fn glance(&self, claim: &Claim, at: &At, limit: Duration) -> Result<Line, Fault> {
        let then = match claim.mode {
            Mode::Exclusive => few(&at.keys, &at.own, &at.tomb),
            mode => reads(&at.keys, mode, &at.own, &at.tomb, 0),
        };
        let read = self.core.rpc.txn(Txn { then, ..Txn::default() }, limit).await?;
        Ok(Line::read(&at.keys, read.revision(), read.ranges()))
    }

    async fn ask(&self, claim: &Claim, at: &At, seconds: u64, limit: Duration) -> Result<Found, Fault> {
        let lease = self.lease(at.number.lease(seconds), seconds, limit).await?;
        let (holds, waits) = (note_text(claim), waiting_text(claim));
        let asking = Asking { claim, keys: &at.keys, own: &at.own, tomb: &at.tomb, lease, holds, waits };
        match claim.mode {
            Mode::Permit { .. } => self.core.ask_permit_line(&asking).await,
            _ => self.core.ask_line(&asking).await,
        }
    }

    /// A claim that is there asks again; `None` when it has changed meanwhile.
    async fn ask_again(&self, claim: &Claim, at: &At, own: &Entry, limit: Duration) -> Result<Option<Attempt>, Fault> {
        if own.standing == Standing::Waits {
            return Ok(match self.turn(claim, at, own.created, limit).await? {
                // A renewal makes it a full lease: a caller that only repeats its question may be gone.
                Turn::Came(token) => Some(Attempt::Granted(grant(claim, token, claim.waiter_lease()))),
                Turn::NotYet(_, held) => Some(Attempt::Held(held)),
                Turn::Changed => None,
            });
        }
        let token = own.token().map_err(Fault::Refused)?;
        let left = self.left(at, own, limit).await?;
        Ok(left.map(|left| Attempt::Granted(grant(claim, token, left))))
    }
}
