//! What the tables hold: what tasks asked for and are told, claims and their roles, calls that are due.

use crate::clock::Stamp;
use crate::engine::cell::Cell;
use crate::engine::successor::Successor;
use crate::engine::wait::{Ending, Wait};
use crate::error::Error;
use crate::machine::hold::Hold;
use crate::name::LockName;
use crate::store::{Claim, Grant, Held, Mode, Note};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// What a task asked for.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) stall_limit: Option<Duration>,
    pub(crate) note: Arc<Note>,
    /// `None`: for ever; zero: do not wait.
    pub(crate) wait: Option<Duration>,
}

impl Spec {
    pub(crate) fn waits(&self) -> bool {
        self.wait != Some(Duration::ZERO)
    }
}

/// What a task is told to do next.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Ask the store with this claim.
    Try(u64),
    /// Take over the call with this claim, which the task of a release has sent: until when it may take, and its alarm.
    Sent(u64, Stamp, Option<u64>),
    /// Pick up this claim's grant.
    Granted(u64),
    /// Not free, and the task does not wait.
    Busy(Option<Held>),
    /// The keeper is closing, or its thread has died.
    Failed(Error),
}

/// A turn with what the task needs for it, found under the same taking of the tables' lock.
#[derive(Debug)]
pub(in crate::engine) enum Next {
    /// Ask the store with this claim, which has been noted as sent.
    Ask(u64, Claim),
    /// Ask the store; the claim needs a fresh holder id.
    AskAnew(u64),
    /// Take over a call that was sent for the task; its limit and the alarm of it.
    Sent(u64, Stamp, Option<u64>),
    /// The lock is held: the claim's number and the guard's cell.
    Taken(u64, Arc<Cell>),
    /// Not free, and the task does not wait; it has left the queue.
    Busy(Option<Held>),
    /// The keeper is closing, or its thread has died, or the store failed.
    Failed(Error),
    /// The task is in line.
    Wait,
}

/// A task between two turns.
#[derive(Debug, Default)]
pub(super) struct Parked {
    pub(super) turn: Option<Turn>,
    pub(super) waker: Option<Waker>,
    /// Its `max_hold`, which counts from the moment it is granted a claim.
    pub(super) max_hold: Option<Duration>,
    /// Its `stall_limit`, which counts from then too.
    pub(super) stall_limit: Option<Duration>,
    /// What another task needs to ask the store for this one.
    pub(super) successor: Option<Arc<Successor>>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) claim: Claim,
    /// The longest TTL it was sent with: the TTL of an heir may be shorter than the one the store has.
    pub(super) longest: Duration,
    /// An acquire of it was not answered, so it may still arrive at the store.
    pub(super) doubt: bool,
    /// It was granted from its place in line.
    pub(super) stood_in_line: bool,
    /// Its number in `queues`; it may have gone.
    pub(super) queue: u64,
    /// Its number in `timers`.
    pub(super) timer: Option<u64>,
    pub(super) role: Role,
}

impl Entry {
    /// Cuts a lease to the TTL that was asked for. After a step of its clock a store may answer a repeat with a longer
    /// lease, which it does not keep.
    pub(super) fn capped(&self, grant: Grant) -> Grant {
        Grant { lease: grant.lease.min(self.longest), ..grant }
    }
}

#[derive(Debug)]
pub(super) enum Role {
    /// A call of its task is in flight. `lost`: the store told its end before the answer that says "granted".
    Trying { lost: bool },
    /// In line, in the store or by polling. Boxed, because most claims are held and should not be as large as this.
    Waiting(Box<Wait>),
    /// Granted to a task at `since`; the cell exists from the moment that task has picked it up.
    Held { hold: Hold, grant: Grant, since: Stamp, cell: Option<Arc<Cell>> },
    /// In the to-release set.
    Ending(Ending),
}

/// The calls that are due.
#[derive(Debug, Default)]
pub(in crate::engine) struct Work {
    pub(in crate::engine) renew: Calls,
    pub(in crate::engine) acquire: Calls,
    pub(in crate::engine) release: Calls,
    /// The longest time that any entry may take; each entry's own timer keeps its shorter limit.
    pub(in crate::engine) limit: Duration,
}

/// Calls of one kind: the claims, and the number of each.
#[derive(Debug, Default)]
pub(in crate::engine) struct Calls {
    pub(in crate::engine) keys: Vec<u64>,
    pub(in crate::engine) claims: Vec<Claim>,
}

impl Calls {
    pub(super) fn push(&mut self, key: u64, claim: Claim) {
        self.keys.push(key);
        self.claims.push(claim);
    }
}

/// A map by our own consecutive numbers. Callers cannot choose them, so one multiplication spreads them well enough.
pub(super) type Keyed<T> = HashMap<u64, T, BuildHasherDefault<KeyHasher>>;

#[derive(Debug, Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

/// Who sends a release first; the thread repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Sender {
    /// The guard's owner, in its own task, and it waits for the answer.
    Owner,
    /// The keeper's thread.
    Thread,
}

/// Whether the engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Life {
    Open,
    /// No new claims.
    Closed,
    /// The thread has panicked.
    Dead,
}
