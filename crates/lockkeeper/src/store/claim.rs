//! What the engine asks a store to act on: a claim, its mode and its note.

use crate::clock::Stamp;
use crate::name::{LockName, escape};
use crate::token::HolderId;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How a lock is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Mode {
    /// One holder.
    Exclusive,
    /// Any number of holders, none of them Exclusive.
    Shared,
    /// At most `limit` holders at once: a counting semaphore. The limit is kept in the store and must agree.
    Permit {
        /// How many may hold at once.
        limit: u32,
    },
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Permit { limit } => write!(f, "permit of {limit}"),
        }
    }
}

/// Who is asking, for people: small and bounded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct Note {
    /// The machine's name.
    pub host: String,
    /// The process id on that machine.
    pub pid: u32,
    /// The caller's own words, at most [`Note::MAX_LABEL`] bytes; empty when there are none.
    pub label: String,
}

impl Note {
    /// The longest label, in bytes.
    pub const MAX_LABEL: usize = 200;

    /// A note from its parts.
    pub fn new(host: impl Into<String>, pid: u32, label: impl Into<String>) -> Self {
        Self { host: host.into(), pid, label: label.into() }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", escape(self.host.as_bytes()), self.pid)?;
        if self.label.is_empty() { Ok(()) } else { write!(f, " \"{}\"", escape(self.label.as_bytes())) }
    }
}

/// One attempt by one holder id: what the engine asks a store to act on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Claim {
    /// Which lock.
    pub name: LockName,
    /// Fresh for every acquisition.
    pub holder: HolderId,
    /// How it is shared.
    pub mode: Mode,
    /// How long a grant or a renewal lasts.
    pub ttl: Duration,
    /// Whether a busy claim registers as a waiter.
    pub queue: bool,
    /// The engine's clock before this call was sent; opaque to stores with a clock of their own, kept with a queue
    /// entry and echoed in the grant.
    pub stamp: Stamp,
    /// An acquire of this claim has not been answered and may still arrive: a release must leave a tombstone.
    pub unsettled: bool,
    /// Who is asking.
    pub note: Arc<Note>,
}

impl Claim {
    /// How long a waiter's entry, and a lease just handed over, live without being renewed: short, so that a dead
    /// waiter costs the others little.
    pub const MAX_WAITER_LEASE: Duration = Duration::from_secs(10);

    /// A claim for an Exclusive lock that does not queue.
    pub fn new(name: LockName, holder: HolderId, ttl: Duration, stamp: Stamp, note: Arc<Note>) -> Self {
        Self { name, holder, mode: Mode::Exclusive, ttl, queue: false, stamp, unsettled: false, note }
    }

    /// `w`: the life of this claim's queue entry, and of a lease handed over to it.
    pub fn waiter_lease(&self) -> Duration {
        self.ttl.min(Self::MAX_WAITER_LEASE)
    }
}
