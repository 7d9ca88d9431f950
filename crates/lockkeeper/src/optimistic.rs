//! Optimistic concurrency: no lock, but a version that a write demands, and another try when another client was faster.
//!
//! It is the cheapest tool where conflicts are rare and the work can be repeated. `UPDATE … WHERE id = 9 AND version =
//! 4` changes no row when the version is no longer 4. [`retry`] repeats the whole read, compute and write,
//! with random pauses that grow, up to a limit.

use crate::error::{Error, ErrorKind, Result};
use crate::metrics;
use crate::timing::back_off;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle};

/// How one try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn<T> {
    /// Written; the result.
    Done(T),
    /// Another client was faster, and nothing was written: read again.
    Conflict,
}

/// How often and how long to try.
#[derive(Clone, Debug)]
pub struct Retry {
    attempts: u32,
    within: Duration,
    first_pause: Duration,
    longest_pause: Duration,
}

impl Default for Retry {
    /// 20 attempts within 10 s, with pauses of about 2 ms, 4 ms, … 500 ms.
    fn default() -> Self {
        Self {
            attempts: 20,
            within: Duration::from_secs(10),
            first_pause: Duration::from_millis(2),
            longest_pause: Duration::from_millis(500),
        }
    }
}

impl Retry {
    /// The default policy.
    pub fn new() -> Self {
        Self::default()
    }

    /// The most attempts, the first included. Default: 20.
    #[must_use]
    pub fn attempts(mut self, most: u32) -> Self {
        self.attempts = most;
        self
    }

    /// No attempt begins later than this after the start. Default: 10 s.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.within = limit;
        self
    }

    /// The pause after the first conflict; each later one is up to twice as long. A random part of up to half of each
    /// is left out, so that two clients that met do not meet again. Default: 2 ms.
    #[must_use]
    pub fn first_pause(mut self, pause: Duration) -> Self {
        self.first_pause = pause;
        self
    }

    /// Pauses grow up to this. Default: 500 ms.
    #[must_use]
    pub fn longest_pause(mut self, pause: Duration) -> Self {
        self.longest_pause = pause;
        self
    }
}

/// The attempts of one operation, shared by the async and the blocking function.
struct Course<'a> {
    retry: &'a Retry,
    began: Instant,
    attempt: u32,
}

impl<'a> Course<'a> {
    fn begin(retry: &'a Retry) -> Result<Self> {
        if retry.attempts == 0 {
            return Err(Error::invalid_config("0 attempts are too few; a retry policy needs at least 1"));
        }
        Ok(Self { retry, began: Instant::now(), attempt: 1 })
    }

    /// After a conflict: how long to pause before the next attempt, or the error that ends the attempts.
    fn again(&mut self) -> Result<Duration> {
        let pause = back_off(self.retry.first_pause, self.attempt - 1, self.retry.longest_pause);
        let spent = self.began.elapsed();
        if self.attempt >= self.retry.attempts || spent.saturating_add(pause) > self.retry.within {
            metrics::conflict("given-up");
            let (attempts, spent) = (self.attempt, crate::duration::short(spent));
            return Err(Error::new(
                ErrorKind::Busy,
                format!("other clients were faster in each of {attempts} attempts within {spent}"),
            ));
        }
        metrics::conflict("repeated");
        self.attempt += 1;
        Ok(pause)
    }
}

/// Repeats `act`, which gets the number of the attempt from 1 on, while it answers [`Turn::Conflict`].
///
/// Works on every executor. Each attempt must begin with a fresh read. An error that means a conflict (such as SQLSTATE
/// 40001, see [`fence::postgres::is_conflict`](crate::fence::postgres::is_conflict)) is for `act` to turn into one.
///
/// ```
/// use lockkeeper::optimistic::{self, Retry, Turn};
/// use std::sync::atomic::{AtomicU64, Ordering};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let version = AtomicU64::new(4);
/// let retry = Retry::new().attempts(5);
/// let new = optimistic::retry(&retry, |_attempt| async {
///     let read = version.load(Ordering::SeqCst);
///     match version.compare_exchange(read, read + 1, Ordering::SeqCst, Ordering::SeqCst) {
///         Ok(_) => Ok::<_, lockkeeper::Error>(Turn::Done(read + 1)),
///         Err(_) => Ok(Turn::Conflict),
///     }
/// });
/// assert_eq!(new.await?, 5);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// What `act` fails with, at once. `Busy` when the attempts or the time are used up; `InvalidConfig` for a policy without
/// an attempt.
///
/// # Cancellation
/// Dropping the future drops the attempt under way. Only the database knows whether a cancelled write took effect.
pub async fn retry<T, E, F, W>(retry: &Retry, mut act: F) -> Result<T, E>
where
    F: FnMut(u32) -> W,
    W: Future<Output = Result<Turn<T>, E>>,
    E: From<Error>,
{
    let mut course = Course::begin(retry)?;
    loop {
        match act(course.attempt).await? {
            Turn::Done(value) => return Ok(value),
            Turn::Conflict => pause(course.again()?).await,
        }
    }
}

/// [`retry`] for code without futures; sleeps on this thread.
pub(crate) fn retry_blocking<T, E, F>(retry: &Retry, mut act: F) -> Result<T, E>
where
    F: FnMut(u32) -> Result<Turn<T>, E>,
    E: From<Error>,
{
    let mut course = Course::begin(retry)?;
    loop {
        match act(course.attempt)? {
            Turn::Done(value) => return Ok(value),
            Turn::Conflict => std::thread::sleep(course.again()?),
        }
    }
}

/// Sleeps on any executor, also on one without timers.
async fn pause(length: Duration) {
    let sleep = timer().map(|timer| {
        let _inside = timer.enter();
        tokio::time::sleep(length)
    });
    match sleep {
        Some(sleep) => sleep.await,
        // No thread could be started: blocking here for a short time is better than no pause.
        None => std::thread::sleep(length.min(Duration::from_millis(5))),
    }
}

/// A thread of this library's own that keeps time, started at the first conflict; a forked child starts its own.
fn timer() -> Option<Handle> {
    static TIMER: Mutex<Option<(u32, Handle)>> = Mutex::new(None);
    let mut timer = TIMER.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some((of, handle)) = &*timer
        && *of == pid
    {
        return Some(handle.clone());
    }
    let runtime = Builder::new_current_thread().enable_time().build().ok()?;
    let handle = runtime.handle().clone();
    let thread = std::thread::Builder::new().name("lockkeeper-timer".into());
    thread.spawn(move || runtime.block_on(std::future::pending::<()>())).ok()?;
    *timer = Some((pid, handle.clone()));
    Some(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_differ_and_end() {
        let retry =
            Retry::new().attempts(8).first_pause(Duration::from_millis(10)).longest_pause(Duration::from_millis(80));
        let mut course = Course::begin(&retry).unwrap();
        for most in [10, 20, 40, 80, 80, 80, 80] {
            let pause = course.again().unwrap();
            let most = Duration::from_millis(most);
            assert!(pause >= most / 2 && pause <= most, "{pause:?} of {most:?}");
        }
        let end = course.again().unwrap_err();
        assert_eq!(end.kind(), ErrorKind::Busy);
        assert!(end.to_string().contains("each of 8 attempts"), "{end}");
        let hurried = Retry::new().within(Duration::from_millis(1)).first_pause(Duration::from_secs(1));
        assert!(Course::begin(&hurried).unwrap().again().is_err(), "a pause does not outlast the limit");
        assert_eq!(Course::begin(&Retry::new().attempts(0)).err().map(|e| e.kind()), Some(ErrorKind::InvalidConfig));
    }
}
