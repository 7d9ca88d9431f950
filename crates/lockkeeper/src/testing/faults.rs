//! A wrapper around a store that delays, loses, cuts, hangs and repeats calls when a test says so.
//!
//! Nothing here depends on time: a held call goes on when the test lets it.

use crate::error::{Error, Result};
use crate::name::LockName;
use crate::register::Register;
use crate::store::{Attempt, Break, Check, Claim, Cursor, Page, Record, Release, Renewal, Sink, Store, StoreInfo};
use crate::token::Token;
use async_trait::async_trait;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Which calls a fault concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// `try_acquire`.
    Acquire,
    /// `renew`.
    Renew,
    /// `release`.
    Release,
}

/// What is wrong with a kind of call.
#[derive(Clone, Debug, Default)]
struct Plan {
    /// Requests that never arrive: how many more.
    cut: u32,
    /// Calls that happen, but whose reply is lost: how many more.
    lose_reply: u32,
    /// Calls that arrive twice: how many more.
    duplicate: u32,
    /// Requests wait before they reach the store.
    hold_request: bool,
    /// Replies wait after the store has acted.
    hold_reply: bool,
}

/// The switches; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Switches>);

#[derive(Debug, Default)]
struct Switches {
    plans: Mutex<HashMap<Op, Plan>>,
    counts: Mutex<HashMap<Op, (u64, u64)>>,
    deaf: AtomicBool,
    changed: Notify,
}

impl Faults {
    /// Wraps `store`; everything works until a switch is set.
    pub fn wrap(store: Arc<dyn Store>) -> (Self, Arc<FaultyStore>) {
        let faults = Self::default();
        let store = Arc::new(FaultyStore { inner: store, faults: faults.clone() });
        (faults, store)
    }

    /// The next `times` calls fail before they reach the store. `u32::MAX`: until healed.
    pub fn cut(&self, op: Op, times: u32) {
        self.set(op, |plan| plan.cut = times);
    }

    /// The next `times` calls happen, but their replies are lost.
    pub fn lose_reply(&self, op: Op, times: u32) {
        self.set(op, |plan| plan.lose_reply = times);
    }

    /// The next `times` calls happen twice.
    pub fn duplicate(&self, op: Op, times: u32) {
        self.set(op, |plan| plan.duplicate = times);
    }

    /// Calls stop on their way to the store until [`let_go`](Self::let_go), even if their caller gives up meanwhile.
    pub fn hold_request(&self, op: Op) {
        self.set(op, |plan| plan.hold_request = true);
    }

    /// Calls happen, but their replies wait until [`let_go`](Self::let_go).
    pub fn hold_reply(&self, op: Op) {
        self.set(op, |plan| plan.hold_reply = true);
    }

    /// Whether events are dropped from now on.
    pub fn deafen(&self, deaf: bool) {
        self.0.deaf.store(deaf, Ordering::Release);
    }

    /// Delivers the held calls of this kind, and holds no more.
    pub fn let_go(&self, op: Op) {
        self.set(op, |plan| (plan.hold_request, plan.hold_reply) = (false, false));
    }

    /// Ends every fault.
    pub fn heal(&self) {
        lock(&self.0.plans).clear();
        self.deafen(false);
        self.0.changed.notify_waiters();
    }

    /// How many calls of this kind have been asked for.
    pub fn asked(&self, op: Op) -> u64 {
        lock(&self.0.counts).get(&op).map_or(0, |c| c.0)
    }

    /// How many calls of this kind have reached the store and been acted upon.
    pub fn done(&self, op: Op) -> u64 {
        lock(&self.0.counts).get(&op).map_or(0, |c| c.1)
    }

    /// Resolves when at least `times` calls of this kind have been asked for.
    pub async fn until_asked(&self, op: Op, times: u64) {
        self.until(|| self.asked(op) >= times).await;
    }

    /// Resolves when at least `times` calls of this kind have been acted upon.
    pub async fn until_done(&self, op: Op, times: u64) {
        self.until(|| self.done(op) >= times).await;
    }

    async fn until(&self, ready: impl Fn() -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if ready() {
                return;
            }
            changed.await;
        }
    }

    fn set(&self, op: Op, change: impl FnOnce(&mut Plan)) {
        change(lock(&self.0.plans).entry(op).or_default());
        self.0.changed.notify_waiters();
    }

    fn plan(&self, op: Op) -> Plan {
        lock(&self.0.plans).get(&op).cloned().unwrap_or_default()
    }

    /// Uses up one of a counted fault.
    fn spend(&self, op: Op, which: impl Fn(&mut Plan) -> &mut u32) -> bool {
        let mut plans = lock(&self.0.plans);
        let left = which(plans.entry(op).or_default());
        let hit = *left > 0;
        if hit && *left != u32::MAX {
            *left -= 1;
        }
        hit
    }

    fn count(&self, op: Op, acted: bool) {
        let mut counts = lock(&self.0.counts);
        let count = counts.entry(op).or_default();
        if acted {
            count.1 += 1
        } else {
            count.0 += 1
        }
        drop(counts);
        self.0.changed.notify_waiters();
    }
}

/// A store whose [`Faults`] a test controls.
#[derive(Debug)]
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    faults: Faults,
}

type Answers<T> = std::pin::Pin<Box<dyn Future<Output = Vec<Result<T>>> + Send>>;

impl FaultyStore {
    async fn call<T: Send + 'static>(
        &self,
        op: Op,
        claims: &[Claim],
        act: impl Fn(Arc<dyn Store>, Vec<Claim>) -> Answers<T>,
    ) -> Vec<Result<T>> {
        let broken = || claims.iter().map(|_| Err(Error::unavailable("the connection was cut (injected)"))).collect();
        let faults = &self.faults;
        faults.count(op, false);
        if faults.spend(op, |p| &mut p.cut) {
            return broken();
        }
        let twice = faults.spend(op, |p| &mut p.duplicate);
        let lost = faults.spend(op, |p| &mut p.lose_reply);
        let request = act(self.inner.clone(), claims.to_vec());
        let again = twice.then(|| act(self.inner.clone(), claims.to_vec()));
        let on_the_way = async {
            faults.until(|| !faults.plan(op).hold_request).await;
        };
        let mut sent = Sent { faults: faults.clone(), op, request: Some(request) };
        on_the_way.await;
        let answers = match sent.request.take() {
            Some(request) => request.await,
            None => broken(),
        };
        if let Some(again) = again {
            again.await;
        }
        faults.count(op, true);
        if lost {
            return broken();
        }
        faults.until(|| !faults.plan(op).hold_reply).await;
        answers
    }
}

/// A request under way: it arrives even if the caller has given up, as on a network.
struct Sent<T: 'static> {
    faults: Faults,
    op: Op,
    request: Option<Answers<T>>,
}

impl<T: 'static> Drop for Sent<T> {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        let (faults, op) = (self.faults.clone(), self.op);
        // A thread of its own, because the test's executor may be the one that is gone. While it lives, the store's call may
        // use it.
        let runtime = tokio::runtime::Handle::try_current().ok();
        let deliver = move || {
            let _inside = runtime.as_ref().map(tokio::runtime::Handle::enter);
            crate::blocking::block_on(async {
                faults.until(|| !faults.plan(op).hold_request).await;
                request.await;
                faults.count(op, true);
            });
        };
        // Without a thread the request is lost, which a network may do too.
        drop(std::thread::Builder::new().spawn(deliver));
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn info(&self) -> StoreInfo {
        self.inner.info()
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        self.call(Op::Acquire, claims, |s, c| Box::pin(async move { s.try_acquire(&c).await })).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.call(Op::Renew, claims, |s, c| Box::pin(async move { s.renew(&c).await })).await
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        self.call(Op::Release, claims, |s, c| Box::pin(async move { s.release(&c).await })).await
    }

    async fn tend(&self, events: Sink) {
        let faults = self.faults.clone();
        let hears = Sink::new(move |event| {
            if !faults.0.deaf.load(Ordering::Acquire) {
                events.tell(event);
            }
        });
        self.inner.tend(hears).await;
    }

    fn registers(&self) -> Option<&dyn Register> {
        self.inner.registers()
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        self.inner.inspect(name).await
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.inner.list(prefix, cursor).await
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.inner.break_lock(name, token).await
    }

    async fn checks(&self, ttl: Duration) -> Vec<Check> {
        self.inner.checks(ttl).await
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
