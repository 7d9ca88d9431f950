//! `once` when the store's answers are lost, requests come late, and callers give up in the middle.

use super::{stored, value};
use async_trait::async_trait;
use lockkeeper::register::{Entry, Written};
use lockkeeper::store::{Attempt, Break, Claim, Cursor, Page, Record, Release, Renewal, Sink};
use lockkeeper::stores::memory::MemoryStore;
use lockkeeper::{Error, ErrorKind, Keeper, LockName, Pass, Register, Result, Store, StoreInfo, Token};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use tokio::task::yield_now;

/// What happens to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It arrives, and its answer too.
    Clear,
    /// It arrives, and its answer is lost.
    Unanswered,
    /// It arrives when the test says so.
    Late,
}

/// A request on its way.
type Letter = (LockName, Pass, Vec<u8>, Option<Duration>);

/// The memory store behind a network that yields at every step and loses answers of writes.
#[derive(Debug)]
struct Network {
    store: MemoryStore,
    /// For the next writes, the last one first; then all is clear.
    ways: Mutex<Vec<Way>>,
    late: Mutex<Vec<Letter>>,
    registers: bool,
    calls: AtomicU32,
}

impl Network {
    fn new(store: &MemoryStore, ways: &[Way]) -> (Arc<Self>, Keeper) {
        let ways = ways.iter().rev().copied().collect();
        let network = Self { ways: Mutex::new(ways), ..Self::clear(store) };
        let network = Arc::new(network);
        let keeper = Keeper::open(network.clone()).unwrap();
        (network, keeper)
    }

    fn clear(store: &MemoryStore) -> Self {
        let (ways, late, calls) = (Mutex::default(), Mutex::default(), AtomicU32::new(0));
        Self { store: store.share(), ways, late, registers: true, calls }
    }

    /// A step of a call.
    async fn step(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        yield_now().await;
    }

    /// Delivers what was late.
    async fn deliver(&self) -> Written {
        let (key, pass, value, ttl) = self.late.lock().unwrap().pop().expect("a late request");
        self.store.write(&key, &pass, &value, ttl).await.unwrap()
    }
}

#[async_trait]
impl Register for Network {
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        self.step().await;
        let entry = self.store.enter(key, pass).await;
        yield_now().await;
        entry
    }

    async fn write(&self, key: &LockName, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<Written> {
        self.step().await;
        let way = self.ways.lock().unwrap().pop().unwrap_or(Way::Clear);
        if way == Way::Late {
            self.late.lock().unwrap().push((key.clone(), pass.clone(), value.to_vec(), ttl));
            return Err(Error::unavailable("the answer was lost"));
        }
        let written = self.store.write(key, pass, value, ttl).await;
        yield_now().await;
        if way == Way::Unanswered { Err(Error::unavailable("the answer was lost")) } else { written }
    }

    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        self.step().await;
        self.store.read(key).await
    }
}

#[async_trait]
impl Store for Network {
    fn info(&self) -> StoreInfo {
        self.store.info()
    }
    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        self.step().await;
        let attempts = self.store.try_acquire(claims).await;
        yield_now().await;
        attempts
    }
    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.store.renew(claims).await
    }
    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        self.step().await;
        self.store.release(claims).await
    }
    async fn tend(&self, events: Sink) {
        self.store.tend(events).await;
    }
    fn registers(&self) -> Option<&dyn Register> {
        self.registers.then_some(self)
    }
    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        self.store.inspect(name).await
    }
    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.store.list(prefix, cursor).await
    }
    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.store.break_lock(name, token).await
    }

    async fn checks(&self, ttl: std::time::Duration) -> Vec<lockkeeper::store::Check> {
        self.store.checks(ttl).await
    }
}

#[tokio::test]
async fn a_result_whose_answer_is_lost_is_written_again() {
    for ways in [[Way::Clear, Way::Unanswered, Way::Unanswered], [Way::Clear, Way::Late, Way::Late]] {
        let (network, keeper) = Network::new(&MemoryStore::new(), &ways);
        let once = keeper.once("charge/42");
        assert_eq!(value(&once, 1).await.unwrap(), 1);
        if ways.contains(&Way::Late) {
            assert_eq!(network.deliver().await, Written::Written, "the same result once more");
        }
        assert_eq!(stored(&once).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn work_does_not_begin_unless_the_store_has_said_so() {
    for way in [Way::Unanswered, Way::Late] {
        let (network, keeper) = Network::new(&MemoryStore::new(), &[way]);
        let once = keeper.once("charge/42");
        assert_eq!(stored(&once).await.unwrap_err().kind(), ErrorKind::Unavailable);
        let next = once.run(async |running| Ok::<_, Error>(u32::from(running.taken_over())));
        assert_eq!(next.await.unwrap(), u32::from(way == Way::Unanswered));
        if way == Way::Late {
            assert!(matches!(network.deliver().await, Written::Stale { .. }), "it must not undo the result");
        }
        stored(&once).await.unwrap();
    }
}

/// Drops the future after so many polls.
async fn polled<T>(times: u32, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (pin!(future), times);
    poll_fn(|cx| {
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[tokio::test]
async fn a_caller_may_give_up_at_any_moment() {
    let store = MemoryStore::new();
    let (_, keeper) = Network::new(&store, &[]);
    let (_, other) = Network::new(&store, &[]);
    let mut dropped = 0;
    for times in 1.. {
        let key = format!("charge/{times}");
        let first = keeper.once(&key).fingerprint("a");
        let first = polled(
            times,
            first.run(async |_| {
                yield_now().await;
                Ok::<_, Error>(1)
            }),
        );
        let first = first.await.map(Result::unwrap);
        // The lock is free at once: the keeper's own TTL is 30 s, and this caller waits for less.
        let next = other.once(&key).fingerprint("a").wait(Duration::from_secs(10));
        let second = value(&next, 2).await.unwrap();
        assert_eq!(stored(&next).await.unwrap(), second);
        assert!(first.is_none_or(|first| first == second), "two results after {times} polls");
        match first {
            Some(_) => break,
            None => dropped += 1,
        }
    }
    assert!(dropped >= 8, "only {dropped} moments: the network does not yield");
}

#[tokio::test]
async fn a_store_without_registers_is_refused_in_one_sentence() {
    let network = Network { registers: false, ..Network::clear(&MemoryStore::new()) };
    let keeper = Keeper::open(Arc::new(network)).unwrap();
    let refused = stored(&keeper.once("x")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("once needs registers, and memory keeps none; a redis://"), "{refused}");
}

#[tokio::test]
async fn a_stored_result_costs_one_read() {
    let (network, keeper) = Network::new(&MemoryStore::new(), &[]);
    let once = keeper.once("x").fingerprint("a");
    value(&once, 1).await.unwrap();
    // A look, the lock, an entry, two writes, the lock again.
    assert_eq!(network.calls.swap(0, Ordering::SeqCst), 6);
    assert_eq!(stored(&once).await.unwrap(), 1);
    assert_eq!(network.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_with_its_keeper() {
    let (holder, keeper) =
        (Keeper::connect("memory:ends").await.unwrap(), Keeper::connect("memory:ends").await.unwrap());
    let held = holder.lock("once/x").acquire().await.unwrap();
    let once = keeper.once("x");
    let waits = tokio::spawn(async move { stored(&once).await });
    while holder.inspect("once/x").await.unwrap().is_none_or(|record| record.waiting == 0) {
        yield_now().await;
    }
    keeper.close(Duration::ZERO).await.unwrap();
    let ended = tokio::time::timeout(testkit::SOON, waits).await.expect("it ends").unwrap();
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
    held.release().await.unwrap();
}
