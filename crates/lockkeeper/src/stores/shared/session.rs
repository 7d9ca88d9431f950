//! One session (or lease) at a server, and what is known here of a claim on it. `sessions.rs` keeps them.
//!
//! A session counts from before the last renewal that the server answered.

use crate::clock::Stamp;
use crate::mutant::planted;
use crate::store::{Claim, Grant, LossReason};
use crate::token::Token;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// One session; what a store adds to it is found by dereferencing.
#[derive(Debug)]
pub(in crate::stores) struct Session<S> {
    /// What the server granted.
    pub(in crate::stores) ttl: Duration,
    /// What was asked for, in whole seconds.
    pub(super) class: u64,
    acked: AtomicU64,
    used: AtomicU64,
    ended: AtomicBool,
    more: S,
}

impl<S> Deref for Session<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.more
    }
}

impl<S> Session<S> {
    /// A session that was opened after `now`.
    pub(super) fn new(class: u64, ttl: Duration, now: Stamp, more: S) -> Self {
        let now = now.as_micros();
        Self { ttl, class, acked: AtomicU64::new(now), used: AtomicU64::new(now), ended: AtomicBool::new(false), more }
    }

    /// Whether a claim can be made on it without asking the server.
    pub(super) fn is_fresh(&self, now: Stamp) -> bool {
        !self.has_ended() && now.since(self.acked()) < self.ttl / 2
    }

    /// An acquire looks for it.
    pub(super) fn touch(&self, now: Stamp) {
        self.used.store(now.as_micros(), Ordering::Relaxed);
    }

    /// Marks its end; whether this call was the first to notice.
    pub(super) fn end(&self) -> bool {
        !self.ended.swap(true, Ordering::AcqRel)
    }

    /// The stamp of the last renewal that was answered.
    pub(in crate::stores) fn acked(&self) -> Stamp {
        Stamp::from_micros(self.acked.load(Ordering::Relaxed))
    }

    /// When an acquire last looked for it.
    #[cfg(feature = "etcd")]
    pub(in crate::stores) fn used(&self) -> Stamp {
        Stamp::from_micros(self.used.load(Ordering::Relaxed))
    }

    /// A renewal was answered that was sent after `stamp`.
    pub(in crate::stores) fn renewed(&self, stamp: Stamp) {
        self.acked.fetch_max(stamp.as_micros(), Ordering::Relaxed);
    }

    pub(in crate::stores) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// What is left from the claim's stamp on.
    pub(in crate::stores) fn left(&self, claim: &Claim) -> Duration {
        let age = claim.stamp.since(self.acked());
        // The engine allows a hundredth of what it is told for clocks that differ; the age needs that allowance too.
        // A planted bug: see `mutant.rs`.
        let ttl = if planted("heir-with-a-longer-ttl") { claim.ttl } else { self.ttl.min(claim.ttl) };
        ttl.saturating_sub(age + age / 99)
    }

    pub(in crate::stores) fn grant(&self, token: Token, claim: &Claim) -> Grant {
        Grant { token, stamp: claim.stamp, lease: self.left(claim) }
    }
}

/// A TTL in whole seconds, rounded up.
pub(in crate::stores) fn whole_seconds(ttl: Duration) -> u64 {
    ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)
}

/// What is known of a claim here; what a store adds to it is found by dereferencing.
#[derive(Debug)]
pub(in crate::stores) struct ClaimState<S, C> {
    pub(in crate::stores) session: Arc<Session<S>>,
    /// Its token, once it is held.
    pub(in crate::stores) token: Option<Token>,
    /// How many of its acquires have not been answered.
    pub(in crate::stores) unanswered: u32,
    /// When a release was asked for last.
    pub(in crate::stores) released: Option<Stamp>,
    pub(in crate::stores) lost: Option<(LossReason, Stamp)>,
    more: C,
}

impl<S, C> ClaimState<S, C> {
    pub(super) fn new(session: &Arc<Session<S>>, more: C) -> Self {
        Self { session: session.clone(), token: None, unanswered: 0, released: None, lost: None, more }
    }

    /// Whether it was released or lost, so that an acquire of it must not win any more.
    pub(in crate::stores) fn is_over(&self) -> bool {
        self.released.is_some() || self.lost.is_some()
    }
}

impl<S, C: Clone> Clone for ClaimState<S, C> {
    fn clone(&self) -> Self {
        let Self { session, token, unanswered, released, lost, more } = self;
        Self {
            session: session.clone(),
            token: *token,
            unanswered: *unanswered,
            released: *released,
            lost: *lost,
            more: more.clone(),
        }
    }
}

impl<S, C> Deref for ClaimState<S, C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.more
    }
}

impl<S, C> DerefMut for ClaimState<S, C> {
    fn deref_mut(&mut self) -> &mut C {
        &mut self.more
    }
}
