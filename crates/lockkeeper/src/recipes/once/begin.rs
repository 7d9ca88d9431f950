//! The way to a turn: a look, the line, another look.

use super::record::{Record, Verdict, check_keep, judge};
use super::turn::{Turn, give_back};
use super::{InProgress, MAX_RESULT, Once, Running};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::recipes::kept::Kept;
use crate::recipes::patience::{insist, need_registers, pause};
use crate::timing::back_off;
use serde::de::DeserializeOwned;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// The first and the longest pause between two looks of a caller who waits in line: short enough that many waiters do not
/// have to take the lock one after the other, long enough to cost the store little.
const LOOKS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What a caller has when it need not wait any more.
pub(crate) enum Begun<T> {
    /// The stored result.
    Settled(T),
    /// The lock, and work to do.
    Ours(Box<Turn>),
}

/// What ended a wait.
enum Waited<T> {
    Answer(T),
    Lock(Guard),
}

impl Once {
    /// Finds the stored result, or takes the lock and says in the store that the work begins.
    pub(crate) async fn begin<T: DeserializeOwned>(&self) -> Result<Begun<T>> {
        self.check().map_err(|e| self.named(e))?;
        let kept = Kept::new(self.keeper.register(&self.name));
        if let Some(result) = self.look(&kept).await? {
            return Ok(Begun::Settled(result));
        }
        let guard = match self.queue(&kept).await? {
            Waited::Answer(result) => return Ok(Begun::Settled(result)),
            Waited::Lock(guard) => guard,
        };
        let pass = guard.pass()?;
        let found = insist(&self.keeper, guard.lease(), || kept.enter(&pass)).await?;
        let (attempt, left) = match judge(found.as_ref(), &self.terms) {
            Verdict::Open { attempt, left } => (attempt, left),
            Verdict::Settled(answer) => {
                give_back(guard).await;
                return answer.map(Begun::Settled).map_err(|e| self.named(e));
            }
        };
        let record = Record::running(pass.token, attempt, left, &self.terms);
        // Not repeated when its answer is lost: the first request might arrive late, after the result, and undo it. The
        // work has not begun, so the caller may try again; then the token is higher, and a late request is refused.
        self.put(&kept, &pass, guard.lease(), &record).await?;
        let running = Running { lease: guard.lease().clone(), pass, attempt, taken_over: left };
        Ok(Begun::Ours(Box::new(Turn { once: self.clone(), kept, record, running, guard })))
    }

    /// Takes the lock, or finds that another caller has ended the work meanwhile.
    async fn queue<T: DeserializeOwned>(&self, kept: &Kept<Record>) -> Result<Waited<T>> {
        let lock = match self.in_progress {
            InProgress::Wait => self.lock.clone(),
            InProgress::Refuse => self.lock.clone().wait(Duration::ZERO),
        };
        let mut acquired = pin!(lock.acquire());
        let mut watched = pin!(self.watch(kept));
        let waited = poll_fn(|cx| match acquired.as_mut().poll(cx) {
            Poll::Ready(guard) => Poll::Ready(guard.map(Waited::Lock)),
            Poll::Pending => watched.as_mut().poll(cx).map(|answer| answer.map(Waited::Answer)),
        });
        let busy = match waited.await {
            Err(error) if error.kind() == ErrorKind::Busy => error,
            waited => return waited,
        };
        // The holder may have ended the work since our last look, or holds the lock only to look.
        match self.look(kept).await? {
            Some(result) => Ok(Waited::Answer(result)),
            None => Err(busy.reworded("another caller is running it".to_owned())),
        }
    }

    /// Looks again and again until the key is settled.
    async fn watch<T: DeserializeOwned>(&self, kept: &Kept<Record>) -> Result<T> {
        let engine = &self.keeper.inner.engine;
        for times in 0.. {
            let step = back_off(LOOKS.0, times, LOOKS.1.min(self.keep / 2));
            let end = engine.now().after(step);
            pause(&self.keeper, step).await;
            if engine.now() < end {
                // The keeper has ended, and pauses with it. The lock's own wait tells the caller.
                break;
            }
            match self.look(kept).await {
                Ok(Some(result)) => return Ok(result),
                Err(error) if !error.is_retryable() => return Err(error),
                Ok(None) | Err(_) => {}
            }
        }
        std::future::pending().await
    }

    /// The answer, if the key is settled; one read.
    async fn look<T: DeserializeOwned>(&self, kept: &Kept<Record>) -> Result<Option<T>> {
        match judge(kept.read().await?.as_ref(), &self.terms) {
            Verdict::Settled(answer) => answer.map(Some).map_err(|e| self.named(e)),
            Verdict::Open { .. } => Ok(None),
        }
    }

    fn check(&self) -> Result<()> {
        need_registers(&self.keeper, "once")?;
        check_keep(self.keep)?;
        if self.limit > MAX_RESULT {
            let limit = self.limit;
            return Err(Error::invalid_config(format!(
                "limit {limit} is too large; at most {MAX_RESULT} bytes are stored"
            )));
        }
        self.terms.check()
    }

    /// Says in an error which key it is about.
    pub(super) fn named(&self, error: Error) -> Error {
        match self.keeper.inner.full_name(&self.name) {
            Ok(name) => self.keeper.inner.engine.info.name_in(error.during("once").for_lock(&name)),
            Err(_) => error,
        }
    }
}
