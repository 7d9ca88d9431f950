//! One claim on its way through a round: its commands, and what the nodes' answers mean.

use super::ask::is_silence;
use super::operators::{NodeView, held};
use super::scripts::{ACQUIRE, CONFIRM, RELEASE};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::quorum::{Ballot, Verdict, Vote, quorum};
use crate::name::LockName;
use crate::store::{Attempt, Claim, Grant, Mode};
use crate::stores::redis::driver::script::{Call, Reply};
use crate::stores::redis::keys::{Keys, companion, millis, note_text};
use crate::stores::shared::timing::TOMBSTONE_EXTRA;
use crate::token::{HolderId, Token};
use redis::{Cmd, Value};
use std::time::Duration;

/// One claim on its way through a round.
pub(super) struct Race<'a> {
    pub(super) claim: &'a Claim,
    pub(super) keys: Option<Keys>,
    /// Which attempt of the claim this is.
    attempt: u64,
    ballot: Ballot,
    /// The lease that each node which granted has promised.
    leases: Vec<Duration>,
    /// What each node that refused has shown.
    views: Vec<NodeView>,
    error: Option<Error>,
    pub(super) answer: Option<Result<Attempt>>,
}

impl<'a> Race<'a> {
    pub(super) fn new(claim: &'a Claim, attempt: u64, nodes: usize) -> Self {
        let (keys, refusal) = match (Keys::of(&claim.name), check_mode(claim.mode)) {
            (Ok(keys), Ok(())) => (Some(keys), None),
            (Err(error), _) | (_, Err(error)) => (None, Some(Err(error.for_lock(&claim.name)))),
        };
        Self {
            claim,
            keys,
            attempt,
            ballot: Ballot::new(nodes, quorum(nodes)),
            leases: vec![claim.ttl; nodes],
            views: vec![NodeView::Unknown; nodes],
            error: None,
            answer: refusal,
        }
    }

    pub(super) fn acquire_command(&self, proposal: &str, displaced: Option<HolderId>) -> Cmd {
        let Some(keys) = &self.keys else { return redis::cmd("PING") };
        let (holder, displaced) = (self.claim.holder.to_hex(), displaced.map(HolderId::to_hex).unwrap_or_default());
        let tombstones = [tombstone(&self.claim.name, &holder), tombstone(&self.claim.name, &displaced)];
        Call::new([&keys.lock, &keys.fence, &tombstones[0], &tombstones[1]])
            .arg(holder)
            .arg(proposal)
            .arg(millis(self.claim.ttl))
            .arg(self.attempt.to_string())
            .arg(note_text(&self.claim.note))
            .arg(displaced)
            .arg(millis(self.claim.ttl + TOMBSTONE_EXTRA))
            .command(&ACQUIRE)
    }

    pub(super) fn confirm_command(&self, token: u64) -> Cmd {
        let Some(keys) = &self.keys else { return redis::cmd("PING") };
        Call::new([&keys.lock, &keys.fence]).arg(self.claim.holder.to_hex()).arg(token.to_string()).command(&CONFIRM)
    }

    /// Takes a node's answer. Returns a token to confirm, and the nodes that have to confirm it.
    pub(super) fn heard(&mut self, node: usize, confirms: bool, answer: Result<Value>) -> Option<(u64, Vec<usize>)> {
        let vote = match answer.and_then(Reply::read).and_then(|reply| self.read(node, &reply, confirms)) {
            Ok(vote) => vote,
            Err(error) => {
                self.error = worse(self.error.take(), error);
                Vote::Failed
            }
        };
        self.vote(node, vote)
    }

    fn read(&mut self, node: usize, reply: &Reply, confirms: bool) -> Result<Vote> {
        match reply.code()? {
            1 => Ok(Vote::New(reply.number(1, "a token")?)),
            2 => {
                let left: i64 = reply.number(2, "a lease")?;
                self.leases[node] = u64::try_from(left).map_or(self.claim.ttl, Duration::from_millis);
                Ok(Vote::Mine(reply.number(1, "a token")?))
            }
            0 => {
                if !confirms {
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
            Verdict::Unavailable => Err(too_few(self.leases.len(), self.error.take()).for_lock(&self.claim.name)),
        });
        None
    }

    /// The shortest lease among the nodes that store the token.
    fn lease(&self, token: Token) -> Duration {
        let stores = |vote: &Vote| matches!(vote, Vote::New(n) | Vote::Mine(n) if *n == token.get());
        let leases = self.ballot.votes().iter().zip(&self.leases).filter(|(vote, _)| stores(vote));
        leases.map(|(_, lease)| *lease).min().unwrap_or_default()
    }

    /// A newer attempt of the claim has begun and may undo votes of this one: only the newer may be granted.
    pub(super) fn give_way(&mut self) {
        if let Some(Ok(Attempt::Granted(_))) = self.answer {
            let error = Error::unavailable("a newer attempt of the same claim is under way").in_store("redlock");
            self.answer = Some(Err(error.for_lock(&self.claim.name)));
        }
    }

    /// What to take back, now that the round is over.
    pub(super) fn undo(&self) -> Option<(&Claim, &Keys, Scope)> {
        let scope = match &self.answer {
            Some(Ok(Attempt::Granted(_))) => return None,
            Some(Ok(Attempt::Cancelled)) => Scope::UpTo(self.attempt),
            Some(Ok(Attempt::Held(_))) if self.ballot.holds_nothing() => Scope::UpTo(self.attempt),
            Some(Ok(Attempt::Held(_)) | Err(_)) | None => Scope::Taken(self.attempt),
        };
        Some((self.claim, self.keys.as_ref()?, scope))
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

pub(super) fn tombstone(name: &LockName, holder: &str) -> Vec<u8> {
    let mut key = companion(b'x', name.as_bytes());
    key.push(b':');
    key.extend_from_slice(holder.as_bytes());
    key
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

pub(super) fn release_command(claim: &Claim, keys: &Keys, life: Duration, scope: Scope) -> Cmd {
    let holder = claim.holder.to_hex();
    let (attempt, which) = match scope {
        Scope::Claim => (String::new(), ""),
        Scope::UpTo(attempt) => (attempt.to_string(), "<"),
        Scope::Taken(attempt) => (attempt.to_string(), "="),
    };
    let call = Call::new([keys.lock.as_slice(), &tombstone(&claim.name, &holder)]);
    call.arg(holder).arg(millis(life)).arg(attempt).arg(which).command(&RELEASE)
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
