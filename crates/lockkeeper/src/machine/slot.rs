//! What happens to one name: who holds it, who waits, what a step changes. Pure: no clock, no I/O.
//!
//! The memory store keeps a [`Slot`] per name, the SQLite store loads and saves one inside a transaction, and the models
//! check the same code. `now` is the store's clock, `wall_us` the floor of its tokens.

use crate::clock::Stamp;
use crate::error::{Error, Result};
use crate::store::{
    Attempt, Break, Claim, Grant, Held, HolderRecord, LossReason, Mode, Note, Record, Release, Renewal, WaiterRecord,
};
use crate::token::{HolderId, Token};
use crate::{LockName, clock};
use std::sync::Arc;
use std::time::Duration;

/// Everything known of one name. The default is a name never used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The last token drawn, 0 before the first.
    pub token: u64,
    /// Who holds, in order of their grants.
    pub holders: Vec<Holder>,
    /// Who waits, first in line first.
    pub waiters: Vec<Waiter>,
    /// Claims whose release overtook their acquire, and broken ones: they will not be granted.
    pub tombs: Vec<Tomb>,
}

/// One grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Whose.
    pub id: HolderId,
    /// How it is held.
    pub mode: Mode,
    /// The token of the grant.
    pub token: u64,
    /// When the lease ends unless renewed.
    pub expires: Stamp,
    /// Wall-clock microseconds of the grant, for people.
    pub since_us: u64,
    /// Set while the grant was handed over and its holder has not been heard of since: what to tell it.
    pub handed: Option<Grant>,
    /// Who, for people.
    pub note: Arc<Note>,
    /// Which keeper to tell; the store's own number.
    pub keeper: u64,
}

/// One place in line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiter {
    /// Whose.
    pub id: HolderId,
    /// How it wants to hold.
    pub mode: Mode,
    /// How long the entry, and a lease handed over to it, live.
    pub life: Duration,
    /// The stamp of its latest registration or keep-alive, echoed in the grant.
    pub stamp: Stamp,
    /// When the entry ends unless kept alive.
    pub expires: Stamp,
    /// Who, for people.
    pub note: Arc<Note>,
    /// Which keeper to tell: the one of its latest registration or keep-alive.
    pub keeper: u64,
}

/// A claim that ended before it began, or was broken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tomb {
    /// Whose.
    pub id: HolderId,
    /// Why.
    pub reason: LossReason,
    /// When it may be forgotten.
    pub expires: Stamp,
}

/// The time of a step, and who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct At {
    /// The store's clock.
    pub now: Stamp,
    /// The floor of tokens: the wall clock in microseconds.
    pub wall_us: u64,
    /// The asking keeper's number.
    pub keeper: u64,
}

/// How long a tombstone outlives the TTL of its claim: longer than any message is delayed in practice.
const TOMB_EXTRA: Duration = Duration::from_secs(60);

impl Slot {
    /// `try_acquire` of the `Store` contract.
    ///
    /// # Errors
    /// `InvalidConfig` for a permit limit that differs from the one in use; `Unexpected` when tokens run out.
    pub fn try_acquire(&mut self, claim: &Claim, at: At) -> Result<Attempt> {
        self.advance(at)?;
        if self.tomb(claim.holder).is_some() {
            return Ok(Attempt::Cancelled);
        }
        if let Some(grant) = self.grant_of(claim, at) {
            return Ok(Attempt::Granted(grant));
        }
        self.check_limit(claim)?;
        if let Some(place) = self.keep_place(claim, at) {
            return Ok(Attempt::Held(self.held(Some(place), at)));
        }
        if self.waiters.is_empty() && self.fits(claim.mode) {
            let token = Token::next(self.token, at.wall_us)?;
            self.token = token.get();
            self.holders.push(Holder {
                id: claim.holder,
                mode: claim.mode,
                token: token.get(),
                expires: at.now.after(claim.ttl),
                since_us: at.wall_us,
                handed: None,
                note: claim.note.clone(),
                keeper: at.keeper,
            });
            return Ok(Attempt::Granted(Grant { token, stamp: claim.stamp, lease: claim.ttl }));
        }
        if !claim.queue {
            return Ok(Attempt::Held(self.held(None, at)));
        }
        self.waiters.push(Waiter {
            id: claim.holder,
            mode: claim.mode,
            life: claim.waiter_lease(),
            stamp: claim.stamp,
            expires: at.now.after(claim.waiter_lease()),
            note: claim.note.clone(),
            keeper: at.keeper,
        });
        Ok(Attempt::Held(self.held(Some(self.waiters.len()), at)))
    }

    /// `renew` of the `Store` contract.
    ///
    /// # Errors
    /// `Unexpected` when tokens run out.
    pub fn renew(&mut self, claim: &Claim, at: At) -> Result<Renewal> {
        // The place is refreshed first: a keep-alive that arrives in time must not lose it to the sweep below.
        let alive = |expires: Stamp| expires > at.now;
        let place = self.waiters.iter().position(|w| w.id == claim.holder && alive(w.expires));
        if place.is_some() {
            self.keep_place(claim, at);
        }
        self.advance(at)?;
        if let Some(holder) = self.holders.iter_mut().find(|h| h.id == claim.holder) {
            let was_waiting = holder.handed.take().is_some();
            // Never shorter: a delayed renewal must not take back what a later one gave.
            holder.expires = holder.expires.max(at.now.after(claim.ttl));
            let token = Token::new(holder.token)?;
            return Ok(if was_waiting {
                Renewal::Granted(Grant { token, stamp: claim.stamp, lease: claim.ttl })
            } else {
                Renewal::Renewed(claim.ttl)
            });
        }
        if let Some(place) = self.waiters.iter().position(|w| w.id == claim.holder) {
            return Ok(Renewal::Waiting(self.held(Some(place + 1), at)));
        }
        Ok(Renewal::Lost(self.tomb(claim.holder).map_or(LossReason::Gone, |t| t.reason)))
    }

    /// `release` of the `Store` contract.
    ///
    /// # Errors
    /// `Unexpected` when tokens run out.
    pub fn release(&mut self, claim: &Claim, at: At) -> Result<Release> {
        self.sweep(at.now);
        let before = self.holders.len() + self.waiters.len();
        self.holders.retain(|h| h.id != claim.holder);
        self.waiters.retain(|w| w.id != claim.holder);
        let found = self.holders.len() + self.waiters.len() < before;
        // Also when something was found: the call that made it may have been a repeat of one still on its way.
        if claim.unsettled && self.tomb(claim.holder).is_none() {
            let expires = at.now.after(claim.ttl).after(TOMB_EXTRA);
            self.tombs.push(Tomb { id: claim.holder, reason: LossReason::Released, expires });
        }
        self.advance(at)?;
        Ok(if found { Release::Released } else { Release::NotHeld })
    }

    /// `break_lock` of the `Store` contract: every grant with that token.
    ///
    /// # Errors
    /// `Unexpected` when tokens run out.
    pub fn break_lock(&mut self, token: Token, at: At) -> Result<Break> {
        self.sweep(at.now);
        let (broken, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.holders).into_iter().partition(|h| h.token == token.get());
        self.holders = kept;
        if broken.is_empty() {
            self.advance(at)?;
            return Ok(Break::NotHeld);
        }
        for holder in broken {
            let expires = holder.expires.after(TOMB_EXTRA);
            self.tombs.push(Tomb { id: holder.id, reason: LossReason::Broken, expires });
        }
        let above = Token::next(self.token, at.wall_us)?;
        self.token = above.get();
        self.advance(at)?;
        Ok(Break::Broken(above))
    }

    /// The state for operators; `None` without holders and waiters at `now`.
    pub fn record(&self, name: &LockName, now: Stamp) -> Option<Record> {
        let mut record = Record::new(name.clone());
        record.holders.extend(self.holders.iter().filter(|h| h.expires > now).map(|h| HolderRecord {
            mode: h.mode,
            note: Some((*h.note).clone()),
            token: Token::new(h.token).ok(),
            since: Some(clock::wall_time(h.since_us)),
            remaining: Some(h.expires.since(now)),
        }));
        let alive = self.waiters.iter().filter(|w| w.expires > now);
        record.waiters.extend(alive.map(|w| WaiterRecord::new(w.mode, Some((*w.note).clone()))));
        record.waiting = u32::try_from(record.waiters.len()).unwrap_or(u32::MAX);
        (!record.holders.is_empty() || record.waiting > 0).then_some(record)
    }

    /// Grants handed over and not yet picked up, with the keeper to tell.
    pub fn handed(&self) -> impl Iterator<Item = (u64, HolderId, Grant)> + '_ {
        self.holders.iter().filter_map(|h| h.handed.map(|grant| (h.keeper, h.id, grant)))
    }

    /// Whether nothing but the token counter is left.
    pub fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty() && self.tombs.is_empty()
    }

    /// Forgets what has ended, then lets in the waiters at the head of the line that fit.
    fn advance(&mut self, at: At) -> Result<()> {
        self.sweep(at.now);
        while let Some(head) = self.waiters.first() {
            if !self.fits(head.mode) {
                break;
            }
            let token = Token::next(self.token, at.wall_us)?;
            let head = self.waiters.remove(0);
            self.token = token.get();
            // The lease is the entry's short life: a waiter that died in line costs the others no more than that. Not
            // shorter than the entry: where `now` is the stamp of a call that was delayed, it may be older than the
            // waiter's own, and the grant is good until that one plus `life` (a_pushed_lease_is_kept_to_its_end).
            self.holders.push(Holder {
                id: head.id,
                mode: head.mode,
                token: token.get(),
                expires: at.now.after(head.life).max(head.expires),
                since_us: at.wall_us,
                handed: Some(Grant { token, stamp: head.stamp, lease: head.life }),
                note: head.note,
                keeper: head.keeper,
            });
        }
        Ok(())
    }

    /// Forgets what has ended.
    pub(crate) fn sweep(&mut self, now: Stamp) {
        self.holders.retain(|h| h.expires > now);
        self.waiters.retain(|w| w.expires > now);
        self.tombs.retain(|t| t.expires > now);
    }

    fn fits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.holders.is_empty(),
            Mode::Shared => self.holders.iter().all(|h| h.mode == Mode::Shared),
            Mode::Permit { limit } => {
                self.holders.iter().all(|h| h.mode == mode) && (self.holders.len() as u64) < u64::from(limit)
            }
        }
    }

    /// A repeat of a claim that holds: the same token, this call's stamp and the lease left.
    fn grant_of(&mut self, claim: &Claim, at: At) -> Option<Grant> {
        let holder = self.holders.iter_mut().find(|h| h.id == claim.holder)?;
        holder.handed = None;
        let token = Token::new(holder.token).ok()?;
        Some(Grant { token, stamp: claim.stamp, lease: holder.expires.since(at.now) })
    }

    /// Refreshes a waiter's entry, which is told of its grant where it was last heard of; its place, 1 = next.
    fn keep_place(&mut self, claim: &Claim, at: At) -> Option<usize> {
        let place = self.waiters.iter().position(|w| w.id == claim.holder)?;
        let waiter = &mut self.waiters[place];
        waiter.life = claim.waiter_lease();
        waiter.stamp = claim.stamp;
        waiter.expires = at.now.after(waiter.life);
        waiter.keeper = at.keeper;
        Some(place + 1)
    }

    fn check_limit(&self, claim: &Claim) -> Result<()> {
        let Mode::Permit { limit } = claim.mode else { return Ok(()) };
        let modes = self.holders.iter().map(|h| h.mode).chain(self.waiters.iter().map(|w| w.mode));
        for mode in modes {
            if let Mode::Permit { limit: used } = mode
                && used != limit
            {
                return Err(Error::invalid_config(format!(
                    "a permit of {limit} was asked for while the name is in use with a limit of {used}; all must agree"
                ))
                .for_lock(&claim.name));
            }
        }
        Ok(())
    }

    fn tomb(&self, id: HolderId) -> Option<&Tomb> {
        self.tombs.iter().find(|t| t.id == id)
    }

    /// Who is in the way: the holder whose lease ends last, since a waiter has to outwait that one.
    fn held(&self, place: Option<usize>, at: At) -> Held {
        let mut held = Held { place: place.and_then(|p| u32::try_from(p).ok()), ..Held::default() };
        if let Some(h) = self.holders.iter().max_by_key(|h| h.expires) {
            held.holder = Some((*h.note).clone());
            held.token = Token::new(h.token).ok();
            held.since = Some(clock::wall_time(h.since_us));
            held.remaining = Some(h.expires.since(at.now));
        }
        held
    }
}

#[cfg(test)]
mod tests;
