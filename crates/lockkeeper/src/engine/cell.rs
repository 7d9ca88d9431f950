//! What a guard and its leases share with the engine: a deadline, a phase, and a bell for changes.

use crate::clock::{Clock, Stamp};
use crate::machine::hold::{Hold, Phase};
use crate::name::LockName;
use crate::store::{Grant, LossReason, Mode};
use crate::token::{HolderId, Token};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// One grant as its owner sees it. Readers take no lock.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) name: LockName,
    pub(crate) holder: HolderId,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    /// When the grant was known here: hold time and `max_hold` count from it.
    pub(crate) since: Stamp,
    /// The end by `max_hold`; renewals do not move it.
    max_end: Option<Stamp>,
    /// How long the work may go without progress.
    stall_limit: Option<Duration>,
    /// When it last made some.
    progress: AtomicU64,
    /// The grant's own lease and its end: shorter than the TTL when the lock was handed over.
    first: (Duration, Stamp),
    /// The end by lease and `max_hold`; the end by `stall_limit` is computed.
    held_until: AtomicU64,
    phase: AtomicU8,
    /// Whether a task has ever watched for changes; most guards are never watched.
    watched: AtomicBool,
    changed: Notify,
}

const REASONS: [LossReason; 10] = [
    LossReason::Released,
    LossReason::Expired,
    LossReason::MaxHold,
    LossReason::Stalled,
    LossReason::Broken,
    LossReason::Gone,
    LossReason::SessionEnded,
    LossReason::KeeperDied,
    LossReason::Forked,
    LossReason::Closed,
];
/// Phase numbers from here on are losses, in the order of `REASONS`.
const LOST: u8 = 2;

impl Cell {
    pub(crate) fn new(
        name: LockName,
        holder: HolderId,
        mode: Mode,
        ttl: Duration,
        grant: &Grant,
        since: Stamp,
        hold: &Hold,
    ) -> Self {
        let held_until = hold.held_until();
        Self {
            name,
            holder,
            token: grant.token,
            mode,
            ttl,
            since,
            max_end: hold.max_end(),
            stall_limit: None,
            progress: AtomicU64::new(0),
            first: (grant.lease, held_until),
            held_until: AtomicU64::new(held_until.as_micros()),
            phase: AtomicU8::new(0),
            watched: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    /// With a limit for the time between two signs of progress; the first counts as made now.
    pub(crate) fn stall_after(mut self, limit: Option<Duration>, now: Stamp) -> Self {
        self.stall_limit = limit;
        self.progress = AtomicU64::new(now.as_micros());
        self
    }

    /// When validity ends, unless it is renewed or the work makes progress.
    pub(crate) fn deadline(&self) -> Stamp {
        let held_until = self.held_until();
        self.stalls_at().map_or(held_until, |end| end.min(held_until))
    }

    fn held_until(&self) -> Stamp {
        Stamp::from_micros(self.held_until.load(Ordering::Acquire))
    }

    fn stalls_at(&self) -> Option<Stamp> {
        self.stall_limit.map(|limit| self.progressed_at().after(limit))
    }

    /// When the work last made progress.
    pub(super) fn progressed_at(&self) -> Stamp {
        Stamp::from_micros(self.progress.load(Ordering::Acquire))
    }

    /// The work makes progress. Without effect once it has stalled: the keeper may have given the lock back.
    pub(crate) fn progress(&self, now: Stamp) {
        if self.stalls_at().is_some_and(|end| now < end) {
            self.progress.fetch_max(now.as_micros(), Ordering::AcqRel);
        }
    }

    /// The phase that the engine set, corrected by the clock now: a timer may not have fired yet.
    pub(crate) fn phase(&self, clock: &Clock) -> Phase {
        match self.told() {
            lost @ Phase::Lost(_) => lost,
            alive if clock.now() < self.deadline() => alive,
            _ if self.ends_by_stall() => Phase::Lost(LossReason::Stalled),
            _ if self.ends_by_max_hold() => Phase::Lost(LossReason::MaxHold),
            _ => Phase::Lost(LossReason::Expired),
        }
    }

    /// Whether `max_hold` ends the guard before its lease does.
    pub(crate) fn ends_by_max_hold(&self) -> bool {
        self.max_end == Some(self.held_until())
    }

    /// Whether the work's silence ends the guard before anything else does.
    pub(crate) fn ends_by_stall(&self) -> bool {
        self.stalls_at().is_some_and(|end| end < self.held_until())
    }

    /// The phase as the engine last told it.
    pub(crate) fn told(&self) -> Phase {
        match self.phase.load(Ordering::SeqCst) {
            0 => Phase::Held,
            1 => Phase::Suspect,
            n => Phase::Lost(REASONS[usize::from(n - LOST).min(REASONS.len() - 1)]),
        }
    }

    /// Called by the engine only, under its lock. The deadline is set first: a reader never sees Held with an old one.
    /// Returns whether the phase has changed or the lease was renewed for the first time, and a task watches for that, so
    /// that the caller must `ring`.
    pub(super) fn set(&self, phase: Phase, held_until: Stamp) -> bool {
        let was_renewed = self.is_renewed();
        self.held_until.store(held_until.as_micros(), Ordering::Release);
        let first = !was_renewed && self.is_renewed();
        let number = match phase {
            Phase::Held => 0,
            Phase::Suspect => 1,
            Phase::Lost(reason) => {
                let at = REASONS.iter().position(|r| *r == reason).unwrap_or(1);
                LOST + u8::try_from(at).unwrap_or(1)
            }
        };
        if !first && self.phase.load(Ordering::Relaxed) == number {
            return false;
        }
        // First the change, then the look; `until` does it the other way round. So one of the two sees the other.
        self.phase.swap(number, Ordering::SeqCst);
        self.watched.load(Ordering::SeqCst)
    }

    /// Wakes the tasks that watch this guard; never under the engine's lock.
    pub(super) fn ring(&self) {
        self.changed.notify_waiters();
    }

    /// Resolves when the guard has ended, with the reason.
    pub(crate) async fn lost(&self) -> LossReason {
        self.until(|| match self.told() {
            Phase::Lost(reason) => Some(reason),
            _ => None,
        })
        .await
    }

    /// Resolves when the lease has been renewed, or the guard has ended.
    pub(crate) async fn renewed(&self) {
        self.until(|| (self.is_renewed() || matches!(self.told(), Phase::Lost(_))).then_some(())).await
    }

    /// Looks now, and again whenever `ring` is called.
    async fn until<T>(&self, look: impl Fn() -> Option<T>) -> T {
        self.watched.store(true, Ordering::SeqCst);
        // Either the engine sees that this task watches, or this look sees all that the engine has set.
        self.phase.load(Ordering::SeqCst);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(found) = look() {
                return found;
            }
            changed.await;
        }
    }

    /// Whether the deadline is no longer the one of the grant.
    fn is_renewed(&self) -> bool {
        self.held_until() != self.first.1
    }

    /// The time that margins are fractions of. A `max_hold` or `stall_limit` shorter than the TTL is the real end. A lease
    /// that was handed over is short until it is renewed.
    pub(crate) fn margin_base(&self) -> Duration {
        let lease = if self.is_renewed() { self.ttl } else { self.first.0.min(self.ttl) };
        let lease = self.stall_limit.map_or(lease, |limit| limit.min(lease));
        self.max_end.map_or(lease, |end| end.since(self.since).min(lease))
    }
}
