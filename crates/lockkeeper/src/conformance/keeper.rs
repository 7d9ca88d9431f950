//! Cases that drive a whole `Keeper` over the store: cancelled acquires, local queues, order among keepers.

use super::Subject;
use super::kit::{Round, eventually, fresh_name, heard, long, patience, short, unspoiled};
use crate::clock::system_now;
use crate::name::LockName;
use crate::store::{LossReason, Record, StoreInfo};
use crate::{ErrorKind, Guard, Keeper, Lock};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

/// Longer than all turns of a case together.
const LONGEST: Duration = Duration::from_secs(200);

async fn keeper(subject: &dyn Subject, ttl: impl Fn(&StoreInfo) -> Duration) -> Keeper {
    let store = subject.open().await;
    let ttl = ttl(&store.info());
    Keeper::builder().ttl(ttl).open(store).expect("a keeper")
}

/// Takes the lock within what a crashed holder may cost. An outage is asked about again, as a caller would.
async fn acquired(lock: &Lock, limit: Duration) -> Guard {
    let end = system_now().after(limit);
    loop {
        match lock.clone().wait(end.since(system_now())).acquire().await {
            Ok(guard) => return guard,
            Err(error) if error.kind() == ErrorKind::Unavailable && system_now() < end => {}
            Err(error) => panic!("not granted: {error}"),
        }
    }
}

/// Gives the lock back. After an outage the keeper goes on trying.
async fn freed(guard: Guard) {
    if let Err(error) = guard.release().await {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

async fn inspected(keeper: &Keeper, name: &LockName) -> Option<Record> {
    heard("inspect", || keeper.inspect(name)).await.0
}

async fn waiting(keeper: &Keeper, name: &LockName, count: u32) {
    eventually("the waiters stand in line", Duration::from_secs(20), async || {
        (inspected(keeper, name).await?.waiting == count).then_some(())
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
        freed(acquired(&b.lock(&name), long(b.info()) / 2).await).await;
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
        freed(holder).await;
        freed(acquired(&b.lock(&name), long(b.info()) / 2).await).await;
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
    freed(acquired(&b.lock(&name), long(b.info()) / 2).await).await;
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
                let guard = acquired(&lock, LONGEST).await;
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                tokens.push(guard.token());
                freed(guard).await;
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
    freed(first).await;
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
            let guard = acquired(&lock, LONGEST).await;
            sender.send(i).expect("the test listens");
            freed(guard).await;
        });
        waiting(&holder, &name, i + 1).await;
    }
    freed(guard).await;
    for i in 0..4 {
        assert_eq!(served.recv().await, Some(i));
    }
}

/// A wait much longer than a place in line lives without being kept alive.
pub async fn a_wait_outlives_its_entry(subject: &dyn Subject) {
    let info = subject.open().await.info();
    unspoiled(&info, async |ttl| {
        let (a, b) = (keeper(subject, |_| ttl).await, keeper(subject, |_| ttl).await);
        let name = fresh_name("outlives");
        let (lock, limit) = (b.lock(&name), patience(&info, ttl) + ttl * 4);
        let guard = acquired(&a.lock(&name), limit).await;
        let waiter = tokio::spawn(async move { acquired(&lock, limit).await.token() });
        let in_line = async || inspected(&a, &name).await.is_some_and(|record| record.waiting == 1);
        let joined = async || (in_line().await || guard.check().is_err()).then_some(());
        eventually("the waiter stands in line", Duration::from_secs(20), joined).await;
        tokio::time::sleep(ttl * 3).await;
        // On a slow machine the guard's lease or the waiter's place may have ended. A longer one may not.
        let kept = in_line().await && guard.check().is_ok();
        let token = guard.token();
        drop(guard);
        assert!(waiter.await.expect("granted") > token);
        if kept { Round::Done } else { Round::Spoiled }
    })
    .await;
}

/// A guard whose lock was broken is told so, at the latest by its next renewal.
pub async fn a_broken_guard_is_told(subject: &dyn Subject) {
    let (a, b) = (keeper(subject, long).await, keeper(subject, long).await);
    let name = fresh_name("broken");
    let guard = acquired(&a.lock(&name).ttl(short(a.info()) * 3), Duration::from_secs(5)).await;
    // Already broken when an answer was lost.
    let (broken, unheard) = heard("break", || b.break_lock(&name, guard.token())).await;
    assert!(broken.is_some() || unheard, "the holder's token breaks the lock");
    let told = tokio::time::timeout(Duration::from_secs(30), guard.lost()).await.expect("told");
    assert!(matches!(told, LossReason::Broken | LossReason::Gone | LossReason::Expired | LossReason::SessionEnded));
    assert!(guard.check().is_err());
}
