//! Cases that drive a whole `Keeper` over the store: cancelled acquires, local queues, order among keepers.

use super::Subject;
use super::kit::{eventually, fresh_name, long, patience, short};
use crate::name::LockName;
use crate::store::{LossReason, StoreInfo};
use crate::{Guard, Keeper, Lock};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

async fn keeper(subject: &dyn Subject, ttl: impl Fn(&StoreInfo) -> Duration) -> Keeper {
    let store = subject.open().await;
    let ttl = ttl(&store.info());
    Keeper::builder().ttl(ttl).open(store).expect("a keeper")
}

/// Takes the lock within what a crashed holder may cost.
async fn acquired(lock: &Lock, limit: Duration) -> Guard {
    lock.clone().wait(limit).acquire().await.expect("granted")
}

async fn waiting(keeper: &Keeper, name: &LockName, count: u32) {
    eventually("the waiters stand in line", Duration::from_secs(20), async || {
        let record = keeper.inspect(name).await.expect("inspected")?;
        (record.waiting == count).then_some(())
    })
    .await;
}

/// Polls `future` at most `polls + 1` times, then drops it; its answer, if it came, and whether it ran out of polls.
async fn cut_short<T>(future: impl Future<Output = T>, polls: u32) -> (Option<T>, bool) {
    let mut future = pin!(future);
    let mut done = 0;
    let run = poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending if done == polls => Poll::Ready(None),
        Poll::Pending => {
            done += 1;
            Poll::Pending
        }
    });
    match tokio::time::timeout(Duration::from_millis(300), run).await {
        Ok(answer) => {
            let cut = answer.is_none();
            (answer, cut)
        }
        // The future is not polled again: there is no later poll to drop it at.
        Err(_) => (None, false),
    }
}

/// An acquire of a free lock, dropped after any number of polls, leaves nothing behind.
pub async fn an_acquire_dropped_at_any_poll_leaves_nothing(subject: &dyn Subject) {
    let (a, b) = (keeper(subject, long).await, keeper(subject, long).await);
    for polls in 0..50 {
        let name = fresh_name("dropped");
        let lock = a.lock(&name);
        let (guard, cut) = cut_short(lock.acquire(), polls).await;
        drop(guard);
        // Well within the lease, so that only a release can have freed it.
        acquired(&b.lock(&name), long(b.info()) / 2).await.release().await.expect("released");
        if !cut {
            return;
        }
    }
    panic!("an acquire that takes more than 50 polls");
}

/// A wait for a held lock, dropped after any number of polls, leaves no place in line.
pub async fn a_wait_dropped_at_any_poll_leaves_nothing(subject: &dyn Subject) {
    let (a, b) = (keeper(subject, long).await, keeper(subject, long).await);
    for polls in 0..50 {
        let name = fresh_name("dropped-wait");
        let holder = acquired(&b.lock(&name), long(b.info())).await;
        let lock = a.lock(&name);
        let (_, cut) = cut_short(lock.acquire(), polls).await;
        waiting(&b, &name, 0).await;
        holder.release().await.expect("released");
        acquired(&b.lock(&name), long(b.info()) / 2).await.release().await.expect("released");
        if !cut {
            return;
        }
    }
    panic!("a wait that takes more than 50 polls");
}

/// A guard that is dropped frees its lock well before the lease ends.
pub async fn a_dropped_guard_frees_the_lock(subject: &dyn Subject) {
    let (a, b) = (keeper(subject, long).await, keeper(subject, long).await);
    let name = fresh_name("guard");
    drop(acquired(&a.lock(&name), Duration::from_secs(5)).await);
    acquired(&b.lock(&name), long(b.info()) / 2).await.release().await.expect("released");
}

/// Tasks of two keepers on one name: never two inside, and every one of them gets in.
pub async fn tasks_of_two_keepers_never_meet_inside(subject: &dyn Subject) {
    let (a, b) = (keeper(subject, long).await, keeper(subject, long).await);
    let name = fresh_name("meet");
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for i in 0..16 {
        let lock = if i % 2 == 0 { a.lock(&name) } else { b.lock(&name) };
        let inside = inside.clone();
        tasks.push(tokio::spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..5 {
                let guard = lock.acquire().await.expect("granted");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                tokens.push(guard.token());
                guard.release().await.expect("released");
            }
            tokens
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("a task"));
    }
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!((count, all.len()), (80, 80), "every grant has a token of its own");
}

/// Two tasks of one keeper: the second gets nothing while the first holds, and `try_acquire` says so.
pub async fn two_local_claims_are_never_both_granted(subject: &dyn Subject) {
    let a = keeper(subject, long).await;
    let name = fresh_name("local");
    let first = acquired(&a.lock(&name), Duration::from_secs(5)).await;
    assert!(a.lock(&name).try_acquire().await.expect("answered").is_none());
    let lock = a.lock(&name).wait(Duration::from_millis(50));
    assert_eq!(lock.acquire().await.expect_err("busy").kind(), crate::ErrorKind::Busy);
    let token = first.token();
    first.release().await.expect("released");
    assert!(acquired(&a.lock(&name), Duration::from_secs(5)).await.token() > token);
}

/// Keepers are served in the order in which they joined the line.
pub async fn keepers_are_served_in_order(subject: &dyn Subject) {
    let holder = keeper(subject, long).await;
    let name = fresh_name("order");
    let guard = acquired(&holder.lock(&name), Duration::from_secs(5)).await;
    let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
    for i in 0..4 {
        let next = keeper(subject, long).await;
        let (lock, sender) = (next.lock(&name), sender.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.expect("granted");
            sender.send(i).expect("the test listens");
            guard.release().await.expect("released");
        });
        waiting(&holder, &name, i + 1).await;
    }
    guard.release().await.expect("released");
    for i in 0..4 {
        assert_eq!(served.recv().await, Some(i));
    }
}

/// A wait much longer than a place in line lives without being kept alive.
pub async fn a_wait_outlives_its_entry(subject: &dyn Subject) {
    let (a, b) = (keeper(subject, short).await, keeper(subject, short).await);
    let name = fresh_name("outlives");
    let guard = acquired(&a.lock(&name), Duration::from_secs(5)).await;
    let (lock, limit) = (b.lock(&name), patience(b.info(), short(b.info())) + short(b.info()) * 4);
    let waiter = tokio::spawn(async move { acquired(&lock, limit).await.token() });
    waiting(&a, &name, 1).await;
    tokio::time::sleep(short(a.info()) * 3).await;
    let record = a.inspect(&name).await.expect("inspected");
    // A machine that stood still for a whole lease proves nothing either way.
    if guard.check().is_ok() {
        assert_eq!(record.expect("held").waiting, 1, "still in line");
    }
    let token = guard.token();
    drop(guard);
    assert!(waiter.await.expect("granted") > token);
}

/// A guard whose lock was broken is told so, at the latest by its next renewal.
pub async fn a_broken_guard_is_told(subject: &dyn Subject) {
    let (a, b) = (keeper(subject, long).await, keeper(subject, long).await);
    let name = fresh_name("broken");
    let guard = acquired(&a.lock(&name).ttl(short(a.info()) * 3), Duration::from_secs(5)).await;
    b.break_lock(&name, guard.token()).await.expect("answered").expect("broken");
    let told = tokio::time::timeout(Duration::from_secs(30), guard.lost()).await.expect("told");
    assert!(matches!(told, LossReason::Broken | LossReason::Gone | LossReason::Expired | LossReason::SessionEnded));
    assert!(guard.check().is_err());
}
