//! One claim on its way through a round: its commands, and what the nodes' answers mean.

use super::ask::is_silence;
use super::operators::{NodeView, held};
use super::scripts::{ACQUIRE, CONFIRM, RELEASE};
use super::texts;
use crate::error::{Error, ErrorKind, Result};
use crate::machine::quorum::{Ballot, Verdict, Vote, quorum};
use crate::store::{Attempt, Claim, Grant, Mode};
use crate::stores::redis::driver::call::{Call, Reply};
use crate::stores::redis::keys::{companion, millis};
use crate::stores::shared::timing::TOMBSTONE_EXTRA;
use crate::token::{HolderId, Token};
use redis::{Cmd, Value};
use std::time::Duration;

/// What all claims of a round send.
pub(super) struct Terms {
    /// The number that claims propose as their token, and as text.
    pub(super) proposal: u64,
    pub(super) text: String,
    /// When the round began, by the wall clock in microseconds: for people.
    pub(super) since: u64,
    /// The holder that a break takes the lock from.
    pub(super) displaced: Option<HolderId>,
}

/// One claim on its way through a round.
pub(super) struct Race<'a> {
    pub(super) claim: &'a Claim,
    /// Which attempt of the claim this is.
    attempt: u64,
    proposal: u64,
    ballot: Ballot,
    /// The lease that is left on each node which had given the claim the lock before; empty if there is none.
    leases: Vec<Duration>,
    /// What each node that refused has shown; empty if there is none.
    views: Vec<NodeView>,
    error: Option<Error>,
    /// Whether nodes are asked: not for a claim that no node could grant.
    pub(super) sent: bool,
    pub(super) answer: Option<Result<Attempt>>,
}

impl<'a> Race<'a> {
    pub(super) fn new(claim: &'a Claim, attempt: u64, terms: &Terms, nodes: usize) -> Self {
        let refusal = texts::check(&claim.name).and_then(|()| check_mode(claim.mode)).err();
        Self {
            claim,
            attempt,
            proposal: terms.proposal,
            ballot: Ballot::new(nodes, quorum(nodes)),
            leases: Vec::new(),
            views: Vec::new(),
            error: None,
            sent: refusal.is_none(),
            answer: refusal.map(|error| Err(error.for_lock(&claim.name))),
        }
    }

    pub(super) fn acquire_command(&self, terms: &Terms, note: &str) -> Cmd {
        let ttl = millis(self.claim.ttl);
        let value = texts::value(self.claim, &terms.text, &ttl, terms.since, self.attempt, note);
        let call = texts::call(&self.claim.name).arg(value).arg(&terms.text).arg(ttl);
        let call = match terms.displaced {
            None => call,
            Some(holder) => call.arg(holder.to_hex()).arg(millis(self.claim.ttl + TOMBSTONE_EXTRA)),
        };
        call.command(&ACQUIRE)
    }

    pub(super) fn confirm_command(&self, token: u64) -> Cmd {
        let lock = self.claim.name.as_bytes();
        Call::new([lock, &companion(b'f', lock)])
            .arg(self.claim.holder.to_hex())
            .arg(token.to_string())
            .command(&CONFIRM)
    }

    /// Takes a node's answer. Returns a token to confirm, and the nodes that have to confirm it.
    pub(super) fn heard(&mut self, node: usize, confirms: bool, answer: Result<Value>) -> Option<(u64, Vec<usize>)> {
        let vote = match answer.and_then(|value| self.read(node, value, confirms)) {
            Ok(vote) => vote,
            Err(error) => {
                self.error = worse(self.error.take(), error);
                Vote::Failed
            }
        };
        self.vote(node, vote)
    }

    fn read(&mut self, node: usize, value: Value, confirms: bool) -> Result<Vote> {
        if value == Value::Int(1) {
            return Ok(Vote::New(self.proposal));
        }
        let (reply, nodes) = (Reply::read(value)?, self.ballot.votes().len());
        match reply.code()? {
            1 => Ok(Vote::New(reply.number(1, "a token")?)),
            2 => {
                let left: i64 = reply.number(2, "a lease")?;
                self.leases.resize(nodes, self.claim.ttl);
                self.leases[node] = u64::try_from(left).map_or(self.claim.ttl, Duration::from_millis);
                Ok(Vote::Mine(reply.number(1, "a token")?))
            }
            0 => {
                if !confirms {
                    self.views.resize(nodes, NodeView::Unknown);
                    self.views[node] = NodeView::read(reply.0.get(1), reply.0.get(2));
                }
                Ok(Vote::Held)
            }
            3 => Ok(Vote::Cancelled),
            _ => Err(Error::new(
                ErrorKind::Unexpected,
                "has no more tokens for this lock: another program damaged its fence key",
            )),
        }
    }

    pub(super) fn vote(&mut self, node: usize, vote: Vote) -> Option<(u64, Vec<usize>)> {
        if self.answer.is_some() {
            return None;
        }
        self.answer = Some(match self.ballot.vote(node, vote) {
            Verdict::Open => return None,
            Verdict::Confirm { token, nodes } => return Some((token, nodes)),
            Verdict::Granted(token) => Token::new(token)
                .map(|token| Attempt::Granted(Grant { token, stamp: self.claim.stamp, lease: self.lease(token) })),
            Verdict::Cancelled => Ok(Attempt::Cancelled),
            Verdict::Refused => Ok(Attempt::Held(held(&self.views))),
            Verdict::Unavailable => {
                Err(too_few(self.ballot.votes().len(), self.error.take()).for_lock(&self.claim.name))
            }
        });
        None
    }

    /// The shortest lease among the nodes that store the token.
    fn lease(&self, token: Token) -> Duration {
        let stores = |vote: &Vote| matches!(vote, Vote::New(n) | Vote::Mine(n) if *n == token.get());
        let leases = self.ballot.votes().iter().zip(&self.leases).filter(|(vote, _)| stores(vote));
        leases.map(|(_, lease)| *lease).min().unwrap_or(self.claim.ttl)
    }

    /// A newer attempt of the claim has begun and may undo votes of this one: only the newer may be granted.
    pub(super) fn give_way(&mut self) {
        if let Some(Ok(Attempt::Granted(_))) = self.answer {
            let error = Error::unavailable("a newer attempt of the same claim is under way").in_store("redlock");
            self.answer = Some(Err(error.for_lock(&self.claim.name)));
        }
    }

    /// What to take back, now that the round is over.
    pub(super) fn undo(&self) -> Option<(&Claim, Scope)> {
        let scope = match &self.answer {
            Some(Ok(Attempt::Granted(_))) => return None,
            Some(Ok(Attempt::Cancelled)) => Scope::UpTo(self.attempt),
            Some(Ok(Attempt::Held(_))) if self.ballot.holds_nothing() => Scope::UpTo(self.attempt),
            Some(Ok(Attempt::Held(_)) | Err(_)) | None => Scope::Taken(self.attempt),
        };
        // A claim that was refused here was never sent.
        self.sent.then_some((self.claim, scope))
    }
}

fn check_mode(mode: Mode) -> Result<()> {
    match mode {
        Mode::Exclusive => Ok(()),
        Mode::Shared => Err(Error::unsupported("Redlock has no shared locks; use redis:// or another store for them")),
        Mode::Permit { .. } => Err(Error::unsupported(
            "Redlock cannot count permits: two majorities share a node, but a third holder of two permits can be counted \
             by another majority; use redis:// or another store for them",
        )),
    }
}

pub(super) fn too_few(nodes: usize, last: Option<Error>) -> Error {
    let text = format!("fewer than {} of {nodes} nodes answered", quorum(nodes));
    match last {
        // An error that an operator has to fix is shown as it is.
        Some(error) if !is_silence(&error) => error,
        Some(error) => {
            let text = format!("{text}: {}", error.message());
            error.reworded(text)
        }
        None => Error::unavailable(text).in_store("redlock"),
    }
}

/// Of two errors the one that an operator has to act on; else both, so that every silent node is named.
pub(super) fn worse(before: Option<Error>, now: Error) -> Option<Error> {
    Some(now.after(before))
}

/// What a release takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Everything of the claim, which has ended.
    Claim,
    /// What this attempt or an older one has: the claim certainly does not hold the lock.
    UpTo(u64),
    /// Only what exactly this attempt took: what it found may belong to a grant.
    Taken(u64),
}

/// Ends `claim`, and leaves a tombstone for as long as `life` says.
pub(super) fn release_command(claim: &Claim, life: Option<Duration>, scope: Scope) -> Cmd {
    let (attempt, which) = match scope {
        Scope::Claim => (String::new(), ""),
        Scope::UpTo(attempt) => (attempt.to_string(), "<"),
        Scope::Taken(attempt) => (attempt.to_string(), "="),
    };
    let (lock, mine) = (claim.name.as_bytes(), texts::mine(claim.holder));
    let call = match life {
        Some(life) => {
            let tombstone = texts::tombstone(&claim.name, claim.holder);
            Call::new([lock, &tombstone]).arg(mine).arg(attempt).arg(which).arg(millis(life))
        }
        None if scope == Scope::Claim => Call::new([lock]).arg(mine),
        None => Call::new([lock]).arg(mine).arg(attempt).arg(which),
    };
    call.command(&RELEASE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_that_a_majority_cannot_do_say_why() {
        let error = check_mode(Mode::Permit { limit: 2 }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("majorit"), "{error}");
        assert!(check_mode(Mode::Shared).is_err() && check_mode(Mode::Exclusive).is_ok());
    }
}
