//! One turn of a job: from the question whether to run, through the entry in the register, to the entry at the end.

use super::book::Book;
use super::history::Ended;
use super::report::{Run, Skipped};
use super::terms::{Begun, Entry, Terms, busy};
use super::window::{Millis, Target};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::keeper::Keeper;
use crate::lock::Lock;
use crate::pass::Pass;
use crate::recipes::kept::Kept;
use crate::recipes::patience::{back_off_pause, insist, pause};
use crate::store::{Held, Note};
use crate::token::Token;
use std::sync::Arc;
use std::time::Duration;

/// A job whose settings are in order.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) keeper: Keeper,
    pub(super) terms: Terms,
    pub(super) lock: Lock,
    pub(super) book: Kept<Book>,
    /// A value that the store ends `at_least` after a run has begun.
    pub(super) rest: Option<(Kept<u64>, Duration)>,
    pub(super) note: Arc<Note>,
    pub(super) ttl: Duration,
}

/// A run that the register knows of: the work may begin.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    plan: &'a Plan,
    pub(super) guard: Guard,
    pass: Pass,
    book: Book,
    began: Stamp,
    pub(super) window: Option<Millis>,
    pub(super) run: Run,
}

/// What stands in the register when a run begins: its window, its handle, the book.
type Entered = (Option<Millis>, Run, Book);

impl Plan {
    /// Now, by the wall clock that belongs to the keeper's clock.
    pub(super) fn now(&self) -> Millis {
        self.keeper.inner.engine.clock.wall_micros() / 1000
    }

    /// Takes the lock and enters a run into the register, or says why there is none.
    ///
    /// The lock is not waited for, with one exception. A holder that has not written yet which window it runs may have
    /// died, so this start looks again for as long as a dead holder keeps a lock.
    ///
    /// An entry whose answer was lost is not repeated under the same lock: the first request might arrive late, after the
    /// entry of the end, and undo it. The lock is taken anew, and its higher token keeps the late request out.
    pub(super) async fn begin(&self, target: Target) -> Result<Result<Turn<'_>, Skipped>> {
        let engine = &self.keeper.inner.engine;
        let patience = engine.now().after(self.ttl);
        let mut times = 0;
        let mut held: Option<Held> = None;
        // The token of an entry of ours that was not answered: its work has not begun.
        let mut unheard: Option<Token> = None;
        loop {
            // Most starts end here: other machines came late, and need no lock to see it.
            let book = self.book.read().await?.unwrap_or_default();
            if !book.is_of(unheard) {
                if let Err(skipped) = self.terms.due(&book, target, false) {
                    return Ok(Err(skipped));
                }
                if self.rests().await? {
                    return Ok(Err(self.terms.resting()));
                }
            }
            if let Some(held) = held.take() {
                // Our own lock, whose release was not answered either, says nothing about other starts.
                let ours = held.token.is_some() && held.token == unheard;
                if let Some(skipped) = busy(&book, &held, target, times >= SURE).filter(|_| !ours) {
                    return Ok(Err(skipped));
                }
                if engine.now() >= patience {
                    return Ok(Err(Skipped::Busy { held: Box::new(held) }));
                }
                back_off_pause(&self.keeper, times, self.ttl / 10).await;
                times += 1;
            }
            match self.lock.try_acquire_or_held().await? {
                Ok(guard) => match self.enter(&guard, target, unheard).await {
                    Err(error) if error.is_retryable() && engine.now() < patience => {
                        unheard = Some(guard.token());
                        give_back(guard).await;
                        back_off_pause(&self.keeper, times, self.ttl / 10).await;
                        times += 1;
                    }
                    Ok(Ok((window, run, book))) => return Ok(Ok(self.turn(guard, window, run, book)?)),
                    Ok(Err(skipped)) => {
                        give_back(guard).await;
                        return Ok(Err(skipped));
                    }
                    Err(error) => return Err(error),
                },
                Err(other) => held = Some(other),
            }
        }
    }

    async fn rests(&self) -> Result<bool> {
        match &self.rest {
            Some((rest, _)) => Ok(rest.read().await?.is_some()),
            None => Ok(false),
        }
    }

    /// Under the lock: looks again, and writes the run down before its work begins.
    async fn enter(&self, guard: &Guard, target: Target, unheard: Option<Token>) -> Result<Result<Entered, Skipped>> {
        let (pass, lease) = (guard.pass()?, guard.lease().clone());
        let entered = insist(&self.keeper, &lease, || self.book.enter(&pass)).await?;
        let mut book = entered.unwrap_or_default();
        let mut rests = false;
        if let Some((rest, _)) = &self.rest {
            rests = insist(&self.keeper, &lease, || rest.enter(&pass)).await?.is_some();
        }
        let entry = Entry { target, unheard, rests, token: pass.token, now: self.now(), who: &self.note };
        let Begun { window, interrupted } = match self.terms.enter(&mut book, &entry) {
            Ok(begun) => begun,
            Err(skipped) => return Ok(Err(skipped)),
        };
        self.book.write(&pass, &book, None).await?;
        // After the book: a start that dies in between has used up its window, but no work has begun that needs rest.
        if let Some((rest, at_least)) = &self.rest {
            let token = pass.token.get();
            insist(&self.keeper, &lease, || rest.write(&pass, &token, Some(*at_least))).await?;
        }
        lease.check()?;
        Ok(Ok((window, Run::new(window, lease, pass, interrupted), book)))
    }

    fn turn(&self, guard: Guard, window: Option<Millis>, run: Run, book: Book) -> Result<Turn<'_>> {
        let (pass, began) = (guard.pass()?, self.keeper.inner.engine.now());
        Ok(Turn { plan: self, guard, pass, book, began, window, run })
    }

    /// Sleeps until the wall clock shows `window`, in parts: it may be set meanwhile.
    pub(super) async fn sleep_until(&self, window: Millis) -> Result<()> {
        const PART: Duration = Duration::from_secs(30);
        let engine = &self.keeper.inner.engine;
        while let Some(left) = window.checked_sub(self.now()).filter(|left| *left > 0) {
            let part = Duration::from_millis(left).min(PART);
            let wake = engine.now().after(part);
            pause(&self.keeper, part).await;
            if engine.now() < wake {
                // Alarms of a keeper that has ended ring at once.
                return Err(Error::new(ErrorKind::Closed, "the keeper was closed"));
            }
        }
        Ok(())
    }
}

/// After this many looks, one and a half seconds, a holder without a token is taken for the run that is written down.
const SURE: u32 = 5;

impl Turn<'_> {
    /// Writes down how the run ended, and gives the lock back. The error says why the history does not have it.
    pub(super) async fn end(mut self, ended: Ended, text: &str) -> Option<Error> {
        let plan = self.plan;
        let took = plan.keeper.inner.engine.now().since(self.began);
        self.book.end(took, ended, text, plan.terms.keep);
        let lease = self.guard.lease().clone();
        // Tried once even when the lease is over: the fence refuses it if another run has begun.
        let written = insist(&plan.keeper, &lease, || plan.book.write(&self.pass, &self.book, None)).await;
        give_back(self.guard).await;
        let error = written.err()?;
        tracing::warn!(%error, "the job has run, but its history does not know how it ended");
        Some(error)
    }
}

/// A release that fails is repeated by the keeper, and changes nothing about the run. A lock that was lost before is no
/// news either.
async fn give_back(guard: Guard) {
    match guard.release().await {
        Err(error) if error.kind() != ErrorKind::Lost => tracing::warn!(%error, "the job's lock could not be released"),
        _ => {}
    }
}
