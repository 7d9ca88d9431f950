//! A term that is held, and the view of it that a body gets.

use super::super::patience::insist;
use super::office::Office;
use super::proclaimed::{Proclaimed, check_value};
use crate::error::{ErrorKind, Result};
use crate::guard::{Guard, Lease};
use crate::pass::Pass;
use crate::store::{LossReason, Note};
use crate::token::Token;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::Mutex;

/// A term that is held. Dropping it resigns in the background; [`resign`](Self::resign) tells whether that worked.
///
/// Whatever the leader does must end with the lease: put it into [`run`](Self::run), or [`check`](Self::check) before each
/// step, and show the [`pass`](Self::pass) at a fence where there is one.
#[must_use = "a leadership that is dropped at once resigns at once"]
pub struct Leadership {
    guard: Guard,
    term: Term,
}

impl Leadership {
    pub(super) fn new(guard: Guard, term: Term) -> Self {
        Self { guard, term }
    }

    /// A view of the term that does not keep it: what the body of [`Election::lead`](super::Election::lead) gets.
    pub(crate) fn handle(&self) -> Term {
        self.term.clone()
    }

    /// The number of the term: the token of the lock. Every later term's is greater.
    pub fn term(&self) -> Token {
        self.guard.token()
    }

    /// A read-only view of the lease. It does not keep the leadership.
    pub fn lease(&self) -> &Lease {
        self.guard.lease()
    }

    /// What the leader shows at a fence.
    pub fn pass(&self) -> &Pass {
        self.term.pass()
    }

    /// Fails with `Lost` unless this candidate leads at this moment, by the clock. No I/O.
    ///
    /// # Errors
    /// `Lost` with the reason.
    pub fn check(&self) -> Result<()> {
        self.guard.check()
    }

    /// Resolves when the term has ended, with the reason. Cancel safe.
    pub async fn lost(&self) -> LossReason {
        self.guard.lost().await
    }

    /// Runs `work` while this candidate leads, and cancels it (at an `.await`) before the lease can end; see [`Guard::run`].
    /// Work in a process that was stopped or suspended for too long takes no step more, once it is at an `.await`.
    ///
    /// # Errors
    /// `Lost` when the work was cancelled, or ended after the lease did.
    ///
    /// # Cancellation
    /// Dropping the returned future drops `work`; this candidate still leads.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        self.guard.run(work).await
    }

    /// Replaces the value that followers see; see [`Term::proclaim`].
    ///
    /// # Errors
    /// As [`Term::proclaim`].
    ///
    /// # Cancellation
    /// As [`Term::proclaim`].
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        self.term.proclaim(value).await
    }

    /// Ends the term and gives the lock back. What the leader did must have ended before.
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Cancellation
    /// The release goes on in the background.
    pub async fn resign(self) -> Result<()> {
        self.guard.release().await
    }

    /// Resigns, and waits until another candidate has won: `true`. When none has within a TTL, `false`. A caller that
    /// campaigns only after that does not win against the others at once.
    ///
    /// # Errors
    /// `Denied`, `Foreign`, `Closed` and others that do not pass by waiting. An outage is ridden out, and a term that had
    /// ended before is no error.
    ///
    /// # Cancellation
    /// The lock is given back in any case.
    pub async fn step_down(self) -> Result<bool> {
        let Self { guard, term } = self;
        match guard.release().await {
            Err(error) if !error.is_retryable() && error.kind() != ErrorKind::Lost => return Err(error),
            _ => {}
        }
        term.office.another_after(term.number(), term.lease.ttl()).await
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&self.guard).finish()
    }
}

/// A view of a term, for the work that is done in it: cheap to clone, does not keep the leadership.
#[derive(Clone)]
pub struct Term {
    office: Office,
    lease: Lease,
    pass: Pass,
    note: Arc<Note>,
    /// The sequence of the last value. One value is written at a time, so that they arrive in order.
    sequence: Arc<Mutex<u64>>,
}

impl Term {
    pub(super) fn new(office: Office, lease: Lease, note: Arc<Note>) -> Result<Self> {
        Ok(Self { office, pass: lease.pass()?, lease, note, sequence: Arc::default() })
    }

    /// The number of the term: the token of the lock. Every later term's is greater.
    pub fn number(&self) -> Token {
        self.lease.token()
    }

    /// A read-only view of the lease.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What the leader shows at a fence.
    pub fn pass(&self) -> &Pass {
        &self.pass
    }

    /// Fails with `Lost` unless this candidate leads at this moment, by the clock. No I/O.
    ///
    /// # Errors
    /// `Lost` with the reason.
    pub fn check(&self) -> Result<()> {
        self.lease.check()
    }

    /// Resolves when the lease runs short, because it could not be renewed: a third of it is left, or it has ended. A body
    /// that ends by itself now is not cancelled, which happens when a sixth is left. Cancel safe.
    pub async fn ending(&self) {
        self.lease.last_part(3).await
    }

    /// Replaces the value that followers see, of at most 4096 bytes, in the same term. Repeated while the store is
    /// unavailable and the lease lasts.
    ///
    /// # Errors
    /// `InvalidConfig` for a value that is too long. `Lost` when the term has ended. `Stale` when a later leader has
    /// proclaimed itself, and then nothing was written. `Unavailable` when the store gave no answer until the lease ended.
    ///
    /// # Cancellation
    /// The value may or may not be seen; proclaim again.
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        let value = value.into();
        check_value(&value)?;
        let mut sequence = self.sequence.lock().await;
        self.check()?;
        // Counted before the write: one that was given up may have arrived.
        *sequence += 1;
        let proclaimed = Proclaimed::new(self.number(), *sequence, value, &self.note);
        // Writing raises the fence in the same step, and the value before does not matter: there is no need to enter.
        let write = || self.office.register.write(&self.pass, &proclaimed, None);
        insist(&self.office.keeper, &self.lease, write).await
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Term").field(&self.lease).finish()
    }
}
