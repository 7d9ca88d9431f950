//! Locks as an operator sees them: what `inspect` and `list` answer.

use super::{Held, Mode, Note};
use crate::name::LockName;
use crate::token::Token;
use std::time::{Duration, SystemTime};

/// One lock as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// Which lock.
    pub name: LockName,
    /// Who holds it, oldest first; empty when only waiters are left.
    pub holders: Vec<HolderRecord>,
    /// Who waits, first in line first. `list` may leave them out; `waiting` always counts them.
    pub waiters: Vec<WaiterRecord>,
    /// How many wait.
    pub waiting: u32,
    /// What else the store has to say, such as on how many nodes it is held.
    pub remark: Option<String>,
}

impl Record {
    /// A record without holders and waiters.
    pub fn new(name: LockName) -> Self {
        Self { name, holders: Vec::new(), waiters: Vec::new(), waiting: 0, remark: None }
    }

    /// Adds a holder.
    #[must_use]
    pub fn held_by(mut self, holder: HolderRecord) -> Self {
        self.holders.push(holder);
        self
    }
}

/// One holder as an operator sees it; the holder id is a secret and not shown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderRecord {
    /// How it is held.
    pub mode: Mode,
    /// Who; `None` for a foreign holder.
    pub note: Option<Note>,
    /// Its token, if it has one: what `break_lock` wants.
    pub token: Option<Token>,
    /// Since when, by the wall clock.
    pub since: Option<SystemTime>,
    /// How long until the lease ends unless renewed.
    pub remaining: Option<Duration>,
}

impl HolderRecord {
    /// A holder of whom only the mode is known.
    pub fn new(mode: Mode) -> Self {
        Self { mode, note: None, token: None, since: None, remaining: None }
    }

    /// What a refused claim is told of this holder, as a record.
    pub fn from_held(mode: Mode, held: Held) -> Self {
        Self { mode, note: held.holder, token: held.token, since: held.since, remaining: held.remaining }
    }
}

/// One waiter as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaiterRecord {
    /// How it wants to hold.
    pub mode: Mode,
    /// Who.
    pub note: Option<Note>,
}

impl WaiterRecord {
    /// A waiter.
    pub fn new(mode: Mode, note: Option<Note>) -> Self {
        Self { mode, note }
    }
}

/// Where a listing goes on; opaque to callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub Vec<u8>);

/// One page of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Page {
    /// The locks of this page.
    pub records: Vec<Record>,
    /// Where to go on, `None` at the end.
    pub next: Option<Cursor>,
}

impl Page {
    /// How many locks a page holds, unless the store has reasons for another number.
    pub const SIZE: usize = 100;

    /// The first page of `records`, which come in the order of their names: at most [`Page::SIZE`] of them. The next page
    /// goes on after the name that its cursor holds.
    pub fn of(records: impl IntoIterator<Item = Record>) -> Self {
        let mut records = records.into_iter();
        let page: Vec<_> = records.by_ref().take(Self::SIZE).collect();
        let last = page.last().filter(|_| records.next().is_some());
        let next = last.map(|last| Cursor(last.name.as_bytes().to_vec()));
        Self { records: page, next }
    }
}
