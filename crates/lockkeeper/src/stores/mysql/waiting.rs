//! This keeper's claims in line, and what it knows of the doorbells of their names.

use super::bell::Bell;
use crate::name::LockName;
use crate::store::{Claim, Mode};
use crate::token::HolderId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// How often the first in line asks.
pub(super) const PAUSE: Duration = Duration::from_millis(25);

/// From this place in line on, nobody asks less often.
const FAR_BACK: u32 = 8;

/// What part of the time it has waited already a claim may wait in vain because it trusted a doorbell.
const TRUST: u32 = 16;

/// What the server said of a claim.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    /// Its place in line.
    InLine(u32),
    /// It has the lock.
    Has,
    /// It is neither.
    Over,
}

#[derive(Debug)]
pub(super) struct Waiting {
    desk: Mutex<Desk>,
    /// Whether there are doorbells.
    rings: bool,
    /// Somebody came into the line.
    pub(super) joined: Notify,
    /// A name may no longer need its doorbell.
    left: watch::Sender<()>,
    /// How many grants a doorbell told first.
    pub(super) rung: AtomicU64,
}

#[derive(Debug, Default)]
struct Desk {
    claims: HashMap<HolderId, Entry>,
    bells: HashMap<LockName, Bell>,
}

#[derive(Debug)]
struct Entry {
    name: LockName,
    exclusive: bool,
    /// In line; `None` once it has the lock, which is remembered for the doorbell's sake only.
    place: Option<u32>,
    joined: Instant,
    /// When the server has forgotten it, if nothing more is heard.
    until: Instant,
}

impl Desk {
    fn purge(&mut self, now: Instant) {
        self.claims.retain(|_, entry| entry.until > now);
    }

    /// The claim has left the line: with the lock, until `until`, or without.
    fn leave(&mut self, holder: HolderId, until: Option<Instant>) -> bool {
        let Some(entry) = self.claims.get_mut(&holder) else { return false };
        let bell = self.bells.get_mut(&entry.name);
        match until {
            // Whoever has the lock alone keeps the doorbell until it is free again.
            Some(until) if entry.exclusive && bell.is_some() => (entry.place, entry.until) = (None, until),
            _ => {
                // The turn of others has come: those behind who share the lock, or whoever gets it next.
                if let Some(bell @ Bell::Ours) = bell
                    && (until.is_some() || entry.place.is_none())
                {
                    *bell = Bell::PassOn;
                }
                self.claims.remove(&holder);
            }
        }
        true
    }
}

impl Waiting {
    pub(super) fn new(rings: bool) -> Self {
        Self {
            desk: Mutex::default(),
            rings,
            joined: Notify::new(),
            left: watch::Sender::new(()),
            rung: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, claim: &Claim, word: Word) {
        let mut desk = self.lock();
        let Word::InLine(place) = word else {
            if !desk.claims.is_empty() {
                let until = matches!(word, Word::Has).then(|| Instant::now() + claim.ttl);
                self.leave(desk, claim.holder, until);
            }
            return;
        };
        let (first, now) = (desk.claims.is_empty(), Instant::now());
        let until = now + claim.waiter_lease();
        let entry = desk.claims.entry(claim.holder);
        let fresh = matches!(entry, std::collections::hash_map::Entry::Vacant(_));
        let entry = entry.or_insert_with(|| Entry {
            name: claim.name.clone(),
            exclusive: claim.mode == Mode::Exclusive,
            place: None,
            joined: now,
            until,
        });
        (entry.place, entry.until) = (Some(place), until);
        drop(desk);
        if first || place == 1 || (fresh && self.rings) {
            self.joined.notify_one();
        }
    }

    /// The engine is told that a claim was let in.
    pub(super) fn let_in(&self, holder: HolderId, lease: Duration) {
        self.leave(self.lock(), holder, Some(Instant::now() + lease));
    }

    fn leave(&self, mut desk: MutexGuard<'_, Desk>, holder: HolderId, until: Option<Instant>) {
        let changed = desk.leave(holder, until);
        drop(desk);
        if changed && self.rings {
            self.left.send_replace(());
        }
    }

    /// How long until this keeper asks again; `None` when nobody waits.
    pub(super) fn pause(&self) -> Option<Duration> {
        let mut desk = self.lock();
        let now = Instant::now();
        desk.purge(now);
        let Desk { claims, bells } = &*desk;
        let pause = |entry: &Entry| {
            let pause = PAUSE * entry.place?.min(FAR_BACK);
            // Asleep at the door, it will be woken; unless the one with the doorbell is not the one before it in line.
            let woken = bells.get(&entry.name) == Some(&Bell::Asleep);
            let trust = if woken { (now - entry.joined) / TRUST } else { Duration::ZERO };
            Some(pause.max(trust).min(PAUSE * FAR_BACK))
        };
        claims.values().filter_map(pause).min()
    }

    /// The name that has waited longest without a doorbell; it has one from now on.
    pub(super) fn wants_bell(&self) -> Option<LockName> {
        let mut desk = self.lock();
        desk.purge(Instant::now());
        let Desk { claims, bells } = &*desk;
        let wants = |entry: &&Entry| entry.place.is_some() && !bells.contains_key(&entry.name);
        let name = claims.values().filter(wants).min_by_key(|entry| entry.joined)?.name.clone();
        desk.bells.insert(name.clone(), Bell::Coming);
        Some(name)
    }

    /// What became of the doorbell of a name.
    pub(super) fn bell(&self, name: &LockName, bell: Option<Bell>) {
        let mut desk = self.lock();
        match bell {
            Some(bell) => drop(desk.bells.insert(name.clone(), bell)),
            None => drop(desk.bells.remove(name)),
        }
    }

    /// How long the doorbell of a name is needed here at most; `None` when nobody wants it, or others should have it.
    pub(super) fn needed(&self, name: &LockName) -> Option<Instant> {
        let mut desk = self.lock();
        desk.purge(Instant::now());
        if desk.bells.get(name) == Some(&Bell::PassOn) {
            return None;
        }
        desk.claims.values().filter(|entry| entry.name == *name).map(|entry| entry.until).max()
    }

    /// Returns when the doorbell of a name is not needed here.
    pub(super) async fn done(&self, name: &LockName) {
        let mut left = self.left.subscribe();
        while let Some(until) = self.needed(name) {
            tokio::select! {
                // The sender is ours.
                _ = left.changed() => {}
                () = tokio::time::sleep_until(until.into()) => {}
            }
        }
    }

    pub(super) fn count(&self) {
        self.rung.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;

    fn claim(name: &str) -> Claim {
        let name = LockName::new(name).unwrap();
        Claim::new(
            name,
            HolderId::random().unwrap(),
            Duration::from_secs(60),
            Stamp::from_micros(0),
            Default::default(),
        )
    }

    #[test]
    fn only_who_sleeps_at_the_door_asks_less_often_with_time() {
        let (waiting, claim) = (Waiting::new(true), claim("x"));
        assert_eq!(waiting.pause(), None);
        waiting.note(&claim, Word::InLine(2));
        assert_eq!(waiting.wants_bell().as_ref(), Some(&claim.name));
        for (bell, waited, pause) in [
            (Some(Bell::Coming), 10_000, 50),
            (Some(Bell::Asleep), 0, 50),
            (Some(Bell::Asleep), 1_600, 100),
            (Some(Bell::Asleep), 60_000, 200),
            (Some(Bell::Ours), 60_000, 50),
            (None, 60_000, 50),
        ] {
            waiting.bell(&claim.name, bell);
            waiting.lock().claims.get_mut(&claim.holder).unwrap().joined =
                Instant::now().checked_sub(Duration::from_millis(waited)).unwrap();
            assert_eq!(waiting.pause().unwrap().as_millis(), pause, "{bell:?} {waited}");
        }
    }

    #[test]
    fn a_doorbell_is_needed_until_the_lock_is_free_again() {
        let (waiting, first, second) = (Waiting::new(true), claim("x"), claim("x"));
        waiting.note(&first, Word::InLine(1));
        waiting.bell(&first.name, Some(Bell::Ours));
        waiting.let_in(first.holder, Duration::from_secs(10));
        assert_eq!(waiting.pause(), None);
        assert!(waiting.needed(&first.name).is_some());
        // Another of ours waits by now, but its turn need not be the next.
        waiting.note(&second, Word::InLine(1));
        waiting.note(&first, Word::Over);
        assert_eq!(waiting.needed(&first.name), None);
        waiting.bell(&first.name, None);
        assert!(waiting.needed(&first.name).is_some());
        waiting.note(&second, Word::Over);
        assert_eq!(waiting.needed(&first.name), None);
        assert!(waiting.lock().claims.is_empty());
    }

    #[test]
    fn without_doorbells_only_waiters_are_remembered() {
        let (waiting, claim) = (Waiting::new(false), claim("x"));
        waiting.note(&claim, Word::Has);
        waiting.note(&claim, Word::InLine(1));
        waiting.note(&claim, Word::Has);
        assert!(waiting.lock().claims.is_empty());
    }
}
