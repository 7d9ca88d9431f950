//! The caller's side of an acquisition: take a place in the local queue, ask the store when told to, wait otherwise.

use super::alarm::{Alarm, Limit};
use super::cell::Cell;
use super::state::{Next, Spec, Turn, given_up};
use super::successor::Successor;
use super::{Engine, sole};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::Metrics;
use crate::store::{Attempt, Claim, Held};
use crate::timing::call_limit;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// After this long, a wait without a limit logs who holds the lock.
const WARN_AFTER: Duration = Duration::from_secs(30);

/// Every call gets at least this long, even if the caller's wait is shorter.
pub(super) const SHORTEST_CALL: Duration = Duration::from_millis(50);

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

    /// `now` is the latest reading of the clock. Reading it costs as much as a step, so it is passed along.
    async fn acquire_inner(self: &Arc<Self>, spec: &Spec, now: &mut Stamp) -> Result<Acquired> {
        let began = *now;
        let (task, next) = self.with_state(|s| {
            let (task, turn) = s.enter(spec, began);
            (task, s.next(task, turn, spec, true, began))
        });
        let mut ticket = Ticket::new(self, spec, task, began);
        // Most locks are free and asked for once. Everything else is boxed, so that this future stays small.
        let (asked, next) = match next {
            Next::Ask(key, claim) => (1, self.ask(&ticket, key, claim, began, now).await),
            next => (0, next),
        };
        match next {
            Next::Taken(key, cell) => {
                ticket.done = true;
                Ok(Ok((key, cell)))
            }
            next => Box::pin(self.go_on(ticket, next, asked, began, now)).await,
        }
    }

    /// Does what the tables say, from `next` on, until the lock is taken or not. The store was `asked` so often before.
    pub(super) async fn go_on(
        self: &Arc<Self>,
        mut ticket: Ticket<'_>,
        mut next: Next,
        mut asked: u32,
        began: Stamp,
        now: &mut Stamp,
    ) -> Result<Acquired> {
        let (spec, task) = (ticket.spec, ticket.task);
        let mut limit = spec.wait.filter(|w| !w.is_zero()).map(|w| Alarm::new(self, began.after(w)));
        let mut warning = spec.wait.is_none().then(|| Alarm::new(self, began.after(WARN_AFTER)));
        loop {
            next = match next {
                // Each answer was over before it came: a store that is always too slow does not make a wait longer.
                Next::AskAnew(_) if asked >= MOST_LATE && spec.wait.is_some_and(|w| *now >= began.after(w)) => {
                    return Err(Error::unavailable("the store's answers come too late for so short a ttl"));
                }
                Next::AskAnew(key) => Next::Ask(key, self.begin_anew(key, spec, *now)?),
                Next::Ask(key, claim) => {
                    asked += 1;
                    self.ask(&ticket, key, claim, began, now).await
                }
                Next::Sent(key, at, alarm) => {
                    asked += 1;
                    let mut limit = Limit::set(self, at, alarm);
                    let answer = limit.run(ticket.sent()).await.transpose();
                    self.told(&ticket, key, limit, answer, began, now).await
                }
                Next::Taken(key, cell) => {
                    ticket.done = true;
                    return Ok(Ok((key, cell)));
                }
                Next::Busy(held) => {
                    ticket.done = true;
                    return Ok(Err(held));
                }
                Next::Failed(error) => return Err(error),
                Next::Wait => {
                    let waited = ticket.wait(&mut limit, &mut warning).await;
                    *now = self.clock.now();
                    match waited {
                        Waited::Turn(turn) => self.with_state(|s| s.next(task, Some(turn), spec, false, *now)),
                        Waited::Warn => {
                            warning = None;
                            let (held, _) = self.lock().standing(&spec.name, *now);
                            let held = held.map_or_else(|| "another holder".to_owned(), |h| h.to_string());
                            tracing::warn!(lock = %spec.name, %held, "still waiting for a lock after 30 s");
                            Next::Wait
                        }
                        Waited::Over => return self.out_of_time(spec, *now),
                    }
                }
            };
        }
    }

    /// The claim of `key` to send: a repeat of it, or one with a fresh holder id.
    fn begin_anew(&self, key: u64, spec: &Spec, now: Stamp) -> Result<Claim> {
        loop {
            let begun = self.with_state(|s| s.ids.fresh(now).map(|fresh| s.begin_try(key, spec, fresh, now)));
            match begun {
                Some(claim) => return claim.ok_or_else(given_up),
                None => self.stock_ids(1)?,
            }
        }
    }

    /// The wait has ended: the lock is busy, or the store did not answer.
    fn out_of_time(&self, spec: &Spec, now: Stamp) -> Result<Acquired> {
        match self.lock().standing(&spec.name, now) {
            (_, Some(error)) => Err(error),
            (Some(held), None) => Ok(Err(Some(held))),
            (None, None) => Err(silent()),
        }
    }

    /// Asks the store, and tells the tables what it answered. After an outage it asks once more, because only the reply
    /// may have been lost.
    async fn ask(self: &Arc<Self>, ticket: &Ticket<'_>, key: u64, claim: Claim, began: Stamp, now: &mut Stamp) -> Next {
        let mut limit = self.call_limit(ticket.spec, began, *now);
        let answer = self.send(&mut limit, claim).await;
        self.told(ticket, key, limit, answer, began, now).await
    }

    /// The answer to a call of the task.
    async fn told(
        self: &Arc<Self>,
        ticket: &Ticket<'_>,
        key: u64,
        limit: Limit<'_>,
        mut answer: Result<Option<Attempt>>,
        began: Stamp,
        now: &mut Stamp,
    ) -> Next {
        let Ticket { spec, task, .. } = *ticket;
        if matches!(&answer, Err(error) if error.kind() == ErrorKind::Unavailable) {
            answer = Box::pin(async {
                let now = self.clock.now();
                let again = self.begin_anew(key, spec, now)?;
                self.send(&mut self.call_limit(spec, began, now), again).await
            })
            .await;
        }
        let answer = answer.and_then(|answer| answer.ok_or_else(silent));
        *now = self.clock.now();
        let alarm = limit.over();
        let (next, _spent) = self.with_state(|s| {
            let turn = s.answered(key, task, &spec.name, answer, *now);
            (s.next(task, turn, spec, false, *now), s.cancel_alarm(alarm))
        });
        next
    }

    /// How long one call may take.
    fn call_limit(&self, spec: &Spec, began: Stamp, now: Stamp) -> Limit<'_> {
        Limit::new(self, Self::call_end(spec, began, now))
    }

    /// When a call that is sent now must have been answered.
    pub(super) fn call_end(spec: &Spec, began: Stamp, now: Stamp) -> Stamp {
        let mut limit = call_limit(spec.ttl);
        if let Some(wait) = spec.wait.filter(|w| !w.is_zero()) {
            // A silent store does not make a wait longer; but a short one still has time for a round trip.
            limit = limit.min(began.after(wait).since(now).max(SHORTEST_CALL));
        }
        now.after(limit)
    }

    /// One call; `None` when no answer came in time.
    async fn send(&self, limit: &mut Limit<'_>, claim: Claim) -> Result<Option<Attempt>> {
        if self.works_here() {
            let call = async { sole(self.store.try_acquire(std::slice::from_ref(&claim)).await) };
            return limit.run(call).await.transpose();
        }
        let store = self.store.clone();
        let call = self.on_thread(async move { sole(store.try_acquire(std::slice::from_ref(&claim)).await) });
        Box::pin(limit.run(call)).await.map(Result::flatten).transpose()
    }
}

pub(super) fn silent() -> Error {
    Error::unavailable("the store did not answer in time")
}

/// Counts an acquisition once, also when its future is dropped half-way.
pub(super) struct Outcome<'a> {
    pub(super) metrics: &'a Metrics,
    pub(super) counted: bool,
}

impl Outcome<'_> {
    pub(super) fn count(&mut self, acquired: &Result<Acquired>) {
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

enum Waited {
    Turn(Turn),
    Warn,
    Over,
}

/// A place in the local queue. A task that leaves early passes its place or its grant to the next task.
pub(super) struct Ticket<'a> {
    pub(super) engine: &'a Arc<Engine>,
    pub(super) spec: &'a Spec,
    pub(super) task: u64,
    began: Stamp,
    done: bool,
    /// Once it waits, and its call may be made behind another task's release.
    successor: Option<Arc<Successor>>,
}

impl<'a> Ticket<'a> {
    pub(super) fn new(engine: &'a Arc<Engine>, spec: &'a Spec, task: u64, began: Stamp) -> Self {
        Self { engine, spec, task, began, done: false, successor: None }
    }

    /// The call that another task has sent for this one.
    async fn sent(&self) -> Result<Attempt> {
        match self.successor.as_ref().and_then(|successor| successor.take()) {
            Some(call) => call.await,
            None => Err(given_up()),
        }
    }

    async fn wait(&mut self, limit: &mut Option<Alarm>, warning: &mut Option<Alarm>) -> Waited {
        if self.successor.is_none() {
            self.successor = self.engine.successor(self.spec, self.began);
        }
        poll_fn(|cx| {
            let polled = self.engine.with_state(|s| s.poll_turn(self.task, cx.waker(), self.successor.as_ref()));
            if let Some(turn) = polled {
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
