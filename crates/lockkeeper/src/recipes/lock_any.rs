//! Any free one of several names: for queues of work, and for slots of which there are a few.

use super::several::{Several, settings};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::keeper::Keeper;
use crate::lock::Lock;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// How many names are tried one after another before the caller waits for all of them at once.
const TRIED_FIRST: usize = 4;

/// A wait without a limit. A lock that waits without one logs after 30 s who holds it; here that would be a line for each
/// name.
const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

impl Keeper {
    /// Describes several locks, any one of which will do; no I/O.
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory:").await?;
    /// let slot = keeper.lock_any(["gpu/0", "gpu/1"]).acquire().await?;
    /// println!("working on {}", slot.name());
    /// slot.release().await
    /// # }
    /// ```
    pub fn lock_any<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> LockAny {
        LockAny(Several::new(self, names))
    }
}

/// Several locks, one of which is to be taken. Settings left alone are the keeper's.
///
/// Each call begins at a name drawn by chance, so over time no name is left out.
#[derive(Clone, Debug)]
#[must_use = "locks do nothing until one is acquired"]
pub struct LockAny(Several);

settings!(LockAny);

impl LockAny {
    /// Takes the first that is free; `None` when none is. One call to the store for each name that it looks at.
    ///
    /// # Errors
    /// `InvalidConfig` for an empty list, or one of more than 1,000 names; otherwise as [`Lock::try_acquire`].
    ///
    /// # Cancellation
    /// Nothing stays behind.
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.0.check("lock_any")?;
        self.first_free(self.order()).await
    }

    /// Takes the first that is free, or waits until one is: in the line of every name at once, so no name is polled
    /// where the store can tell. A second grant that comes at the same moment is given back at once.
    ///
    /// # Errors
    /// `Busy` when the wait ended; otherwise as [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancellation
    /// Nothing stays behind: the place in every line is given up.
    pub async fn acquire(&self) -> Result<Guard> {
        self.0.check("lock_any")?;
        let wait = self.0.wait();
        let engine = &self.0.keeper.inner.engine;
        let began = engine.now();
        let order = self.order();
        if wait.is_some_and(|wait| wait.is_zero()) {
            return self.first_free(order).await?.ok_or_else(|| self.none_free(Duration::ZERO));
        }
        if let Some(guard) = self.first_free(order.clone().take(TRIED_FIRST)).await? {
            return Ok(guard);
        }
        let left = wait.map_or(NO_LIMIT, |wait| began.after(wait).since(engine.now()));
        match first_granted(order.map(|lock| lock.clone().wait(left))).await {
            Err(error) if error.kind() == ErrorKind::Busy => Err(self.none_free(wait.unwrap_or_default())),
            outcome => outcome,
        }
    }

    /// The locks, beginning at one that is drawn by chance.
    fn order(&self) -> impl Iterator<Item = &Lock> + Clone {
        let from = fastrand::usize(..self.0.locks.len().max(1));
        self.0.locks.iter().cycle().skip(from).take(self.0.locks.len())
    }

    async fn first_free(&self, order: impl Iterator<Item = &Lock>) -> Result<Option<Guard>> {
        for lock in order {
            if let Some(guard) = lock.try_acquire().await? {
                return Ok(Some(guard));
            }
        }
        Ok(None)
    }

    fn none_free(&self, waited: Duration) -> Error {
        let text = format!("none of {} locks was free after {}", self.0.locks.len(), crate::duration::short(waited));
        Error::new(ErrorKind::Busy, text).during("acquire").in_store(self.0.keeper.info().scheme)
    }
}

/// The first guard that any of the locks gives. When all fail: what is no lack of time, or else the last error.
async fn first_granted(locks: impl Iterator<Item = Lock>) -> Result<Guard> {
    let wait = |lock: Lock| Box::pin(async move { lock.acquire().await }) as Pin<Box<dyn Future<Output = _> + Send>>;
    let mut waiting: Vec<_> = locks.map(wait).collect();
    let mut failed: Option<Error> = None;
    poll_fn(|cx| {
        let mut at = 0;
        while at < waiting.len() {
            match waiting[at].as_mut().poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(Ok(guard)) => return Poll::Ready(Ok(guard)),
                Poll::Ready(Err(error)) => {
                    drop(waiting.swap_remove(at));
                    if failed.as_ref().is_none_or(|before| before.kind() == ErrorKind::Busy) {
                        failed = Some(error);
                    }
                }
            }
        }
        match failed.take() {
            Some(error) if waiting.is_empty() => Poll::Ready(Err(error)),
            before => {
                failed = before;
                Poll::Pending
            }
        }
    })
    .await
}
