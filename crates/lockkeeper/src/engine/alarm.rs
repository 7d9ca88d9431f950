//! Sleeping by the engine's clock. The timers live on the keeper's thread, so they work on any executor and on a test's
//! clock.

use super::Engine;
use crate::clock::Stamp;
use std::future::Future;
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
        let alive = self.engine.with_state(|s| s.alive().then(|| s.set_alarm(key, at, cx.waker())));
        match alive {
            Some(key) => {
                self.key = Some(key);
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // In a forked child the tables may stay locked for ever, and they belong to the parent.
        if let Some(key) = self.key
            && !self.engine.is_forked()
        {
            self.engine.with_state(|s| s.cancel_alarm(key, self.at));
        }
    }
}

/// Runs `work` for at most `limit`; sets a timer only if it does not finish at once.
pub(super) async fn limit<T>(engine: &Arc<Engine>, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut alarm: Option<Alarm> = None;
    std::future::poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        let alarm = alarm.get_or_insert_with(|| Alarm::new(engine, engine.clock.now().after(limit)));
        Pin::new(alarm).poll(cx).map(|()| None)
    })
    .await
}
