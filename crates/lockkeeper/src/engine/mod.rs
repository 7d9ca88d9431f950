//! Everything that involves time or order, written once for all stores.
//!
//! - [`machine`](crate::machine): the life of a guard, the tasks of one name; pure, shared with the models.
//! - `state` the tables they live in, under one lock; `wait` when to ask again.
//! - `upkeep` the keeper's thread: renewals, keep-alives, late releases, events. `acquire` the callers' side, `many` for
//!   several locks in one call.
//!
//! There are two lanes. *Upkeep* runs on the keeper's own thread, so a starved or ended executor loses no lock. *Calls*
//! (acquire, release) run in the caller's task, because a hop to another thread costs more than the rest of the cycle.

mod acquire;
mod alarm;
pub(crate) mod cell;
mod home;
mod many;
mod state;
mod successor;
mod upkeep;
mod wait;

pub(crate) use acquire::Acquired;
pub(crate) use alarm::Alarm;
pub(crate) use state::Spec;

use crate::clock::{Clock, Stamp};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{LossReason, Release, Runtime, Store, StoreInfo};
use crate::token::HolderId;
use alarm::Limit;
use home::Home;
use state::{Ids, Later, Life, Sender, State};
use std::future::Future;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// What the keeper, its locks and its guards share with the keeper's thread.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) info: StoreInfo,
    pub(crate) clock: Clock,
    pub(crate) metrics: crate::metrics::Metrics,
    state: Mutex<State>,
    /// Rings when the thread should check its timers again.
    bell: Notify,
    /// Rings when a claim has left the tables; `close` waits for that.
    drained: Condvar,
    drained_async: Notify,
    /// The thread's runtime, for callers who have none. `None` where a test polls the thread's work by hand.
    runtime: Option<tokio::runtime::Handle>,
    home: Home,
}

/// A store's answer to an operator's question.
pub(crate) type Asking<'a, T> = std::pin::Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// How long an operator's question may take.
const ASK_LIMIT: Duration = Duration::from_secs(10);

/// How long `close` waits for the releases of guards that were still held at its limit.
const CLOSE_GRACE: Duration = Duration::from_millis(250);

/// What `close` could not finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leftover {
    /// Guards that were still held when the limit passed; they are lost now.
    pub held: usize,
    /// Releases that the store did not answer; their leases end by themselves.
    pub releasing: usize,
}

impl Engine {
    /// Starts the keeper's thread.
    pub(crate) fn start(store: Arc<dyn Store>, clock: Clock) -> Result<Arc<Self>> {
        upkeep::start(store, clock)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is used on. Steps change the tables as a whole, and after a panic the thread marks the keeper
        // as dead.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the tables. Then wakes the thread if a new timer is earlier than its sleep, and tells a waiting `close`
    /// that a claim has left. The latter is a system call, so it is made only while a `close` may wait.
    fn with_state<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let answer = act(&mut state);
        let (left, wake) = state.take_signs();
        let left = left && state.life != Life::Open;
        Later::act(state, &self.metrics);
        if left {
            self.settled();
        }
        if wake || left {
            self.bell.notify_one();
        }
        answer
    }

    /// The error of a process that was forked after the keeper was made: the thread and the connections are the parent's.
    pub(crate) fn check_fork(&self) -> Result<()> {
        if !self.is_forked() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Closed,
            "this process was forked after the keeper was made; the keeper is the parent's, so connect anew in the child",
        ))
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.home.is_left()
    }

    /// Draws holder ids until there are `count` of them.
    fn stock_ids(&self, count: usize) -> Result<()> {
        while !self.lock().ids.lasts(count) {
            let drawn = HolderId::many(count.max(Ids::DRAW))?;
            self.lock().ids.keep(drawn);
        }
        Ok(())
    }

    /// Whether the store can work on this thread; otherwise its calls run on the keeper's.
    fn works_here(&self) -> bool {
        match self.info.runtime {
            Runtime::Any => true,
            Runtime::Tokio => tokio::runtime::Handle::try_current().is_ok(),
            Runtime::Keeper => false,
        }
    }

    /// Runs a call on the keeper's thread.
    async fn on_thread<T: Send + 'static>(&self, call: impl Future<Output = T> + Send + 'static) -> Result<T> {
        let died = |_| Error::new(ErrorKind::Closed, "the keeper's thread has died; connect anew");
        match &self.runtime {
            Some(runtime) => runtime.spawn(call).await.map_err(died),
            None => Ok(call.await),
        }
    }

    /// Runs a call where the store can work.
    async fn on_lane<T: Send + 'static>(&self, call: impl Future<Output = T> + Send + 'static) -> Result<T> {
        if self.works_here() { Ok(call.await) } else { self.on_thread(call).await }
    }

    /// An operator's question, on the lane; no claim belongs to it.
    pub(crate) async fn ask_store<T: Send + 'static>(
        self: &Arc<Self>,
        ask: impl for<'a> FnOnce(&'a dyn Store) -> Asking<'a, T> + Send + 'static,
    ) -> Result<T> {
        let store = self.store.clone();
        let call = self.on_lane(async move { ask(&*store).await });
        match alarm::limit(self, ASK_LIMIT, call).await {
            Some(answer) => answer?,
            None => Err(Error::unavailable("the store did not answer in time")),
        }
    }

    /// Releases a guard in the caller's task.
    pub(crate) async fn release(self: &Arc<Self>, key: u64, ttl: Duration) -> Result<Option<Release>> {
        self.check_fork()?;
        let mut now = self.clock.now();
        let Some(claim) = self.with_state(|s| s.begin_release(key, Sender::Owner, now)) else { return Ok(None) };
        let mut sending = Sending { engine: self, key, answered: false };
        let mut limit = Limit::new(self, now.after(wait::release_limit(ttl)));
        let answer = if self.works_here() {
            let call = async { sole(self.store.release(std::slice::from_ref(&claim)).await) };
            limit.run(self.followed(key, now, call)).await
        } else {
            let (store, claim) = (self.store.clone(), claim.clone());
            let call = self.on_thread(async move { sole(store.release(std::slice::from_ref(&claim)).await) });
            Box::pin(limit.run(self.followed(key, now, call))).await.map(Result::flatten)
        };
        let answer = answer.unwrap_or_else(|| {
            Err(Error::unavailable("the store did not answer in time; the release will be repeated"))
        });
        sending.answered = true;
        if answer.is_err() {
            // Only the thread's repeat of the release needs the time.
            now = self.clock.now();
        }
        let alarm = limit.over();
        let (answer, _spent) = self.with_state(|s| (s.own_release_answered(key, answer, now), s.cancel_alarm(alarm)));
        answer.map(Some).map_err(|e| self.info.name_in(e.during("release")).for_lock(&claim.name))
    }

    /// Releases a guard from `Drop`: hands it to the thread.
    pub(crate) fn release_later(&self, key: u64) {
        if self.is_forked() {
            return;
        }
        self.with_state(|s| s.begin_release(key, Sender::Thread, self.clock.now()));
    }

    /// Ends a guard by force, and gives its lock back.
    #[cfg(feature = "testing")]
    pub(crate) fn lose(&self, holder: HolderId, reason: LossReason) {
        self.with_state(|s| s.force(holder, reason, self.clock.now()));
    }

    #[cfg(feature = "internals")]
    pub(crate) fn leftovers(&self) -> crate::testing::Leftovers {
        self.lock().leftovers()
    }

    /// A claim has left the tables: tells a `close` or a drop that waits for the tables to empty.
    fn settled(&self) {
        self.drained.notify_all();
        self.drained_async.notify_waiters();
    }

    /// The last handle was dropped: waits at most `drop_timeout` for releases under way. The thread goes on until they are
    /// settled.
    pub(crate) fn retire(&self, drop_timeout: Duration) {
        if self.is_forked() {
            return;
        }
        self.with_state(|s| s.close(Life::Closed));
        self.bell.notify_one();
        // The thread itself may drop the last reference; it cannot wait for itself.
        if crate::lane::is_upkeep() {
            return;
        }
        let state = self.lock();
        let busy = |s: &mut State| s.life != Life::Dead && !s.stopped && s.left().1 > 0;
        drop(self.drained.wait_timeout_while(state, drop_timeout, busy));
    }

    /// Refuses new claims, waits up to `limit` for guards and releases, then ends the remaining guards.
    pub(crate) async fn close(self: &Arc<Self>, limit: Duration) -> Result<Leftover> {
        self.check_fork()?;
        self.with_state(|s| s.close(Life::Closed));
        alarm::limit(self, limit, self.until(|s| s.left() == (0, 0) || s.life == Life::Dead)).await;
        let (held, _) = self.lock().left();
        self.with_state(|s| s.lose_all(LossReason::Closed, self.clock.now()));
        // These guards send a release too, like every end.
        alarm::limit(self, CLOSE_GRACE, self.until(|s| s.left() == (0, 0) || s.life == Life::Dead)).await;
        let (_, releasing) = self.lock().left();
        self.with_state(|s| s.stop = true);
        self.bell.notify_one();
        self.until(|s| s.stopped || s.life == Life::Dead).await;
        Ok(Leftover { held, releasing })
    }

    /// Resolves when the tables are as asked; checks again whenever a claim has left them.
    async fn until(&self, ready: impl Fn(&State) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.drained_async.notified());
            changed.as_mut().enable();
            if ready(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// Where a wait stands, for a status line.
    pub(crate) fn now(&self) -> Stamp {
        self.clock.now()
    }
}

/// The answer to a batch of one.
fn sole<T>(mut answers: Vec<Result<T>>) -> Result<T> {
    answers.pop().unwrap_or_else(|| Err(Error::new(ErrorKind::Unexpected, "the store left a call unanswered")))
}

/// A release in flight: if its task is dropped, the thread repeats it.
struct Sending<'a> {
    engine: &'a Engine,
    key: u64,
    answered: bool,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if !self.answered && !self.engine.is_forked() {
            self.engine.with_state(|s| s.abandon_release(self.key, self.engine.clock.now()));
        }
    }
}
