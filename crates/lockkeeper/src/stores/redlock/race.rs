//! One claim on its way through a round, and the commands and answers of nodes.

use super::node::is_silence;
use super::people;
use super::scripts::{ACQUIRE, CONFIRM, RELEASE};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::quorum::{Ballot, Verdict, Vote, quorum};
use crate::name::LockName;
use crate::store::{Attempt, Claim, Grant, Mode};
use crate::stores::redis::keys::{Keys, companion, note_text};
use crate::token::{HolderId, Token};
use redis::{Cmd, Value};
use std::time::Duration;

/// How long a tombstone outlives the TTL of its claim.
pub(super) const TOMB_EXTRA: Duration = Duration::from_secs(60);

/// One claim on its way through a round.
pub(super) struct Race<'a> {
    pub(super) claim: &'a Claim,
    pub(super) keys: Option<Keys>,
    /// Which attempt of the claim this is.
    attempt: u64,
    ballot: Ballot,
    /// The lease that each node which granted has promised.
    leases: Vec<Duration>,
    held: Vec<people::Sight>,
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
            held: vec![people::Sight::Unknown; nodes],
            error: None,
            answer: refusal,
        }
    }

    pub(super) fn acquire_command(&self, proposal: &str, displaced: Option<HolderId>) -> Cmd {
        let Some(keys) = &self.keys else { return redis::cmd("PING") };
        let (holder, displaced) = (self.claim.holder.to_hex(), displaced.map(HolderId::to_hex).unwrap_or_default());
        let tombs = [tomb(&self.claim.name, &holder), tomb(&self.claim.name, &displaced)];
        let (ttl, life) = (millis(self.claim.ttl), millis(self.claim.ttl + TOMB_EXTRA));
        ACQUIRE.call(
            &[&keys.lock, &keys.fence, &tombs[0], &tombs[1]],
            &[
                holder.as_bytes(),
                proposal.as_bytes(),
                ttl.as_bytes(),
                self.attempt.to_string().as_bytes(),
                note_text(&self.claim.note).as_bytes(),
                displaced.as_bytes(),
                life.as_bytes(),
            ],
        )
    }

    pub(super) fn confirm_command(&self, token: u64) -> Cmd {
        let Some(keys) = &self.keys else { return redis::cmd("PING") };
        let holder = self.claim.holder.to_hex();
        CONFIRM.call(&[&keys.lock, &keys.fence], &[holder.as_bytes(), token.to_string().as_bytes()])
    }

    /// Takes a node's answer; what is to be confirmed where.
    pub(super) fn heard(&mut self, node: usize, confirms: bool, answer: Result<Value>) -> Option<(u64, Vec<usize>)> {
        let vote = match answer.and_then(fields).and_then(|(code, rest)| self.read(node, code, &rest, confirms)) {
            Ok(vote) => vote,
            Err(error) => {
                self.error = worse(self.error.take(), error);
                Vote::Failed
            }
        };
        self.vote(node, vote)
    }

    fn read(&mut self, node: usize, code: i64, rest: &[Value], confirms: bool) -> Result<Vote> {
        match code {
            1 => Ok(Vote::New(number(rest.first())?)),
            2 => {
                let left = whole(rest.get(1))?;
                self.leases[node] = u64::try_from(left).map_or(self.claim.ttl, Duration::from_millis);
                Ok(Vote::Mine(number(rest.first())?))
            }
            0 => {
                if !confirms {
                    self.held[node] = people::Sight::read(rest.first(), rest.get(1));
                }
                Ok(Vote::Held)
            }
            3 => Ok(Vote::Cancelled),
            _ => Err(Error::new(ErrorKind::Unexpected, "has no more tokens for this lock: its fence key was damaged")),
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
            Verdict::Refused => Ok(Attempt::Held(people::held(&self.held))),
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

    /// A newer attempt of the claim has begun, and may take back what this one counts on: only that one may be granted.
    pub(super) fn give_way(&mut self) {
        if let Some(Ok(Attempt::Granted(_))) = self.answer {
            let error = Error::unavailable("a newer attempt of the same claim is under way").in_store("redlock");
            self.answer = Some(Err(error.for_lock(&self.claim.name)));
        }
    }

    /// What is to be taken back, now that the round is over.
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
        // What somebody has to fix is said as it is; an outage is an outage.
        Some(error) if !is_silence(&error) => error,
        Some(error) => {
            let text = format!("{text}: {}", error.message());
            error.reworded(text)
        }
        None => Error::unavailable(text).in_store("redlock"),
    }
}

/// Of two errors the one that an operator has to act on; else every node that gave no answer.
pub(super) fn worse(before: Option<Error>, now: Error) -> Option<Error> {
    Some(now.after(before))
}

pub(super) fn tomb(name: &LockName, holder: &str) -> Vec<u8> {
    let mut key = companion(b'x', name.as_bytes());
    key.push(b':');
    key.extend_from_slice(holder.as_bytes());
    key
}

/// What a release takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// All that the claim has: it has ended.
    Claim,
    /// What this attempt or an older one has: the claim is known to hold nothing that counts.
    UpTo(u64),
    /// What exactly this attempt took: what it found may belong to a grant.
    Taken(u64),
}

pub(super) fn release_command(claim: &Claim, keys: &Keys, life: Duration, scope: Scope) -> Cmd {
    let holder = claim.holder.to_hex();
    let (attempt, which) = match scope {
        Scope::Claim => (String::new(), ""),
        Scope::UpTo(attempt) => (attempt.to_string(), "<"),
        Scope::Taken(attempt) => (attempt.to_string(), "="),
    };
    RELEASE.call(
        &[&keys.lock, &tomb(&claim.name, &holder)],
        &[holder.as_bytes(), millis(life).as_bytes(), attempt.as_bytes(), which.as_bytes()],
    )
}

pub(super) fn millis(d: Duration) -> String {
    d.as_millis().to_string()
}

/// A script's answer: its code, and the rest.
pub(super) fn fields(value: Value) -> Result<(i64, Vec<Value>)> {
    let Value::Array(mut fields) = value else { return Err(odd("no list")) };
    let Some(Value::Int(code)) = fields.first() else { return Err(odd("no code")) };
    let code = *code;
    fields.remove(0);
    Ok((code, fields))
}

pub(super) fn number(value: Option<&Value>) -> Result<u64> {
    match value {
        Some(Value::BulkString(text)) => std::str::from_utf8(text).ok().and_then(|t| t.parse().ok()),
        _ => None,
    }
    .ok_or_else(|| odd("a token that is no number"))
}

pub(super) fn whole(value: Option<&Value>) -> Result<i64> {
    if let Some(Value::Int(number)) = value { Ok(*number) } else { Err(odd("a lease that is no number")) }
}

pub(super) fn odd(what: &str) -> Error {
    Error::new(ErrorKind::Unexpected, format!("answered {what}")).in_store("redlock")
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
