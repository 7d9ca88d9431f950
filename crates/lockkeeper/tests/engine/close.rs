//! The end of a keeper: closed, dropped, or its thread dead; and its life beyond a runtime's.

use crate::common::misbehaving::Misbehaving;
use crate::common::{Bench, Probe, TTL, empty, ms, now, real, secs, until};
use lockkeeper::stores::memory::MemoryStore;
use lockkeeper::testing::{Op, leftovers};
use lockkeeper::{Error, ErrorKind, Keeper, LossReason, Phase};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

fn odd_keeper(bench: &Bench) -> (Arc<Misbehaving>, Keeper) {
    let odd = Arc::new(Misbehaving::new(bench.store.share()));
    let keeper = Keeper::builder().clock(&bench.clock).open(odd.clone()).expect("a keeper");
    (odd, keeper)
}

#[test]
fn close_waits_for_guards_and_releases() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let (first, second) = (now(keeper.lock("x").acquire()).unwrap(), now(keeper.lock("y").acquire()).unwrap());
    faults.hold_request(Op::Release);
    drop(first);
    let mut close = Probe::new(keeper.close(secs(60)));
    close.pend();
    assert_eq!(now(keeper.lock("z").acquire()).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(now(keeper.lock("z").try_acquire()).unwrap_err().kind(), ErrorKind::Closed);
    bench.clock.advance(secs(20));
    assert_eq!(second.phase(), Phase::Held, "renewed until it is released");
    close.pend();
    faults.let_go(Op::Release);
    now(second.release()).unwrap();
    let left = close.finish().unwrap();
    assert_eq!((left.held, left.releasing), (0, 0));
    assert!(bench.record("x").is_none() && bench.record("y").is_none());
    assert_eq!(leftovers(&keeper), Default::default());
}

#[test]
fn close_ends_what_is_left_and_says_how_much() {
    let bench = Bench::new();
    let ((_, keeper), (_, other)) = (bench.keeper(), bench.keeper());
    let guard = now(keeper.lock("x").acquire()).unwrap();
    let mut close = Probe::new(keeper.close(secs(5)));
    close.pend();
    bench.clock.advance(secs(5));
    let left = close.finish().unwrap();
    assert_eq!((left.held, left.releasing), (1, 0));
    assert_eq!(guard.phase(), Phase::Lost(LossReason::Closed));
    assert_eq!(now(guard.lost()), LossReason::Closed);
    assert!(now(other.lock("x").try_acquire()).unwrap().is_some(), "every end sends a release");
    assert_eq!(now(guard.release()).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(now(keeper.close(secs(5))).unwrap().held, 0, "a second time is harmless");
}

#[test]
fn close_reports_releases_that_the_store_did_not_answer() {
    let bench = Bench::new();
    let (faults, store) = bench.faulty();
    let keeper = bench.builder().drop_timeout(secs(600)).open(store).unwrap();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    faults.cut(Op::Release, u32::MAX);
    drop(guard);
    let mut close = Probe::new(keeper.close(secs(5)));
    close.pend();
    bench.clock.advance(secs(5));
    close.pend();
    bench.clock.advance(secs(1));
    let left = close.finish().unwrap();
    assert_eq!((left.held, left.releasing), (0, 1));
    let began = Instant::now();
    drop(keeper);
    assert!(began.elapsed() < secs(300), "nothing is under way any more: {:?}", began.elapsed());
}

#[test]
fn close_returns_as_soon_as_nothing_is_left() {
    let bench = Bench::new();
    let ((faults, keeper), (_, other)) = (bench.keeper(), bench.keeper());
    // A guard that ends by the answer to its renewal.
    let broken = now(keeper.lock("x").acquire()).unwrap();
    now(other.break_lock("x", broken.token())).unwrap().unwrap();
    let mut close = Probe::new(keeper.close(secs(3600)));
    close.pend();
    bench.clock.advance(secs(10));
    assert_eq!(broken.phase(), Phase::Lost(LossReason::Broken));
    let left = close.finish().unwrap();
    assert_eq!((left.held, left.releasing), (0, 0));
    drop((broken, faults));
    // A release that is never answered, until its lease is certainly over.
    let (faults, keeper) = bench.keeper();
    let guard = now(keeper.lock("y").acquire()).unwrap();
    faults.cut(Op::Release, u32::MAX);
    drop(guard);
    let mut close = Probe::new(keeper.close(secs(3600)));
    close.pend();
    bench.clock.advance(TTL * 2);
    let left = close.finish().unwrap();
    assert_eq!((left.held, left.releasing), (0, 0));
}

#[test]
fn close_sends_waiting_tasks_home() {
    let bench = Bench::new();
    let ((_, a), (_, b)) = (bench.keeper(), bench.keeper());
    let held = now(a.lock("x").acquire()).unwrap();
    let lock = b.lock("x");
    let (mut head, mut second) = (Probe::new(lock.acquire()), Probe::new(lock.acquire()));
    head.pend();
    second.pend();
    assert_eq!(now(b.close(secs(5))).unwrap().releasing, 0);
    for task in [&mut head, &mut second] {
        assert!(task.woken());
        assert_eq!(task.ready().unwrap_err().kind(), ErrorKind::Closed);
    }
    assert_eq!(bench.waiting("x"), 0);
    assert!(held.check().is_ok());
}

#[test]
fn close_gives_back_what_an_acquire_in_flight_brings() {
    for taken in [false, true] {
        let bench = Bench::new();
        let ((_, a), (faults, b)) = (bench.keeper(), bench.keeper());
        let held = taken.then(|| now(a.lock("x").acquire()).unwrap());
        let lock = b.lock("x");
        faults.hold_reply(Op::Acquire);
        let mut acquire = Probe::new(lock.acquire());
        acquire.pend();
        let mut close = Probe::new(b.close(secs(5)));
        close.pend();
        faults.let_go(Op::Acquire);
        assert_eq!(acquire.finish().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(close.finish().unwrap().releasing, 0);
        assert_eq!(bench.waiting("x"), 0);
        assert_eq!(bench.record("x").is_some(), held.is_some());
    }
}

#[test]
fn an_acquire_that_outlives_the_close_ends_too() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let lock = keeper.lock("x");
    faults.hold_request(Op::Acquire);
    let mut acquire = Probe::new(lock.acquire());
    acquire.pend();
    let mut close = Probe::new(keeper.close(Duration::ZERO));
    close.pend();
    bench.clock.advance(secs(1));
    assert_eq!(close.finish().unwrap().releasing, 1, "it may still arrive");
    assert_eq!(acquire.finish().unwrap_err().kind(), ErrorKind::Closed);
    faults.heal();
}

#[test]
fn dropping_the_last_user_waits_for_releases_under_way() {
    let store = MemoryStore::new();
    for _ in 0..20 {
        let (_, keeper) = real(&store, secs(30));
        let (_, other) = real(&store, secs(30));
        drop(now(keeper.lock("x").acquire()).unwrap());
        drop(keeper);
        assert!(now(other.lock("x").try_acquire()).unwrap().is_some(), "free when the drop has returned");
    }
}

#[test]
fn dropping_the_last_user_waits_no_longer_than_it_may() {
    let bench = Bench::new();
    let (faults, store) = bench.faulty();
    let keeper = bench.builder().drop_timeout(ms(50)).open(store).unwrap();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    faults.hold_request(Op::Release);
    drop(keeper);
    let began = Instant::now();
    drop(guard); // the last user
    let took = began.elapsed();
    assert!((ms(50)..secs(5)).contains(&took), "{took:?}");
    assert!(bench.record("x").is_some());
    faults.heal(); // the thread has stayed for it
    until("released", || bench.record("x").is_none());
}

#[test]
fn a_keeper_outlives_the_runtimes_that_use_it() {
    static KEEPER: OnceLock<Keeper> = OnceLock::new();
    let mut last = None;
    for _ in 0..2 {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let token = runtime.block_on(async {
            if KEEPER.get().is_none() {
                let _ = KEEPER.set(Keeper::builder().ttl(ms(500)).connect("memory:").await.unwrap());
            }
            let lock = KEEPER.get().unwrap().lock("x");
            let waiter = tokio::spawn({
                let lock = lock.clone();
                async move { lock.acquire().await.unwrap().token() }
            });
            let token = waiter.await.unwrap();
            let guard = lock.acquire().await.unwrap();
            std::mem::forget(tokio::spawn(async move {
                let _guard = guard;
                std::future::pending::<()>().await
            }));
            token
        });
        drop(runtime); // with a guard in it
        assert!(Some(token) > last);
        last = Some(token);
    }
    let guard = now(KEEPER.get().unwrap().lock("x").acquire()).unwrap();
    assert!(Some(guard.token()) > last);
}

#[test]
fn when_the_keepers_thread_dies_everything_is_lost_and_nothing_hangs() {
    let bench = Bench::new();
    let odd = Arc::new(Misbehaving::new(bench.store.share()));
    let keeper = bench.builder().drop_timeout(secs(600)).open(odd.clone()).unwrap();
    let (_, other) = bench.keeper();
    let _held = now(other.lock("y").acquire()).unwrap();
    let guards: Vec<_> = (0..3).map(|n| now(keeper.lock(format!("x{n}")).acquire()).unwrap()).collect();
    let lock = keeper.lock("y");
    let limited = keeper.lock("y").wait(secs(5));
    let (mut waiting, mut second) = (Probe::new(lock.acquire()), Probe::new(limited.acquire()));
    waiting.pend();
    second.pend();
    let lease = guards[0].lease().clone();
    let (mut run, mut ends) =
        (Probe::new(guards[1].run(std::future::pending::<()>())), Probe::new(lease.ends_within(secs(1))));
    run.pend();
    ends.pend();
    odd.kill();
    for guard in &guards {
        assert_eq!(now(guard.lost()), LossReason::KeeperDied);
        assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    }
    assert_eq!(waiting.finish().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(second.finish().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(run.finish().unwrap_err().kind(), ErrorKind::Lost);
    ends.finish();
    assert_eq!(now(keeper.lock("z").acquire()).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(now(keeper.lock("z").try_acquire()).unwrap_err().kind(), ErrorKind::Closed);
    for guard in guards {
        assert_eq!(now(guard.release()).unwrap_err().kind(), ErrorKind::Lost);
    }
    assert_eq!(now(keeper.close(secs(5))).unwrap().held, 0);
    bench.clock.advance(secs(1)); // the dead thread has left its seat
    drop((lock, limited));
    let began = Instant::now();
    drop(keeper);
    assert!(began.elapsed() < secs(300), "{:?}", began.elapsed());
}

#[test]
fn a_call_in_flight_when_the_thread_dies_ends_too() {
    let bench = Bench::new();
    let odd = Arc::new(Misbehaving::new(bench.store.share()));
    let (faults, store) = lockkeeper::testing::Faults::wrap(odd.clone());
    let keeper = Keeper::builder().clock(&bench.clock).open(store).unwrap();
    let guard = now(keeper.lock("y").acquire()).unwrap();
    faults.hold_request(Op::Acquire);
    faults.hold_request(Op::Release);
    let lock = keeper.lock("x");
    let (mut acquire, mut release) = (Probe::new(lock.acquire()), Probe::new(guard.release()));
    acquire.pend();
    release.pend();
    odd.kill();
    assert_eq!(acquire.finish().unwrap_err().kind(), ErrorKind::Closed);
    assert!(release.finish().is_err());
    faults.heal();
}

#[test]
fn a_store_that_panics_in_a_renewal_is_an_outage() {
    let bench = Bench::new();
    let (odd, keeper) = odd_keeper(&bench);
    let guard = now(keeper.lock("x").acquire()).unwrap();
    odd.renew_panics.store(true, Ordering::SeqCst);
    bench.clock.advance(secs(20));
    assert_eq!(guard.phase(), Phase::Suspect);
    odd.renew_panics.store(false, Ordering::SeqCst);
    bench.clock.advance(secs(5));
    assert_eq!(guard.phase(), Phase::Held);
    odd.renew_panics.store(true, Ordering::SeqCst);
    bench.clock.advance(TTL);
    assert_eq!(guard.phase(), Phase::Lost(LossReason::Expired));
    assert!(now(keeper.lock("x").try_acquire()).unwrap().is_some(), "the keeper lives");
}

#[test]
fn a_store_that_panics_in_a_release_is_asked_again() {
    let bench = Bench::new();
    let (odd, keeper) = odd_keeper(&bench);
    odd.release_panics.store(true, Ordering::SeqCst);
    drop(now(keeper.lock("x").acquire()).unwrap());
    bench.settle();
    assert!(bench.record("x").is_some());
    odd.release_panics.store(false, Ordering::SeqCst);
    bench.clock.advance(TTL / 2);
    assert!(bench.record("x").is_none());
    empty(&keeper);
}

#[test]
fn a_lease_keeps_neither_the_lock_nor_the_keeper() {
    let bench = Bench::new();
    let (_, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    let lease = guard.lease().clone();
    drop((guard, keeper));
    assert_eq!(now(lease.lost()), LossReason::Released);
    now(lease.ends_within(secs(1)));
    until("released", || bench.record("x").is_none());
    assert_eq!(lease.check().map_err(|e: Error| e.kind()), Err(ErrorKind::Lost));
}

#[test]
fn row_18_a_wait_that_can_never_end_is_given_up() {
    let bench = Bench::new();
    let odd = Arc::new(Misbehaving::new(bench.store.share()));
    let keeper = Keeper::builder().clock(&bench.clock).open(odd.clone()).unwrap();
    let (_, other) = bench.keeper();
    let held = now(other.lock("x").acquire()).unwrap();
    let lock = keeper.lock("x");
    let (mut first, mut second) = (Probe::new(lock.acquire()), Probe::new(lock.acquire()));
    first.pend();
    second.pend();
    odd.foreign.store(true, Ordering::SeqCst);
    bench.clock.advance(secs(4));
    assert_eq!(first.finish().unwrap_err().kind(), ErrorKind::Foreign);
    // The next task asks for itself, and may succeed.
    odd.foreign.store(false, Ordering::SeqCst);
    second.pend();
    now(held.release()).unwrap();
    now(second.finish().unwrap().release()).unwrap();
    empty(&keeper);
}
