//! What a store answers, entry by entry.

use super::Note;
use crate::clock::Stamp;
use crate::token::Token;
use std::fmt;
use std::time::{Duration, SystemTime};

/// A grant: the token, and what the engine needs to compute the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The fencing number.
    pub token: Token,
    /// The stamp that the lease counts from: the call's own, or for a hand-over the one kept with the queue entry.
    pub stamp: Stamp,
    /// How long the store keeps the lease at least, counted from `stamp`. The engine believes no more than the longest
    /// TTL it has asked for.
    pub lease: Duration,
}

/// Why a claim was not granted: enough that a waiter needs no second read.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Held {
    /// Who holds (one of them, when several do); `None` for a foreign holder.
    pub holder: Option<Note>,
    /// The holder's token.
    pub token: Option<Token>,
    /// Since when it has been held, by the wall clock.
    pub since: Option<SystemTime>,
    /// How long until the holder's lease ends unless renewed; `None` when it has no known end.
    pub remaining: Option<Duration>,
    /// The claim's place in line, 1 = next; `None` when it is not queued.
    pub place: Option<u32>,
}

impl Held {
    /// Held by another holder of whom nothing more is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says who holds.
    #[must_use]
    pub fn holder(mut self, note: Note) -> Self {
        self.holder = Some(note);
        self
    }

    /// Says with which token it is held.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Says since when it has been held.
    #[must_use]
    pub fn since(mut self, since: SystemTime) -> Self {
        self.since = Some(since);
        self
    }

    /// Says how long until the holder's lease ends unless renewed.
    #[must_use]
    pub fn remaining(mut self, remaining: Duration) -> Self {
        self.remaining = Some(remaining);
        self
    }

    /// Says the claim's place in line, 1 = next.
    #[must_use]
    pub fn place(mut self, place: u32) -> Self {
        self.place = Some(place);
        self
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.holder {
            Some(note) => write!(f, "{note}")?,
            None => f.write_str("another holder")?,
        }
        if let Some(age) = self.since.and_then(|s| s.elapsed().ok()) {
            write!(f, " for {}", crate::duration::short(age))?;
        }
        if let Some(left) = self.remaining {
            write!(f, ", lease ends in {} unless renewed", crate::duration::short(left))?;
        }
        Ok(())
    }
}

/// The answer to `try_acquire`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Held by this claim now.
    Granted(Grant),
    /// Held by another client, or other waiters are before it in line.
    Held(Held),
    /// A release of this claim came first; it will never be granted.
    Cancelled,
}

/// The answer to `renew`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Still held, for at least this long from the call's stamp.
    Renewed(Duration),
    /// Still in line.
    Waiting(Held),
    /// The waiter's turn has come.
    Granted(Grant),
    /// This claim neither holds nor waits any more.
    Lost(LossReason),
}

/// The answer to `release`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The claim has ended.
    Released,
    /// There was no such claim (any more).
    NotHeld,
}

/// The answer to `break_lock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Broken; the token drawn above the broken one.
    Broken(Token),
    /// No holder has that token.
    NotHeld,
}

/// Why a guard ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// Released in the normal way.
    Released,
    /// The lease ran out before a renewal succeeded.
    Expired,
    /// `max_hold` was reached.
    MaxHold,
    /// The work made no progress for as long as `stall_limit` allows.
    Stalled,
    /// An operator broke the lock.
    Broken,
    /// The store no longer knows the claim: deleted, evicted or taken over.
    Gone,
    /// The session that carried the lock ended.
    SessionEnded,
    /// The keeper's thread died, so nothing would renew any more.
    KeeperDied,
    /// This process is a fork of the one that holds the lock.
    Forked,
    /// The keeper was closed while the guard was still held.
    Closed,
}

impl LossReason {
    /// All of them.
    #[cfg(feature = "remote")]
    const ALL: [Self; 10] = [
        Self::Released,
        Self::Expired,
        Self::MaxHold,
        Self::Stalled,
        Self::Broken,
        Self::Gone,
        Self::SessionEnded,
        Self::KeeperDied,
        Self::Forked,
        Self::Closed,
    ];

    /// Reads back [`as_str`](Self::as_str). A word that this version does not know means that the store no longer has the
    /// claim.
    #[cfg(feature = "remote")]
    pub(crate) fn from_word(word: &str) -> Self {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word).unwrap_or(Self::Gone)
    }

    /// The word for machines and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::MaxHold => "max-hold",
            Self::Stalled => "stalled",
            Self::Broken => "broken",
            Self::Gone => "gone",
            Self::SessionEnded => "session-ended",
            Self::KeeperDied => "keeper-died",
            Self::Forked => "forked",
            Self::Closed => "closed",
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Released => "it was released",
            Self::Expired => "its lease ended before it could be renewed",
            Self::MaxHold => "max_hold was reached",
            Self::Stalled => "its work made no progress within stall_limit",
            Self::Broken => "an operator broke it",
            Self::Gone => "the store no longer has it",
            Self::SessionEnded => "its session with the store ended",
            Self::KeeperDied => "the keeper's thread died",
            Self::Forked => "this process is a fork of the one that holds it",
            Self::Closed => "its keeper was closed",
        })
    }
}
