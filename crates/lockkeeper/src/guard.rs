//! A held lock, and a read-only view of it.

use crate::engine::cell::Cell;
use crate::engine::{Alarm, Engine};
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::Inner;
use crate::mutant::planted;
use crate::name::LockName;
use crate::pass::{Pass, SharedPass};
use crate::store::{LossReason, Mode, Release};
use crate::token::{HolderId, Token};
use crate::trace;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

pub use crate::machine::hold::Phase;

const PERMIT_HAS_NO_PASS: &str = "a permit has no pass: its token orders nothing";

/// A held lock. Dropping it releases in the background; [`release`](Self::release) tells whether that worked.
///
/// The keeper renews it until it ends. When that fails for too long, or the lock is broken, it is *lost*:
/// [`lost`](Self::lost) resolves, [`check`](Self::check) fails, [`run`](Self::run) has cancelled its work before.
#[must_use = "a guard that is dropped at once releases its lock at once"]
pub struct Guard {
    lease: Lease,
    key: u64,
    keeper: Arc<Inner>,
    done: bool,
    span: tracing::Span,
}

impl Guard {
    pub(crate) fn new(keeper: Arc<Inner>, key: u64, cell: Arc<Cell>) -> Self {
        let lease = Lease { cell, engine: keeper.engine.clone() };
        Self { span: trace::hold(&lease), lease, key, keeper, done: false }
    }

    /// A read-only view; a clone of it can be handed to the work. It does not keep the lock.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The name of the lock.
    pub fn name(&self) -> &LockName {
        self.lease.name()
    }

    /// The fencing number of this grant.
    pub fn token(&self) -> Token {
        self.lease.token()
    }

    /// The id of this grant's holder: a secret, needed only to show at a fence from another process.
    pub fn holder(&self) -> HolderId {
        self.lease.cell.holder
    }

    /// What an Exclusive holder shows at a fence.
    ///
    /// # Errors
    /// `Unsupported` for Shared and Permit guards: their tokens do not order writes.
    pub fn pass(&self) -> Result<Pass> {
        self.lease.pass()
    }

    /// What a Shared holder shows at a fence, to read.
    ///
    /// # Errors
    /// `Unsupported` for Exclusive guards, which enter with [`pass`](Self::pass), and for Permit guards.
    pub fn shared_pass(&self) -> Result<SharedPass> {
        self.lease.shared_pass()
    }

    /// Where the guard stands, by the clock at this moment.
    pub fn phase(&self) -> Phase {
        self.lease.phase()
    }

    /// How long the lock is certainly held without another renewal; zero when it is lost.
    pub fn remaining(&self) -> Duration {
        self.lease.remaining()
    }

    /// Fails with `Lost` unless the lock is held at this moment, by the clock. No I/O.
    ///
    /// # Errors
    /// `Lost` with the reason.
    pub fn check(&self) -> Result<()> {
        self.lease.check()
    }

    /// Resolves when the guard has ended, with the reason. Cancel safe.
    pub async fn lost(&self) -> LossReason {
        self.lease.lost().await
    }

    /// Runs `work` under the lock, in place, and cancels it (at an `.await`) before the lease can end: when a sixth of
    /// the TTL is left, or of `max_hold` when that ends it first.
    ///
    /// # Errors
    /// `Lost` when the work was cancelled, or ended after the lease did.
    ///
    /// # Cancellation
    /// Dropping the returned future drops `work`; the lock stays held.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let mut work = pin!(work);
        let mut danger = pin!(self.lease.last_part(6));
        poll_fn(|cx| {
            // The clock first: after a suspend the work takes no further step.
            if self.check().is_ok()
                && let Poll::Ready(done) = work.as_mut().poll(cx)
            {
                return Poll::Ready(self.check().map(|()| done));
            }
            danger.as_mut().poll(cx).map(|()| Err(self.lease.lost_error("the work was cancelled because")))
        })
        .await
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// `Lost` when it had ended before: the work may have run beside another holder's. `Unavailable` when no answer came;
    /// the keeper goes on trying until the lease is over.
    ///
    /// # Cancellation
    /// The release goes on in the background.
    pub async fn release(mut self) -> Result<()> {
        self.done = true;
        let answer = self.keeper.engine.release(self.key, self.lease.cell.ttl).await;
        self.lease.release_outcome(answer)
    }

    /// The claim's number, for the engine to release it, and the lease.
    pub(crate) fn into_parts(mut self) -> (u64, Lease) {
        self.done = true;
        (self.key, self.lease.clone())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.done && !planted("drop-does-nothing") {
            self.keeper.engine.release_later(self.key);
        }
        trace::ended(&self.span, &self.lease);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("token", &self.token())
            .field("phase", &self.phase())
            .finish()
    }
}

/// A read-only view of a [`Guard`]: cheap to clone, does not keep the lock held.
#[derive(Clone)]
pub struct Lease {
    pub(crate) cell: Arc<Cell>,
    engine: Arc<Engine>,
}

impl Lease {
    /// The name of the lock.
    pub fn name(&self) -> &LockName {
        &self.cell.name
    }

    /// The fencing number of the grant.
    pub fn token(&self) -> Token {
        self.cell.token
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.cell.mode
    }

    /// What to show at a fence; see [`Guard::pass`].
    ///
    /// # Errors
    /// `Unsupported` for Shared and Permit guards.
    pub fn pass(&self) -> Result<Pass> {
        match self.cell.mode {
            Mode::Exclusive => {
                let pass = Pass::new(self.cell.name.clone(), self.cell.token, self.cell.holder);
                Ok(pass.store(self.engine.info.tokens.clone()))
            }
            Mode::Shared => Err(self.no_pass("a shared lock has no pass to write; shared_pass() lets its holder read")),
            Mode::Permit { .. } => Err(self.no_pass(PERMIT_HAS_NO_PASS)),
        }
    }

    /// What a Shared holder shows at a fence; see [`Guard::shared_pass`].
    ///
    /// # Errors
    /// `Unsupported` for Exclusive and Permit guards.
    pub fn shared_pass(&self) -> Result<SharedPass> {
        match self.cell.mode {
            Mode::Shared => {
                Ok(SharedPass::new(self.cell.name.clone(), self.cell.token).store(self.engine.info.tokens.clone()))
            }
            // As a Shared token it would keep the holder's own next Exclusive entry out.
            Mode::Exclusive => Err(self.no_pass("an exclusive lock has no shared pass; pass() lets its holder in")),
            Mode::Permit { .. } => Err(self.no_pass(PERMIT_HAS_NO_PASS)),
        }
    }

    fn no_pass(&self, text: &str) -> Error {
        Error::unsupported(text).for_lock(&self.cell.name)
    }

    /// Where the guard stands, by the clock at this moment.
    pub fn phase(&self) -> Phase {
        if self.engine.is_forked() {
            return Phase::Lost(LossReason::Forked);
        }
        self.cell.phase(&self.engine.clock)
    }

    /// How long the lock is certainly held without another renewal; zero when it is lost.
    pub fn remaining(&self) -> Duration {
        match self.phase() {
            Phase::Lost(_) => Duration::ZERO,
            _ => self.cell.deadline().since(self.engine.now()),
        }
    }

    /// Fails with `Lost` unless the lock is held at this moment, by the clock. No I/O.
    ///
    /// # Errors
    /// `Lost` with the reason.
    pub fn check(&self) -> Result<()> {
        match self.phase() {
            Phase::Lost(_) => Err(self.lost_error("the lock is not held any more:")),
            _ => Ok(()),
        }
    }

    /// Resolves when the guard has ended, with the reason; `Released` after a normal release. Cancel safe.
    pub async fn lost(&self) -> LossReason {
        if self.engine.is_forked() {
            // The parent's thread, which would tell, does not exist here.
            return LossReason::Forked;
        }
        self.cell.lost().await
    }

    /// Resolves when the lease has been renewed once, or the guard has ended. A lock that was handed over late may have
    /// little of its lease left until then. Cancel safe.
    pub async fn renewed(&self) {
        if !self.engine.is_forked() {
            self.cell.renewed().await;
        }
    }

    /// Resolves when no more than `margin` is left, or the guard has ended: time to stop what the lock protects.
    /// Renewals push it back. Cancel safe.
    pub async fn ends_within(&self, margin: Duration) {
        self.ends_within_margin(|| margin).await
    }

    /// Resolves when the last `1/part` of the lease has begun, or the guard has ended: [`ends_within`](Self::ends_within)
    /// with a margin that follows [`margin_base`](Self::margin_base). A `part` of 0 counts as 1.
    pub async fn last_part(&self, part: u32) {
        self.ends_within_margin(|| self.cell.margin_base() / part.max(1)).await
    }

    async fn ends_within_margin(&self, margin: impl Fn() -> Duration) {
        let mut lost = pin!(self.lost());
        let mut alarm: Option<(crate::clock::Stamp, Alarm)> = None;
        poll_fn(|cx| {
            if lost.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            loop {
                let at = self.before_deadline(&margin);
                // Looked at again in the loop: alarms of a keeper that has ended ring at once.
                if self.engine.now() >= at || matches!(self.cell.told(), Phase::Lost(_)) {
                    return Poll::Ready(());
                }
                // The deadline only ever moves on: an alarm that rings early is set anew.
                let (_, alarm) = match &mut alarm {
                    Some(set) if set.0 >= self.engine.now() => set,
                    slot => slot.insert((at, Alarm::new(&self.engine, at))),
                };
                if Pin::new(alarm).poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// The deadline minus the margin that belongs to it: a renewal in between changes both.
    fn before_deadline(&self, margin: impl Fn() -> Duration) -> crate::clock::Stamp {
        loop {
            let deadline = self.cell.deadline();
            let at = deadline.before(margin());
            if self.cell.deadline() == deadline {
                return at;
            }
        }
    }

    /// Says that the work makes progress, for a lock with a [`stall_limit`](crate::Lock::stall_limit). Cheap: no I/O and no
    /// lock, so a loop may call it at every turn. Without effect on other locks, and once the lock is lost.
    pub fn progress(&self) {
        self.cell.progress(self.engine.now());
    }

    /// The TTL it is renewed with.
    pub fn ttl(&self) -> Duration {
        self.cell.ttl
    }

    /// What margins are fractions of: the TTL, or `max_hold` or `stall_limit` when that is shorter, or the shorter lease of a lock that
    /// was handed over and not renewed yet.
    pub fn margin_base(&self) -> Duration {
        self.cell.margin_base()
    }

    #[cfg(feature = "testing")]
    pub(crate) fn lose(&self, reason: LossReason) {
        self.engine.lose(self.cell.holder, reason);
    }

    /// What the owner is told of a release.
    pub(crate) fn release_outcome(&self, answer: Result<Option<Release>>) -> Result<()> {
        match answer? {
            Some(Release::Released) => Ok(()),
            Some(Release::NotHeld) => {
                Err(Error::new(ErrorKind::Lost, "the store no longer had the lock when it was released")
                    .during("release")
                    .for_lock(self.name()))
            }
            None => Err(self.lost_error("the lock had ended before it was released:").during("release")),
        }
    }

    pub(crate) fn lost_error(&self, what: &str) -> Error {
        let why = match self.phase() {
            Phase::Lost(reason) => reason.to_string(),
            _ if self.cell.ends_by_stall() => "its work made no progress within stall_limit".to_owned(),
            _ if self.cell.ends_by_max_hold() => "max_hold was about to be reached".to_owned(),
            _ => "its lease was about to end".to_owned(),
        };
        Error::new(ErrorKind::Lost, format!("{what} {why}")).for_lock(&self.cell.name)
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", self.name())
            .field("token", &self.token())
            .field("phase", &self.phase())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::Keeper;
    use std::time::Duration;

    #[tokio::test]
    async fn a_lock_with_a_long_ttl_that_was_handed_over_is_not_in_danger() {
        let (a, b) = (Keeper::connect("memory:handed").await.unwrap(), Keeper::connect("memory:handed").await.unwrap());
        let first = a.lock("x").acquire().await.unwrap();
        // A lease just handed over lasts 10 s: less than the sixth of this TTL at which work is cancelled.
        let waiting = tokio::spawn(async move { b.lock("x").ttl(Duration::from_secs(90)).acquire().await });
        while a.inspect("x").await.unwrap().is_none_or(|r| r.waiting == 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        first.release().await.unwrap();
        let second = waiting.await.unwrap().unwrap();
        assert_eq!(second.run(async { 4 }).await.unwrap(), 4);
        second.run(tokio::time::sleep(Duration::from_millis(20))).await.unwrap();
        second.lease().renewed().await;
        assert!(second.remaining() > Duration::from_secs(10), "{:?}", second.remaining());
    }
}
