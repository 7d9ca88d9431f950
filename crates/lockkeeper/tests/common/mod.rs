//! What the engine tests share: keepers over faults on a test clock, and futures polled by hand.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "for tests, each of which uses its own part")]

pub mod misbehaving;
pub mod warnings;

use lockkeeper::store::Record;
use lockkeeper::stores::memory::MemoryStore;
use lockkeeper::testing::{self, Clock, Faults, Leftovers};
use lockkeeper::{Keeper, KeeperBuilder, Store};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The longest any step of a test may take in real time; reached only when something hangs.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The default TTL of the keepers here.
pub const TTL: Duration = Duration::from_secs(30);

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// One clock and one memory store; every keeper has switches of its own.
pub struct Bench {
    pub clock: Clock,
    pub store: MemoryStore,
}

impl Bench {
    pub fn new() -> Self {
        let clock = Clock::new();
        Self { store: testing::memory(&clock), clock }
    }

    pub fn builder(&self) -> KeeperBuilder {
        Keeper::builder().clock(&self.clock)
    }

    /// The store behind switches of its own.
    pub fn faulty(&self) -> (Faults, Arc<dyn Store>) {
        let (faults, store) = Faults::wrap(Arc::new(self.store.share()));
        (faults, store)
    }

    pub fn keeper(&self) -> (Faults, Keeper) {
        let (faults, store) = self.faulty();
        (faults, self.builder().open(store).unwrap())
    }

    /// A keeper on a store that says of itself whether calls reach it in order, and whether waiters queue in it.
    pub fn keeper_that_says(&self, ordered: bool, queue: bool) -> (Faults, Keeper) {
        let mut odd = misbehaving::Misbehaving::new(self.store.share());
        (odd.ordered, odd.queue) = (ordered, queue);
        let (faults, store) = Faults::wrap(Arc::new(odd));
        (faults, Keeper::builder().clock(&self.clock).open(store).unwrap())
    }

    /// Who holds and waits, by the store itself.
    pub fn record(&self, name: &str) -> Option<Record> {
        let name = lockkeeper::LockName::new(name).unwrap();
        now(lockkeeper::Store::inspect(&self.store, &name)).unwrap()
    }

    pub fn waiting(&self, name: &str) -> u32 {
        self.record(name).map_or(0, |r| r.waiting)
    }

    /// Lets every keeper's thread finish what it can do without time passing.
    pub fn settle(&self) {
        self.clock.advance(Duration::ZERO);
    }
}

/// A keeper and its switches by the real clock.
pub fn real(store: &MemoryStore, ttl: Duration) -> (Faults, Keeper) {
    let (faults, store) = Faults::wrap(Arc::new(store.share()));
    (faults, Keeper::builder().ttl(ttl).open(store).unwrap())
}

/// Counts its wakes and unparks whoever polls.
struct Bell {
    rung: AtomicUsize,
    thread: Thread,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// A future that the test polls by hand.
pub struct Probe<'a, T> {
    future: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    bell: Arc<Bell>,
}

impl<'a, T> Probe<'a, T> {
    pub fn new(future: impl Future<Output = T> + Send + 'a) -> Self {
        let bell = Arc::new(Bell { rung: AtomicUsize::new(0), thread: thread::current() });
        Self { future: Box::pin(future), bell }
    }

    /// Polls once.
    pub fn poll(&mut self) -> Poll<T> {
        let waker = Waker::from(self.bell.clone());
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// Polls once; the future must not be ready.
    #[track_caller]
    pub fn pend(&mut self) {
        assert!(self.poll().is_pending(), "ready too early");
    }

    /// Polls once; the future must be ready.
    #[track_caller]
    pub fn ready(&mut self) -> T {
        match self.poll() {
            Poll::Ready(done) => done,
            Poll::Pending => panic!("not ready"),
        }
    }

    /// Whether somebody has woken it since the last look.
    pub fn woken(&self) -> bool {
        self.bell.rung.swap(0, Ordering::SeqCst) > 0
    }

    /// Polls as an executor would, whenever woken; panics when it hangs.
    #[track_caller]
    pub fn finish(mut self) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Poll::Ready(done) = self.poll() {
                return done;
            }
            while !self.woken() {
                assert!(Instant::now() < end, "hangs");
                thread::park_timeout(ms(100));
            }
        }
    }
}

/// Drives a future to its end without any runtime.
#[track_caller]
pub fn now<'a, T: 'a>(future: impl Future<Output = T> + Send + 'a) -> T {
    Probe::new(future).finish()
}

/// Looks until it is so; panics when it never is.
#[track_caller]
pub fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !ready() {
        assert!(Instant::now() < end, "never: {what}");
        thread::sleep(ms(1));
    }
}

/// Waits until a keeper remembers nothing.
#[track_caller]
pub fn empty(keeper: &Keeper) {
    let end = Instant::now() + PATIENCE;
    while testing::leftovers(keeper) != Leftovers::default() {
        assert!(Instant::now() < end, "left over: {:?}", testing::leftovers(keeper));
        thread::sleep(ms(1));
    }
}
