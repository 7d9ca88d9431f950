//! The caller's side of an acquisition: take a place in the local queue, ask the store when told to, wait otherwise.

use super::Engine;
use super::alarm::{self, Alarm};
use super::cell::Cell;
use super::state::{Spec, Turn};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::Metrics;
use crate::store::{Attempt, Claim, Held};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// After this long, a wait without a limit logs who holds the lock.
const WARN_AFTER: Duration = Duration::from_secs(30);

/// Every call gets at least this long, even if the caller's wait is shorter.
const SHORTEST_CALL: Duration = Duration::from_millis(50);

/// How many grants may arrive after their lease has ended before the acquire fails: a suspend costs one, a slow store
/// all.
const MOST_LATE: u32 = 3;

/// The claim's number and the guard's cell, or who still holds the lock.
pub(crate) type Acquired = Result<(u64, Arc<Cell>), Option<Held>>;

impl Engine {
    /// Takes the lock as `spec` says.
    pub(crate) async fn acquire(self: &Arc<Self>, spec: &Spec) -> Result<Acquired> {
        self.check_fork()?;
        let began = self.clock.now();
        let mut outcome = Outcome { metrics: &self.metrics, counted: false };
        let mut now = began;
        let acquired = self.acquire_inner(spec, &mut now).await;
        outcome.count(&acquired);
        self.metrics.waited(now.since(began));
        acquired.map_err(|e| self.info.name_in(e.during("acquire")).for_lock(&spec.name))
    }

    /// `now` is the latest reading of the clock. A reading costs as much as a step, so it is passed along.
    async fn acquire_inner(self: &Arc<Self>, spec: &Spec, now: &mut Stamp) -> Result<Acquired> {
        let began = *now;
        let (task, mut turn) = self.with_state(|s| s.enter(spec, began));
        let mut ticket = Ticket { engine: self, spec, task, done: false };
        let mut limit = spec.wait.filter(|w| !w.is_zero()).map(|w| Alarm::new(self, began.after(w)));
        let mut warning = spec.wait.is_none().then(|| Alarm::new(self, began.after(WARN_AFTER)));
        let mut asked = 0;
        loop {
            turn = match turn {
                // Each lease had ended before its answer arrived: a store that is always too slow does not make the
                // wait longer.
                Some(Turn::Try(_)) if asked >= MOST_LATE && spec.wait.is_some_and(|w| *now >= began.after(w)) => {
                    return Err(Error::unavailable("the store's answers take longer than the ttl; use a longer ttl"));
                }
                Some(Turn::Try(key)) => {
                    asked += 1;
                    let answer = self.ask(key, spec, began, *now).await;
                    *now = self.clock.now();
                    self.with_state(|s| s.answered(key, task, &spec.name, answer, *now))
                }
                Some(Turn::Granted(key)) => match self.with_state(|s| s.take(key, task, spec, *now)) {
                    Some(cell) => {
                        ticket.done = true;
                        return Ok(Ok((key, cell)));
                    }
                    None => None,
                },
                Some(Turn::Busy(held)) => {
                    ticket.done = true;
                    self.with_state(|s| s.leave(task, &spec.name, *now));
                    return Ok(Err(held));
                }
                Some(Turn::Failed(error)) => return Err(error),
                None => {
                    let waited = ticket.wait(&mut limit, &mut warning).await;
                    *now = self.clock.now();
                    match waited {
                        Waited::Turn(turn) => Some(turn),
                        Waited::Warn => {
                            warning = None;
                            let (held, _) = self.lock().standing(&spec.name, *now);
                            let held = held.map_or_else(|| "another holder".to_owned(), |h| h.to_string());
                            tracing::warn!(lock = %spec.name, %held, "still waiting for a lock after 30 s");
                            None
                        }
                        Waited::Over => return self.out_of_time(spec, *now),
                    }
                }
            };
        }
    }

    /// The wait has ended: the lock is busy, or the store did not answer.
    fn out_of_time(&self, spec: &Spec, now: Stamp) -> Result<Acquired> {
        match self.lock().standing(&spec.name, now) {
            (_, Some(error)) => Err(error),
            (Some(held), None) => Ok(Err(Some(held))),
            (None, None) => Err(Error::unavailable("the store did not answer in time")),
        }
    }

    /// Asks the store once, and once more after an outage, because only the reply may have been lost.
    async fn ask(self: &Arc<Self>, key: u64, spec: &Spec, began: Stamp, mut now: Stamp) -> Result<Attempt> {
        let mut again = true;
        loop {
            let fresh = self.new_holder()?;
            let claim = self.with_state(|s| s.begin_try(key, spec, self.info.queue, fresh, now));
            let mut limit = Engine::call_limit(spec.ttl);
            if let Some(wait) = spec.wait.filter(|w| !w.is_zero()) {
                // A store that does not answer does not make the wait longer, but even a short wait allows a round
                // trip.
                limit = limit.min(began.after(wait).since(now).max(SHORTEST_CALL));
            }
            let answer = self.send(claim, limit).await;
            match answer {
                Err(Asked::Failed(e)) if e.kind() == ErrorKind::Unavailable && again => {
                    again = false;
                    now = self.clock.now();
                }
                Err(Asked::Failed(e)) => return Err(e),
                Err(Asked::TimedOut) => return Err(Error::unavailable("the store did not answer in time")),
                Ok(attempt) => return Ok(attempt),
            }
        }
    }

    async fn send(self: &Arc<Self>, claim: Claim, limit: Duration) -> std::result::Result<Attempt, Asked> {
        let store = self.store.clone();
        let call = self.on_lane(async move { store.try_acquire(std::slice::from_ref(&claim)).await.pop() });
        match alarm::limit(self, limit, call).await {
            None => Err(Asked::TimedOut),
            Some(Err(error)) => Err(Asked::Failed(error)),
            Some(Ok(Some(answer))) => answer.map_err(Asked::Failed),
            Some(Ok(None)) => {
                Err(Asked::Failed(Error::new(ErrorKind::Unexpected, "the store left an acquire unanswered")))
            }
        }
    }
}

/// Counts an acquisition once, also when its future is dropped half-way.
struct Outcome<'a> {
    metrics: &'a Metrics,
    counted: bool,
}

impl Outcome<'_> {
    fn count(&mut self, acquired: &Result<Acquired>) {
        self.counted = true;
        match acquired {
            Ok(Ok(_)) => self.metrics.granted.increment(1),
            Ok(Err(_)) => self.metrics.busy.increment(1),
            Err(_) => self.metrics.failed.increment(1),
        }
    }
}

impl Drop for Outcome<'_> {
    fn drop(&mut self) {
        if !self.counted {
            self.metrics.cancelled.increment(1);
        }
    }
}

enum Asked {
    Failed(Error),
    TimedOut,
}

enum Waited {
    Turn(Turn),
    Warn,
    Over,
}

/// A place in the local queue. A task that leaves early passes its place or its grant to the next task.
struct Ticket<'a> {
    engine: &'a Arc<Engine>,
    spec: &'a Spec,
    task: u64,
    done: bool,
}

impl Ticket<'_> {
    async fn wait(&self, limit: &mut Option<Alarm>, warning: &mut Option<Alarm>) -> Waited {
        poll_fn(|cx| {
            if let Some(turn) = self.engine.with_state(|s| s.poll_turn(self.task, cx.waker())) {
                return Poll::Ready(Waited::Turn(turn));
            }
            if let Some(limit) = limit.as_mut()
                && Pin::new(limit).poll(cx).is_ready()
            {
                return Poll::Ready(Waited::Over);
            }
            if let Some(warning) = warning.as_mut()
                && Pin::new(warning).poll(cx).is_ready()
            {
                return Poll::Ready(Waited::Warn);
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.done && !self.engine.is_forked() {
            self.engine.with_state(|s| {
                s.leave(self.task, &self.spec.name, self.engine.clock.now());
            });
        }
    }
}
