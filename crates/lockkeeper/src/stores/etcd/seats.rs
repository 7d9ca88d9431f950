//! What is known here of each claim: a seat, from before its acquire is sent until its release was answered.

use super::core::{Core, News, REMEMBERED, lock};
use super::keys::Keys;
use super::lease::Lease;
use crate::clock::{Stamp, system_now};
use crate::name::LockName;
use crate::store::{Claim, Held, LossReason};
use crate::token::{HolderId, Token};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// What is known of a claim here.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) name: LockName,
    pub(super) lease: Arc<Lease>,
    pub(super) key: Vec<u8>,
    /// When its key was created, once that is known.
    pub(super) created: Option<i64>,
    /// Its token, once it is held.
    pub(super) token: Option<Token>,
    /// What it was told last while in line.
    pub(super) held: Option<Held>,
    /// Who is right before it in line, and since when.
    pub(super) before: Option<(Vec<u8>, i64)>,
    /// Whether something happened to the line since.
    pub(super) hinted: bool,
    pub(super) watched: bool,
    /// How many of its acquires have not been answered.
    pub(super) unanswered: u32,
    /// Since when a release has been asked for, and how many are under way.
    pub(super) releasing: Option<Stamp>,
    leaving: u32,
    pub(super) lost: Option<(LossReason, Stamp)>,
}

/// All seats, and the keys they have.
#[derive(Debug, Default)]
pub(super) struct Seats {
    by: HashMap<HolderId, Seat>,
    keys: HashSet<Vec<u8>>,
}

impl Seats {
    pub(super) fn values(&self) -> impl Iterator<Item = &Seat> {
        self.by.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&HolderId, &mut Seat)> {
        self.by.iter_mut()
    }

    /// A seat with a key that no other seat has.
    fn add(&mut self, claim: &Claim, keys: &Keys, lease: &Arc<Lease>) -> &mut Seat {
        self.remove(claim.holder);
        let mut key = keys.claim(claim.mode, lease.id, 0);
        for number in 1.. {
            if !self.keys.contains(&key) {
                break;
            }
            key = keys.claim(claim.mode, lease.id, number);
        }
        self.keys.insert(key.clone());
        self.by.entry(claim.holder).or_insert_with(|| Seat::new(claim, key, lease.clone()))
    }

    fn remove(&mut self, holder: HolderId) -> Option<Seat> {
        let seat = self.by.remove(&holder)?;
        self.keys.remove(&seat.key);
        Some(seat)
    }
}

impl Seat {
    /// Whether somebody still has to do with its key: not when a release came back without an answer. To sweep what an
    /// answer is still awaited for would make that answer wrong.
    pub(super) fn is_taken(&self) -> bool {
        self.releasing.is_none() || self.leaving > 0
    }

    /// Whether its release was never answered, for so long that the engine does not repeat it any more.
    fn is_given_up(&self, now: Stamp) -> bool {
        let repeated = self.lease.ttl + self.lease.ttl / 50 + Duration::from_secs(1);
        self.releasing.is_some_and(|since| now.since(since) >= repeated)
    }

    fn new(claim: &Claim, key: Vec<u8>, lease: Arc<Lease>) -> Self {
        Self {
            name: claim.name.clone(),
            key,
            lease,
            created: None,
            token: None,
            held: None,
            before: None,
            hinted: false,
            watched: false,
            unanswered: 0,
            releasing: None,
            leaving: 0,
            lost: None,
        }
    }
}

impl Core {
    /// The seat of a claim, or a new one on this lease; `None` for a claim that was released before.
    pub(super) fn sit(&self, claim: &Claim, keys: &Keys, lease: &Arc<Lease>) -> Option<Seat> {
        let mut seats = lock(&self.seats);
        if lock(&self.cancelled).contains_key(&claim.holder) {
            return None;
        }
        let known = seats.by.get(&claim.holder);
        let seat = match known.is_some_and(|seat| !seat.lease.has_ended() || seat.lease.id == lease.id) {
            true => seats.by.get_mut(&claim.holder)?,
            false => seats.add(claim, keys, lease),
        };
        seat.unanswered += 1;
        Some(seat.clone())
    }

    /// A release is not under way any more.
    pub(super) fn left(&self, holder: HolderId) {
        self.edit(holder, |seat| seat.leaving = seat.leaving.saturating_sub(1));
    }

    /// The seat of a claim that is to be released. Without one its acquire, if it still comes, is refused.
    pub(super) fn leave(&self, claim: &Claim) -> Option<Seat> {
        let mut seats = lock(&self.seats);
        match seats.by.get_mut(&claim.holder) {
            Some(seat) => {
                seat.releasing.get_or_insert_with(system_now);
                seat.leaving += 1;
                Some(seat.clone())
            }
            None => {
                if claim.unsettled {
                    self.refuse(claim.holder);
                    self.doubt();
                }
                None
            }
        }
    }

    /// An acquire of a claim that was released is refused from now on.
    pub(super) fn refuse(&self, holder: HolderId) {
        lock(&self.cancelled).insert(holder, system_now());
    }

    /// Forgets claims that ended so long ago that nobody asks for them any more. What they left is swept.
    pub(super) fn forget(&self, now: Stamp) {
        let mut seats = lock(&self.seats);
        let old =
            |seat: &Seat| seat.is_given_up(now) || seat.lost.is_some_and(|(_, since)| now.since(since) >= REMEMBERED);
        let old: Vec<HolderId> = seats.by.iter().filter(|(_, seat)| old(seat)).map(|(holder, _)| *holder).collect();
        for holder in old {
            if seats.remove(holder).is_some_and(|seat| seat.watched) {
                self.tell(News::Forget(holder));
            }
        }
        drop(seats);
        lock(&self.cancelled).retain(|_, since| now.since(*since) < REMEMBERED);
    }

    pub(super) fn seat(&self, holder: HolderId) -> Option<Seat> {
        lock(&self.seats).by.get(&holder).cloned()
    }

    pub(super) fn edit<T>(&self, holder: HolderId, change: impl FnOnce(&mut Seat) -> T) -> Option<T> {
        lock(&self.seats).by.get_mut(&holder).map(change)
    }

    /// Forgets a claim that has ended.
    pub(super) fn stand_up(&self, holder: HolderId) {
        let seat = lock(&self.seats).remove(holder);
        if seat.is_some_and(|seat| seat.watched) {
            self.tell(News::Forget(holder));
        }
    }
}
