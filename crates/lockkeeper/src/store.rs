//! What a store author writes: one trait of single atomic steps, and the values that go in and come out.
//!
//! A store never waits, never retries, keeps no background task for correctness and has no clock of its own: time comes
//! from its server or from the claim's stamp. Everything that involves time or order lives in the engine, once.
//! **Definite answers are values; an `Err` means only "unknown" or "impossible".**

mod info;

pub use crate::record::{Cursor, HolderRecord, Page, Record, WaiterRecord};
pub use info::{Expiry, Guarantee, Runtime, StoreInfo};

use crate::clock::Stamp;
use crate::error::Result;
use crate::name::{LockName, escape};
use crate::register::Register;
use crate::token::{HolderId, Token};
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Where locks live. One instance belongs to one keeper; `Arc<dyn Store>` is how it is passed.
///
/// Every method answers each entry of its batch on its own, in the same order, in one atomic step per entry and one
/// round trip per call. A `try_acquire` batch never holds two claims of one name; batches come sorted by name.
/// Calls may be repeated, reordered and dropped half-way (the returned future is cancelled): each step compares the
/// holder id, so none of that can touch another holder's claim.
#[async_trait]
pub trait Store: Register + fmt::Debug + Send + Sync + 'static {
    /// What this store can do and promise; no I/O.
    fn info(&self) -> StoreInfo;

    /// Takes each lock if it is free, and draws the token in the same step.
    ///
    /// The same holder id again while held answers the same token with the lease *left*, so a repeat after a lost reply
    /// is safe. With [`Claim::queue`] a busy claim stays registered as a waiter, in order of arrival.
    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>>;

    /// Prolongs each claim, held or waiting alike; never re-creates one, and never shortens one.
    ///
    /// Never shortens: a renewal whose TTL is shorter than what is left, or one that was delayed behind a later one,
    /// leaves the end where it is. The engine counts on the latest end that it was told.
    ///
    /// A renewal may have a longer TTL than the acquire had, because another task of the keeper may inherit a claim: it
    /// is kept that long, by a session store too, or answered with the shorter time that it is kept.
    ///
    /// For a waiter it is the keep-alive of its place, and its way to learn of a grant whose push was lost. The grant is
    /// pushed to the instance through which the waiter was last kept alive.
    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>>;

    /// Ends each claim, held or waiting; idempotent; keeps the token counter.
    ///
    /// Hands over to, or wakes, the next waiter in the same step. With [`Claim::unsettled`] it leaves a tombstone in what
    /// `try_acquire` compares, so that an acquire still under way answers `Cancelled`.
    ///
    /// Once it is answered, the claim holds nothing that counts. `Released` means that this call found something of the
    /// claim to end; `NotHeld` that it found nothing, which is also what a repeat is told after a first call whose answer
    /// was lost. Where a majority of servers decides ([`StoreInfo::decisive`] is `false`), a server that the first call has
    /// not reached may still have had the claim: then a repeat may answer `Released` too.
    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>>;

    /// The next thing this keeper should know about; polled on the keeper's own thread, inside a Tokio runtime.
    ///
    /// Events are hints: every one of them may be lost, late or repeated and nothing but speed suffers. A store without
    /// events never resolves.
    async fn next_event(&self) -> Event;

    /// Where events may be told the moment they arrive, on whatever thread that is, instead of through
    /// [`next_event`](Self::next_event). Given once, before the first call. A store whose events only ever arrive on the
    /// keeper's own thread has no use for it, which is the default.
    fn tell_to(&self, sink: Sink) {
        drop(sink);
    }

    /// One lock for people to look at, `None` when nobody holds it or waits; never used to decide ownership.
    async fn inspect(&self, name: &LockName) -> Result<Option<Record>>;

    /// Locks whose names begin with `prefix`, in pages; for people.
    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page>;

    /// Takes the lock away from the holder with `token`: the operator's action, only for the token they saw.
    ///
    /// Draws a token above the broken one and hands over like a release.
    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break>;
}

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
    /// Held by somebody else, or others are before it in line.
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
    /// Nobody holds the lock with that token.
    NotHeld,
}

/// A hint from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The lock may be free: waiters of this name should ask.
    Wake(LockName),
    /// A waiter of this keeper was handed the lock.
    Granted(HolderId, Grant),
    /// A claim of this keeper is over.
    Lost(HolderId, LossReason),
    /// Every claim of this keeper is over: its session ended.
    SessionLost,
    /// The connection was down and is back: waiters should ask, guards should renew.
    Reconnected,
}

/// Takes events; never blocks. After the keeper has ended it ignores them.
#[derive(Clone)]
pub struct Sink(Arc<dyn Fn(Event) + Send + Sync>);

impl Sink {
    /// A sink that acts on each event.
    pub fn new(act: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(act))
    }

    /// Tells of an event.
    pub fn tell(&self, event: Event) {
        (self.0)(event);
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sink")
    }
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
    /// The word for machines and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::MaxHold => "max-hold",
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
            Self::Broken => "an operator broke it",
            Self::Gone => "the store no longer has it",
            Self::SessionEnded => "its session with the store ended",
            Self::KeeperDied => "the keeper's thread died",
            Self::Forked => "this process is a fork of the one that holds it",
            Self::Closed => "its keeper was closed",
        })
    }
}
