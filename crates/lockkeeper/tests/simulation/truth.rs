//! The simulated store: what is true, whatever the keepers believe. It keeps the contract of `Store` in the plainest
//! way, and remembers what became of every grant.

use lockkeeper::store::{Attempt, Claim, Grant, Held, LossReason, Release, Renewal};
use lockkeeper::{HolderId, LockName, Mode, Token};
use std::time::Duration;

/// Microseconds of true time, which is also the store's clock.
pub type Time = u64;

/// What a store of this kind does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habits {
    /// Waiters queue in the store.
    pub queue: bool,
    /// It pushes a grant to the keeper; otherwise it tells that the lock may be free.
    pub push: bool,
    /// Its calls are said to arrive in order.
    pub ordered: bool,
    /// A renewal of a claim that was handed over says only that the claim holds; its token comes from a repeat.
    pub coy: bool,
    /// A defect planted to see that the checks notice it.
    pub defect: Option<Defect>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Says that it keeps leases longer than it does.
    ShortLeases,
    /// A release leaves no tombstone.
    NoTombs,
    /// A release does not compare the holder.
    ReleasesOthers,
    /// Two Exclusive holders are let in when the first one's lease is nearly over.
    LetsInEarly,
    /// A hand-over draws no token of its own.
    SameToken,
}

#[derive(Clone, Debug)]
pub struct Lease {
    pub name: LockName,
    pub holder: HolderId,
    pub mode: Mode,
    pub token: u64,
    pub ends: Time,
    /// Handed over, and not heard of since.
    handed: Option<Grant>,
    /// Made by a copy of a request.
    pub copied: bool,
    /// Made or prolonged by a request that was on its way for a while.
    pub slow: bool,
    pub keeper: usize,
}

#[derive(Clone, Debug)]
pub struct Waiter {
    pub claim: Claim,
    pub ends: Time,
    pub keeper: usize,
    pub copied: bool,
    pub slow: bool,
}

/// A lease that the store lost or an operator broke before its end.
#[derive(Debug)]
pub struct Taken {
    pub holder: HolderId,
    pub token: u64,
    /// When it would have ended.
    pub ends: Time,
}

/// How a request came.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub keeper: usize,
    /// It is a copy of another request.
    pub copy: bool,
    /// Time has passed since it was sent.
    pub slow: bool,
}

/// What the store tells without being asked.
pub enum News {
    Granted(usize, HolderId, Grant),
    Free(LockName),
}

#[derive(Debug, Default)]
pub struct Truth {
    pub habits: Habits,
    pub leases: Vec<Lease>,
    pub waiters: Vec<Waiter>,
    tombs: Vec<(HolderId, LossReason, Time)>,
    pub taken: Vec<Taken>,
    /// Holders of which a release has arrived.
    pub released: Vec<HolderId>,
    last_token: u64,
}

const TOMB_EXTRA: Time = 60_000_000;

pub fn micros(d: Duration) -> Time {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

impl Truth {
    pub fn lease(&self, holder: HolderId) -> Option<&Lease> {
        self.leases.iter().find(|lease| lease.holder == holder)
    }

    /// Forgets what has ended, then lets in the waiters that fit.
    pub fn advance(&mut self, now: Time, news: &mut Vec<News>) {
        let before = self.leases.len();
        let mut freed: Vec<LockName> = Vec::new();
        if self.leases.iter().any(|lease| lease.ends <= now) {
            freed.extend(self.leases.iter().filter(|lease| lease.ends <= now).map(|lease| lease.name.clone()));
        }
        self.leases.retain(|lease| lease.ends > now);
        self.waiters.retain(|waiter| waiter.ends > now);
        self.tombs.retain(|(_, _, ends)| *ends > now);
        let mut at = 0;
        while at < self.waiters.len() {
            let Waiter { claim, .. } = &self.waiters[at];
            let first = !self.waiters[..at].iter().any(|w| w.claim.name == claim.name);
            if !(first && self.fits(&claim.name, claim.mode, now)) {
                at += 1;
                continue;
            }
            let Waiter { claim, keeper, copied, slow, .. } = self.waiters.remove(at);
            let token =
                if self.habits.defect == Some(Defect::SameToken) { self.last_token.max(1) } else { self.draw() };
            let grant = Grant { token: Token::new(token).unwrap(), stamp: claim.stamp, lease: claim.waiter_lease() };
            self.leases.push(Lease {
                name: claim.name.clone(),
                holder: claim.holder,
                mode: claim.mode,
                token,
                ends: now + micros(claim.waiter_lease()),
                handed: Some(grant),
                copied,
                slow,
                keeper,
            });
            if self.habits.push {
                news.push(News::Granted(keeper, claim.holder, grant));
            }
        }
        if before != self.leases.len() && !self.habits.push {
            news.extend(freed.into_iter().map(News::Free));
        }
    }

    pub fn acquire(&mut self, claim: &Claim, way: Way, now: Time) -> Attempt {
        if self.tombs.iter().any(|(id, ..)| *id == claim.holder) {
            return Attempt::Cancelled;
        }
        if let Some(lease) = self.leases.iter_mut().find(|lease| lease.holder == claim.holder) {
            lease.handed = None;
            let token = Token::new(lease.token).unwrap();
            return Attempt::Granted(Grant {
                token,
                stamp: claim.stamp,
                lease: Duration::from_micros(lease.ends - now),
            });
        }
        if self.keep_place(claim, way, now) {
            return Attempt::Held(self.held(claim, now));
        }
        if !self.waiters.iter().any(|w| w.claim.name == claim.name) && self.fits(&claim.name, claim.mode, now) {
            let token = self.draw();
            let kept = if self.habits.defect == Some(Defect::ShortLeases) { claim.ttl / 2 } else { claim.ttl };
            self.leases.push(Lease {
                name: claim.name.clone(),
                holder: claim.holder,
                mode: claim.mode,
                token,
                ends: now + micros(kept),
                handed: None,
                copied: way.copy,
                slow: way.slow,
                keeper: way.keeper,
            });
            return Attempt::Granted(Grant { token: Token::new(token).unwrap(), stamp: claim.stamp, lease: claim.ttl });
        }
        if claim.queue {
            let ends = now + micros(claim.waiter_lease());
            let Way { keeper, copy, slow } = way;
            self.waiters.push(Waiter { claim: claim.clone(), ends, keeper, copied: copy, slow });
        }
        Attempt::Held(self.held(claim, now))
    }

    pub fn renew(&mut self, claim: &Claim, way: Way, now: Time) -> Renewal {
        let coy = self.habits.coy;
        if let Some(lease) = self.leases.iter_mut().find(|lease| lease.holder == claim.holder) {
            lease.ends = lease.ends.max(now + micros(claim.ttl));
            lease.slow |= way.slow;
            let token = Token::new(lease.token).unwrap();
            return match lease.handed.take() {
                Some(_) if !coy => Renewal::Granted(Grant { token, stamp: claim.stamp, lease: claim.ttl }),
                _ => Renewal::Renewed(claim.ttl),
            };
        }
        if self.keep_place(claim, way, now) {
            return Renewal::Waiting(self.held(claim, now));
        }
        let tomb = self.tombs.iter().find(|(id, ..)| *id == claim.holder);
        Renewal::Lost(tomb.map_or(LossReason::Gone, |(_, reason, _)| *reason))
    }

    pub fn release(&mut self, claim: &Claim, now: Time, news: &mut Vec<News>) -> Release {
        let before = self.leases.len() + self.waiters.len();
        if self.habits.defect == Some(Defect::ReleasesOthers) {
            self.leases.retain(|lease| lease.name != claim.name);
        }
        self.leases.retain(|lease| lease.holder != claim.holder);
        self.waiters.retain(|waiter| waiter.claim.holder != claim.holder);
        self.released.push(claim.holder);
        let found = self.leases.len() + self.waiters.len() < before;
        if claim.unsettled && self.habits.defect != Some(Defect::NoTombs) {
            self.tombs.push((claim.holder, LossReason::Released, now + micros(claim.ttl) + TOMB_EXTRA));
        }
        if found && !self.habits.push {
            news.push(News::Free(claim.name.clone()));
        }
        if found { Release::Released } else { Release::NotHeld }
    }

    /// A lease ends before its time: broken by an operator, or lost by the store.
    pub fn take_away(&mut self, at: usize, broken: bool) -> HolderId {
        let lease = self.leases.remove(at);
        if broken {
            self.tombs.push((lease.holder, LossReason::Broken, lease.ends + TOMB_EXTRA));
            self.draw();
        }
        self.taken.push(Taken { holder: lease.holder, token: lease.token, ends: lease.ends });
        lease.holder
    }

    fn draw(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    fn keep_place(&mut self, claim: &Claim, way: Way, now: Time) -> bool {
        let Some(waiter) = self.waiters.iter_mut().find(|w| w.claim.holder == claim.holder) else { return false };
        let (ends, slow) = (now + micros(claim.waiter_lease()), waiter.slow || way.slow);
        *waiter = Waiter { claim: claim.clone(), ends, keeper: way.keeper, slow, ..*waiter };
        true
    }

    fn fits(&self, name: &LockName, mode: Mode, now: Time) -> bool {
        let early = self.habits.defect == Some(Defect::LetsInEarly);
        let mut others = self.leases.iter().filter(|l| l.name == *name && !(early && l.ends < now + 100_000));
        match mode {
            Mode::Shared => others.all(|lease| lease.mode == Mode::Shared),
            Mode::Permit { limit } => others.clone().all(|lease| lease.mode == mode) && others.count() < limit as usize,
            _ => others.next().is_none(),
        }
    }

    fn held(&self, claim: &Claim, now: Time) -> Held {
        let mut held = Held::new();
        if let Some(lease) = self.leases.iter().filter(|l| l.name == claim.name).max_by_key(|l| l.ends) {
            held = held.token(Token::new(lease.token).unwrap()).remaining(Duration::from_micros(lease.ends - now));
        }
        let line = || self.waiters.iter().filter(|w| w.claim.name == claim.name);
        match line().position(|w| w.claim.holder == claim.holder) {
            Some(before) => held.place(u32::try_from(before + 1).unwrap()),
            None => held,
        }
    }
}
