//! Sleeping by the engine's clock. The timers live on the keeper's thread, so they work on any executor and on a test's
//! clock.

use super::Engine;
use crate::clock::Stamp;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Resolves when the engine's clock has reached a stamp, or the engine has ended.
pub(crate) struct Alarm {
    engine: Arc<Engine>,
    at: Stamp,
    key: Option<u64>,
}

impl Alarm {
    pub(crate) fn new(engine: &Arc<Engine>, at: Stamp) -> Self {
        Self { engine: engine.clone(), at, key: None }
    }
}

impl Future for Alarm {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.engine.clock.now() >= self.at {
            return Poll::Ready(());
        }
        let (key, at) = (self.key, self.at);
        // A waker that is not needed any longer is dropped here, once the tables are free.
        match self.engine.with_state(|s| s.set_alarm(key, at, cx.waker())) {
            Some((key, _spent)) => {
                self.key = Some(key);
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        cancel(&self.engine, self.key);
    }
}

fn cancel(engine: &Engine, key: Option<u64>) {
    // In a forked child the tables may stay locked for ever, and they belong to the parent.
    if key.is_some() && !engine.is_forked() {
        engine.with_state(|s| s.cancel_alarm(key));
    }
}

/// A limit for one call to the store. Its timer is set only if the call does not finish at once.
pub(super) struct Limit<'a> {
    engine: &'a Engine,
    at: Stamp,
    key: Option<u64>,
}

impl<'a> Limit<'a> {
    pub(super) fn new(engine: &'a Engine, at: Stamp) -> Self {
        Self { engine, at, key: None }
    }

    /// A limit whose timer another task has set.
    pub(super) fn set(engine: &'a Engine, at: Stamp, key: Option<u64>) -> Self {
        Self { engine, at, key }
    }

    /// Runs `work`; `None` when the limit has passed.
    pub(super) async fn run<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let mut first = self.key.is_none();
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.pending(cx, std::mem::take(&mut first)).map(|()| None),
        })
        .await
    }

    /// The work goes on: ready when the limit has passed. At `first` the limit has just begun, so the clock is not read.
    fn pending(&mut self, cx: &mut Context<'_>, first: bool) -> Poll<()> {
        if !first && self.engine.clock.now() >= self.at {
            return Poll::Ready(());
        }
        match self.engine.with_state(|s| s.set_alarm(self.key, self.at, cx.waker())) {
            Some((key, _spent)) => {
                self.key = Some(key);
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }

    /// The timer, if it was set: the caller cancels it in its next step.
    pub(super) fn over(mut self) -> Option<u64> {
        self.key.take()
    }
}

impl Drop for Limit<'_> {
    fn drop(&mut self) {
        cancel(self.engine, self.key);
    }
}

/// Runs `work` for at most `limit`; without any time it gets one chance to be done already.
pub(super) async fn limit<T>(engine: &Engine, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    if limit.is_zero() {
        let mut work = pin!(work);
        return poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => Poll::Ready(None),
        })
        .await;
    }
    let mut limit = Limit::new(engine, engine.clock.now().after(limit));
    let done = limit.run(work).await;
    if let key @ Some(_) = limit.over() {
        engine.with_state(|s| s.cancel_alarm(key));
    }
    done
}
