//! Time limits of calls that mostly end long before them.
//!
//! A new timer that is the next to end interrupts the thread that waits for input: a write to its own descriptor and a
//! turn for nothing, for every call. A timer that is kept and moved to a later end interrupts nothing: Tokio looks at it
//! again when its old end has come.

use super::lock;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, Sleep, sleep_until};

/// How many are kept: as many as calls that usually are under way at once.
const MOST: usize = 16;

type Timer = Pin<Box<Sleep>>;

/// Timers without a call. Each belongs to one runtime, and those of the last one are kept: most keepers have only one.
#[derive(Debug, Default)]
pub(in crate::stores) struct Timers(Mutex<Option<(Id, Vec<Timer>)>>);

impl Timers {
    /// What the work comes to; `None` when it takes longer than the limit.
    pub(in crate::stores) async fn within<F: Future + Unpin>(&self, limit: Duration, mut work: F) -> Option<F::Output> {
        let runtime = Handle::current().id();
        let mut timer = self.take(runtime, Instant::now() + limit);
        let done = poll_fn(|cx| match Pin::new(&mut work).poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
        });
        let done = done.await;
        self.keep(runtime, timer);
        done
    }

    fn take(&self, runtime: Id, end: Instant) -> Timer {
        let kept = match &mut *lock(&self.0) {
            Some((of, timers)) if *of == runtime => timers.pop(),
            _ => None,
        };
        match kept {
            Some(mut timer) => {
                timer.as_mut().reset(end);
                timer
            }
            None => Box::pin(sleep_until(end)),
        }
    }

    fn keep(&self, runtime: Id, timer: Timer) {
        let mut kept = lock(&self.0);
        match &mut *kept {
            Some((of, timers)) if *of == runtime => {
                if timers.len() < MOST {
                    timers.push(timer);
                }
            }
            _ => *kept = Some((runtime, vec![timer])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    #[tokio::test]
    async fn a_timer_that_is_used_again_has_the_limit_of_its_call() {
        let timers = Timers::default();
        assert_eq!(timers.within(Duration::from_secs(600), ready(1)).await, Some(1));
        for limit in [30, 10, 20].map(Duration::from_millis) {
            let before = Instant::now();
            assert_eq!(timers.within(limit, pending::<()>()).await, None);
            assert!(before.elapsed() >= limit);
        }
        assert_eq!(timers.within(Duration::from_secs(600), ready(2)).await, Some(2));
        assert_eq!(lock(&timers.0).as_ref().map(|(_, kept)| kept.len()), Some(1), "one for all of them");
    }

    #[test]
    fn a_timer_of_another_runtime_is_not_used() {
        let timers = Timers::default();
        for _ in 0..2 {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            for _ in 0..2 {
                let none = timers.within(Duration::from_millis(1), pending::<()>());
                assert_eq!(runtime.block_on(none), None);
            }
        }
    }
}
