//! A clock that stands still until a test moves it.
//!
//! Moving it is synchronous. When `advance` returns, every keeper on this clock has acted on the new time and sleeps
//! again. So a test needs no sleeps of its own.

use super::Stamp;
use crate::clock;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// A clock for tests; clones are the same clock.
#[derive(Clone, Debug)]
pub struct Clock(Arc<ManualClock>);

/// The clock itself, shared with keepers and memory stores.
#[derive(Debug)]
pub(crate) struct ManualClock {
    inner: Mutex<Inner>,
    moved: Notify,
    settled: Condvar,
    /// Where keepers without threads put their work.
    #[cfg(feature = "internals")]
    hands: Option<crate::testing::Hands>,
}

#[derive(Debug)]
struct Inner {
    now: Stamp,
    wall_offset: u64,
    /// Counts the moves of the clock.
    moves: u64,
    /// The times that keepers' threads sleep until, each with the number of threads.
    sleeps: BTreeMap<Stamp, u32>,
    seats: HashMap<u64, Seat>,
    next_seat: u64,
}

/// One keeper's thread.
#[derive(Debug, Default)]
struct Seat {
    /// The last move its main loop has looked at.
    seen: u64,
    /// The last move after which it had nothing left to do.
    settled: u64,
}

thread_local! {
    static SEAT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// How long a move waits for a thread that a test holds up on purpose.
const PATIENCE: Duration = Duration::from_secs(5);

impl Clock {
    /// A clock that stands at an arbitrary time.
    #[expect(clippy::new_without_default, reason = "a clock is made on purpose")]
    pub fn new() -> Self {
        #[cfg(feature = "internals")]
        return Self::with_hands(None);
        #[cfg(not(feature = "internals"))]
        Self(Arc::new(ManualClock { inner: Inner::new(), moved: Notify::new(), settled: Condvar::new() }))
    }

    #[cfg(feature = "internals")]
    pub(crate) fn with_hands(hands: Option<crate::testing::Hands>) -> Self {
        Self(Arc::new(ManualClock { inner: Inner::new(), moved: Notify::new(), settled: Condvar::new(), hands }))
    }

    #[cfg(feature = "internals")]
    pub(crate) fn hands(&self) -> Option<&crate::testing::Hands> {
        self.0.hands()
    }

    /// Moves it without running anything, and wakes what is due; for keepers without threads.
    #[cfg(feature = "internals")]
    pub(crate) fn jump(&self, by: Duration) {
        let mut inner = self.0.lock();
        inner.now = inner.now.after(by);
        let due = inner.sleeps.first_key_value().is_some_and(|(at, _)| *at <= inner.now);
        drop(inner);
        if due {
            self.0.moved.notify_waiters();
        }
    }

    /// When the first keeper's thread that sleeps wakes.
    #[cfg(feature = "internals")]
    pub(crate) fn first_sleep(&self) -> Option<Stamp> {
        self.0.lock().sleeps.keys().next().copied().filter(|at| at.as_micros() < u64::MAX)
    }

    /// Lets `by` pass as real time does: every timer, renewals included, fires at its own time.
    pub fn advance(&self, by: Duration) {
        self.0.settle();
        let target = self.0.now().after(by);
        loop {
            let next = self.0.lock().sleeps.keys().next().copied();
            let step = next.filter(|at| *at < target).unwrap_or(target).max(self.0.now());
            self.0.move_to(step);
            if step == target && self.0.lock().sleeps.keys().next().is_none_or(|at| *at > target) {
                return;
            }
        }
    }

    /// Lets `by` pass in one step without running anything, like a suspended machine or a stopped process.
    pub fn suspend(&self, by: Duration) {
        self.0.settle();
        self.0.move_to(self.0.now().after(by));
    }

    pub(crate) fn as_clock(&self) -> clock::Clock {
        clock::Clock::Manual(self.0.clone())
    }
}

impl Inner {
    fn new() -> Mutex<Self> {
        let now = Stamp::from_micros(1_000_000_000);
        Mutex::new(Self {
            now,
            wall_offset: clock::wall_micros().wrapping_sub(now.as_micros()),
            moves: 0,
            sleeps: BTreeMap::new(),
            seats: HashMap::new(),
            next_seat: 0,
        })
    }
}

impl ManualClock {
    #[cfg(feature = "internals")]
    pub(crate) fn hands(&self) -> Option<&crate::testing::Hands> {
        self.hands.as_ref()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Stamp {
        self.lock().now
    }

    pub(crate) fn wall_micros(&self) -> u64 {
        let inner = self.lock();
        inner.wall_offset.wrapping_add(inner.now.as_micros())
    }

    /// Waits until the clock stands at `at` or later; called by a keeper's main loop.
    pub(crate) async fn reached(&self, at: Stamp) {
        let _sleep = Sleep::new(self, at);
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            moved.as_mut().enable();
            {
                let mut inner = self.lock();
                let (now, moves) = (inner.now, inner.moves);
                if let Some(seat) = SEAT.get().and_then(|id| inner.seats.get_mut(&id)) {
                    seat.seen = moves;
                }
                if now >= at {
                    return;
                }
            }
            moved.await;
        }
    }

    /// Registers a keeper's thread: from now on, moves of the clock wait until it has nothing left to do.
    pub(crate) fn join(self: &Arc<Self>, builder: &mut tokio::runtime::Builder) -> Seated {
        let mut inner = self.lock();
        let id = inner.next_seat;
        inner.next_seat += 1;
        // Not settled before its first round.
        inner.moves += 1;
        inner.seats.insert(id, Seat::default());
        let clock = self.clone();
        builder.on_thread_park(move || {
            let mut inner = clock.lock();
            if let Some(seat) = inner.seats.get_mut(&id) {
                seat.settled = seat.seen;
                clock.settled.notify_all();
            }
        });
        Seated { clock: self.clone(), id }
    }

    fn move_to(&self, to: Stamp) {
        let mut inner = self.lock();
        inner.now = inner.now.max(to);
        inner.moves += 1;
        drop(inner);
        self.moved.notify_waiters();
        self.settle();
    }

    /// Waits until every keeper's thread has seen the latest move and gone back to sleep.
    fn settle(&self) {
        let mut inner = self.lock();
        // A round that is under way may have read the clock before: ask for one more look.
        inner.moves += 1;
        drop(inner);
        self.moved.notify_waiters();
        let inner = self.lock();
        let busy = |inner: &mut Inner| {
            let moves = inner.moves;
            inner.seats.values().any(|seat| seat.settled < moves)
        };
        drop(self.settled.wait_timeout_while(inner, PATIENCE, busy));
    }
}

/// A keeper's thread on this clock.
#[derive(Debug)]
pub(crate) struct Seated {
    clock: Arc<ManualClock>,
    id: u64,
}

impl Seated {
    /// Called on the thread itself.
    pub(crate) fn enter(&self) {
        SEAT.set(Some(self.id));
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        self.clock.lock().seats.remove(&self.id);
        self.clock.settled.notify_all();
    }
}

/// Keeps `sleeps` right while a thread waits.
struct Sleep<'a> {
    clock: &'a ManualClock,
    at: Stamp,
}

impl<'a> Sleep<'a> {
    fn new(clock: &'a ManualClock, at: Stamp) -> Self {
        *clock.lock().sleeps.entry(at).or_default() += 1;
        Self { clock, at }
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        let mut inner = self.clock.lock();
        if let Some(count) = inner.sleeps.get_mut(&self.at) {
            *count -= 1;
            if *count == 0 {
                inner.sleeps.remove(&self.at);
            }
        }
    }
}
