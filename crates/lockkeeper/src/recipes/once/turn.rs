//! A caller's turn: from "running" in the store to a result in it.

use super::record::{Record, Verdict, judge};
use super::{OnFailure, Once};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, Lease};
use crate::pass::Pass;
use crate::recipes::kept::Kept;
use crate::recipes::patience::insist;
use crate::token::Token;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::future::Future;

/// What the work of [`Once::run`] gets to know of its run; cheap to clone.
#[derive(Clone, Debug)]
pub struct Running {
    pub(super) lease: Lease,
    pub(super) pass: Pass,
    pub(super) attempt: u32,
    pub(super) taken_over: bool,
}

impl Running {
    /// What to show at a fence, so that a database refuses a runner that was taken over: see [`crate::fence`].
    pub fn pass(&self) -> &Pass {
        &self.pass
    }

    /// A view of the lock that this run holds.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The fencing number of this run; a later run's is always higher.
    pub fn token(&self) -> Token {
        self.pass.token
    }

    /// Whether an earlier runner began and never said how it ended: it was killed, cancelled, or lost the lock. Its effect
    /// may have happened; look before you repeat it.
    pub fn taken_over(&self) -> bool {
        self.taken_over
    }

    /// The number of this run, from 1; above it are runs that failed or were taken over.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}

/// The lock, with "running" in the register.
pub(crate) struct Turn {
    pub(super) once: Once,
    pub(super) kept: Kept<Record>,
    pub(super) record: Record,
    pub(super) running: Running,
    pub(super) guard: Guard,
}

impl Turn {
    pub(crate) fn running(&self) -> &Running {
        &self.running
    }

    /// Drives the work, and cancels it before the lease can end. Work that has ended counts, also when it ended after the
    /// lease did: whether its result is in time is for the register's fence to say.
    pub(super) async fn perform<O>(&self, work: impl Future<Output = O>) -> Result<O> {
        let mut outcome = None;
        let ran = self.guard.run(async { outcome = Some(work.await) }).await;
        match (outcome, ran) {
            (Some(outcome), _) => Ok(outcome),
            (None, Err(lost)) => Err(lost),
            (None, Ok(())) => Err(Error::new(ErrorKind::Unexpected, "the work ended without an outcome")),
        }
    }

    /// Stores what came out, and gives the lock back.
    pub(crate) async fn finish<T, E>(self, outcome: Result<T, E>) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<Error> + Display,
    {
        let answer = match outcome {
            Ok(value) => {
                let record = self.record.done(&value, self.once.limit);
                self.store(&record).await.map(|()| record)
            }
            Err(error) => {
                let for_good = self.once.on_failure == OnFailure::Keep;
                self.fail(self.record.failed(&error, for_good)).await;
                give_back(self.guard).await;
                return Err(error);
            }
        };
        give_back(self.guard).await;
        // The first caller, too, gets what is stored, so that all of them get the same result or the same error.
        let answer = answer.and_then(|record| match judge(Some(&record), &self.once.terms) {
            Verdict::Settled(answer) => answer.map_err(|e| self.once.named(e)),
            Verdict::Open { .. } => Err(Error::new(ErrorKind::Unexpected, "a result was stored as none")),
        });
        Ok(answer?)
    }

    /// Writes the result.
    async fn store(&self, record: &Record) -> Result<()> {
        let Self { once, kept, running, .. } = self;
        once.put(kept, &running.pass, &running.lease, record).await.map_err(|e| {
            let text = format!("the work is done, but its result was not stored: {}", e.message());
            once.named(e.reworded(text))
        })
    }

    /// Writes the failure. If that fails too, the key stays "running" and the next caller takes over, which is safe.
    async fn fail(&self, record: Record) {
        let Self { once, kept, running, .. } = self;
        if let Err(error) = once.put(kept, &running.pass, &running.lease, &record).await {
            tracing::warn!(%error, "the work has failed, and that could not be stored");
        }
    }
}

impl Once {
    /// Writes a record. What settles the key is written for as long as the lease lasts, anything else once.
    pub(super) async fn put(&self, kept: &Kept<Record>, pass: &Pass, lease: &Lease, record: &Record) -> Result<()> {
        let write = || kept.write(pass, record, Some(record.life(self.keep)));
        if record.settles() { insist(&self.keeper, lease, write).await } else { write().await }
    }
}

/// Releases; the result is stored, so a release that fails changes nothing for the caller.
pub(super) async fn give_back(guard: Guard) {
    if let Err(error) = guard.release().await {
        tracing::warn!(%error, "the key is settled, but its lock could not be released");
    }
}
