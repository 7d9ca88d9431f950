//! What one member says of a lease on its own, and the read that proves it.
//!
//! A keep-alive, and how much is left of a lease, are answered by one member on its own. One that has been replaced as the
//! leader without noticing would prolong nothing. So the answer counts only when a read through the same member, which needs
//! a majority, finds the same term afterwards: no other member was the leader at the time of the answer.

use super::connect::Connection;
use super::error::{Fault, unknown};
use super::proto::{LeaseAnswer, Op, Txn, TxnAnswer};
use super::rpc::Rpc;
use std::time::Duration;

/// The term in which a member answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Term(u64);

impl Rpc {
    /// Keeps a lease alive; `None` when it has ended. It counts once a read has found the same term.
    pub(super) async fn keep(&self, on: &Connection, id: i64, limit: Duration) -> Result<Option<Term>, Fault> {
        match self.keep_alive(on, id, limit).await {
            Ok(answer) if answer.ttl > 0 => Ok(Some(term(&answer))),
            Ok(_) | Err(Fault::NoLease) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// How much is left of a lease; `None` when it has ended. It counts once a read has found the same term.
    pub(super) async fn left(
        &self,
        on: &Connection,
        id: i64,
        limit: Duration,
    ) -> Result<Option<(Duration, Term)>, Fault> {
        let answer = self.lease_left_on(on, id, limit).await?;
        // Less than a second left counts as 0; a lease that is over, as -1.
        Ok(u64::try_from(answer.ttl).ok().map(|left| (Duration::from_secs(left), term(&answer))))
    }

    /// Reads through a member; an error when the term is not that of its earlier answer.
    pub(super) async fn read_in(
        &self,
        on: &Connection,
        term: Term,
        then: Vec<Op>,
        limit: Duration,
    ) -> Result<TxnAnswer, Fault> {
        let read = self.txn_on(on, Txn { then, ..Txn::default() }, limit).await?;
        if is_in(&read, term) { Ok(read) } else { Err(changed()) }
    }

    /// Calls once more when the login has ended.
    pub(super) async fn logged_in<T, F>(&self, call: impl Fn() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        match call().await {
            Err(Fault::LoggedOut) if self.options().login.is_some() => call().await,
            answer => answer,
        }
    }
}

fn term(answer: &LeaseAnswer) -> Term {
    Term(answer.header.as_ref().map_or(0, |header| header.raft_term))
}

/// Whether a read was answered in that term.
pub(super) fn is_in(read: &TxnAnswer, term: Term) -> bool {
    read.header.as_ref().map(|header| Term(header.raft_term)) == Some(term)
}

pub(super) fn changed() -> Fault {
    unknown("the leader has changed during the call")
}
