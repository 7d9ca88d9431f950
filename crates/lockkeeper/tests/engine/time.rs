//! Client time and process: rows 1, 3, 5–8 and 10 of the failure catalogue.

use crate::common::misbehaving::Misbehaving;
use crate::common::{Bench, Probe, TTL, empty, ms, now, real, secs};
use lockkeeper::register::Written;
use lockkeeper::stores::memory::MemoryStore;
use lockkeeper::testing::{self, Op};
use lockkeeper::{ErrorKind, Fence, Keeper, LockName, LossReason, Phase, Register};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The deadline of a lease of `TTL`, from its stamp.
const VALID: Duration = Duration::from_millis(30_000 - 300 - 2);

#[test]
fn row_01_a_paused_holder_is_lost_at_the_call_and_its_late_writes_are_refused() {
    let bench = Bench::new();
    let ((_, a), (_, b)) = (bench.keeper(), bench.keeper());
    let old = now(a.lock("x").acquire()).unwrap();
    let (fence, key) = (Fence::new("stock", 5).unwrap(), LockName::new("stock").unwrap());
    let pass = old.pass().unwrap();
    fence.enter(&pass, |n| *n -= 1).unwrap();
    assert_eq!(now(bench.store.write(&key, &pass, b"4", None)).unwrap(), Written::Written);

    bench.clock.suspend(TTL * 2);
    assert_eq!(old.check().unwrap_err().kind(), ErrorKind::Lost);
    let new = now(b.lock("x").try_acquire()).unwrap().expect("its lease is over");
    let later = new.pass().unwrap();
    assert!(new.token() > old.token());
    fence.enter(&later, |n| *n -= 1).unwrap();
    assert_eq!(now(bench.store.write(&key, &later, b"3", None)).unwrap(), Written::Written);

    assert_eq!(fence.enter(&pass, |n| *n = 99).unwrap_err().kind(), ErrorKind::Stale);
    let seen = new.token();
    assert_eq!(now(bench.store.write(&key, &pass, b"99", None)).unwrap(), Written::Stale { seen });
    assert_eq!((fence.into_inner(), now(bench.store.read(&key)).unwrap()), (3, Some(b"3".to_vec())));
    assert_eq!(now(old.release()).unwrap_err().kind(), ErrorKind::Lost);
    assert!(new.check().is_ok(), "the late release has touched nothing");
}

#[test]
fn row_03_after_a_suspend_the_clock_alone_says_lost() {
    let bench = Bench::new();
    let odd = Arc::new(Misbehaving::new(bench.store.share()));
    let keeper = Keeper::builder().clock(&bench.clock).open(odd.clone()).unwrap();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    for _ in 0..10 {
        bench.clock.advance(secs(3600));
        assert_eq!(guard.phase(), Phase::Held, "renewed all the while");
    }
    // What a task of the process sees right after resume, before any timer of the keeper has fired.
    let lease = guard.lease().clone();
    let (tell, told) = std::sync::mpsc::channel();
    let mut lost = Probe::new(async move { lease.lost().await });
    lost.pend();
    let lease = guard.lease().clone();
    odd.on_wake(move || {
        if lease.check().is_err() {
            let _ = tell.send((lease.phase(), lease.remaining(), lost.poll().is_pending()));
        }
    });
    bench.clock.suspend(TTL);
    assert_eq!(told.recv().unwrap(), (Phase::Lost(LossReason::Expired), Duration::ZERO, true));
    assert_eq!(now(guard.lost()), LossReason::Expired);
}

#[test]
fn row_03_a_suspend_within_the_deadline_loses_nothing() {
    let bench = Bench::new();
    let (_, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    bench.clock.suspend(VALID - ms(1));
    assert_eq!(guard.phase(), Phase::Held);
    bench.settle();
    assert_eq!(guard.remaining(), VALID, "renewed at once");
    testing::lose(guard.lease(), LossReason::Broken);
    assert_eq!(now(guard.lost()), LossReason::Broken);
}

#[test]
fn row_05_the_deadline_counts_from_the_send() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let lock = keeper.lock("x");
    faults.hold_reply(Op::Acquire);
    faults.hold_request(Op::Renew); // which is due the moment the grant is known
    let mut acquire = Probe::new(lock.acquire());
    acquire.pend();
    bench.clock.suspend(TTL * 9 / 10);
    faults.let_go(Op::Acquire);
    let guard = acquire.ready().unwrap();
    assert!(guard.remaining() <= TTL / 10, "{:?}", guard.remaining());
    assert!(guard.remaining() > Duration::ZERO);
}

#[test]
fn row_05_a_grant_answered_after_its_lease_is_given_back_and_asked_for_anew() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let lock = keeper.lock("x");
    faults.hold_reply(Op::Acquire);
    let mut acquire = Probe::new(lock.acquire());
    acquire.pend();
    bench.clock.suspend(TTL + secs(1));
    faults.let_go(Op::Acquire);
    let guard = acquire.finish().unwrap();
    assert_eq!(faults.asked(Op::Acquire), 2);
    assert_eq!(guard.remaining(), VALID);
    now(guard.release()).unwrap();
    empty(&keeper);
    assert!(bench.record("x").is_none());
}

#[test]
fn row_05_a_store_that_is_always_too_slow_for_the_ttl_ends_the_wait() {
    let odd = Arc::new(Misbehaving::new(MemoryStore::new()));
    let keeper = Keeper::open(odd.clone()).unwrap();
    odd.slow.store(30, Ordering::SeqCst);
    for wait in [Duration::ZERO, ms(100)] {
        let error = now(keeper.lock("x").ttl(ms(10)).wait(wait).acquire()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    empty(&keeper);
}

#[test]
fn row_10_a_max_hold_that_is_too_short_is_refused() {
    let keeper = now(Keeper::connect("memory:")).unwrap();
    let error = now(keeper.lock("x").max_hold(ms(9)).wait(ms(100)).acquire()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    let error = now(Keeper::builder().max_hold(Duration::from_micros(1)).connect("memory:")).unwrap_err();
    assert!(error.to_string().contains("max_hold 1µs is too short; memory needs at least 10ms"), "{error}");
}

#[test]
fn row_05_an_acquire_that_is_never_answered_ends_in_unavailable_and_leaves_nothing() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let lock = keeper.lock("x");
    faults.hold_reply(Op::Acquire);
    let mut acquire = Probe::new(lock.acquire());
    acquire.pend();
    bench.clock.advance(TTL / 3 - ms(1));
    acquire.pend();
    bench.clock.advance(ms(1));
    assert_eq!(acquire.ready().unwrap_err().kind(), ErrorKind::Unavailable);
    faults.heal();
    bench.settle();
    empty(&keeper);
    assert!(bench.record("x").is_none(), "the grant behind the lost answer was given back");
}

#[test]
fn row_06_a_blocked_runtime_loses_no_lock() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ttl = ms(600);
    runtime.block_on(async {
        let (faults, keeper) = real(&MemoryStore::new(), ttl);
        let guard = keeper.lock("x").acquire().await.unwrap();
        std::thread::sleep(ttl * 3); // the only worker
        assert_eq!(guard.phase(), Phase::Held);
        assert!(faults.done(Op::Renew) >= 6, "{}", faults.done(Op::Renew));
        guard.release().await.unwrap();
    });
}

#[test]
fn row_07_a_hung_renewal_is_lost_exactly_at_the_deadline() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    let lease = guard.lease().clone();
    let mut lost = Probe::new(lease.lost());
    lost.pend();
    faults.hold_request(Op::Renew);
    bench.clock.advance(VALID - ms(1));
    assert_eq!((guard.phase(), guard.remaining()), (Phase::Suspect, ms(1)));
    lost.pend();
    assert!(faults.asked(Op::Renew) >= 3, "tried again while time was left: {}", faults.asked(Op::Renew));
    assert_eq!(faults.done(Op::Renew), 0);
    bench.clock.advance(ms(1));
    assert!(lost.woken(), "told without a call to the guard");
    assert_eq!(lost.ready(), LossReason::Expired);
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    // Renewals that get through afterwards neither revive the guard nor keep the name.
    faults.heal();
    bench.settle();
    empty(&keeper);
    assert_eq!(guard.phase(), Phase::Lost(LossReason::Expired));
    assert!(bench.record("x").is_none());
}

#[test]
fn row_07_one_failed_renewal_of_three_does_not_lose_the_lock() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    for round in 1..=10 {
        bench.clock.advance(guard.remaining() - (VALID - TTL / 3) - ms(6));
        assert_eq!(guard.phase(), Phase::Held, "round {round}");
        faults.cut(Op::Renew, 1);
        bench.clock.advance(ms(6));
        assert_eq!(guard.phase(), Phase::Suspect, "round {round}");
        assert!(guard.check().is_ok(), "suspect is still held");
        bench.clock.advance(TTL / 10);
        assert_eq!(guard.phase(), Phase::Held, "round {round}");
    }
}

#[test]
fn row_07_each_try_gets_a_third_of_the_ttl_and_half_of_what_is_left_at_most() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    faults.hold_request(Op::Renew);
    let (mut tries, mut last, step) = (0, None, ms(10));
    let mut gone = Duration::ZERO;
    while guard.check().is_ok() {
        let asked = faults.asked(Op::Renew);
        if asked > tries {
            tries = asked;
            if let Some((at, left)) = last.replace((gone, VALID - gone)) {
                let limit = (TTL / 3).min(left / 2);
                let pause = (left / 8).max(ms(1)).min(TTL / 10);
                let took: Duration = gone - at;
                assert!(took <= limit + pause + step * 3, "try {tries} came {took:?} after one with {left:?} left");
            }
        }
        bench.clock.advance(step);
        gone += step;
    }
    assert!(tries >= 4, "{tries}");
}

#[test]
fn row_07_a_store_that_refuses_at_once_is_not_asked_in_a_tight_loop() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    faults.cut(Op::Renew, u32::MAX);
    bench.clock.advance(VALID);
    assert_eq!(guard.phase(), Phase::Lost(LossReason::Expired));
    assert!((4..=100).contains(&faults.asked(Op::Renew)), "{}", faults.asked(Op::Renew));
}

#[test]
fn row_08_after_an_error_it_keeps_renewing_and_after_release_it_stops() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    faults.cut(Op::Renew, 2);
    bench.clock.advance(TTL * 10);
    assert_eq!(guard.phase(), Phase::Held);
    assert!(faults.done(Op::Renew) >= 25);
    now(guard.release()).unwrap();
    let renewals = faults.asked(Op::Renew);
    bench.clock.advance(TTL * 10);
    assert_eq!(faults.asked(Op::Renew), renewals);
    empty(&keeper);
}

#[test]
fn row_08_a_renewal_never_brings_a_lost_lock_back() {
    let bench = Bench::new();
    let (_, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    now(keeper.break_lock("x", guard.token())).unwrap().expect("broken");
    assert_eq!(guard.phase(), Phase::Held, "the keeper has not been told yet");
    bench.clock.advance(TTL / 3);
    assert_eq!(guard.phase(), Phase::Lost(LossReason::Broken));
    bench.clock.advance(TTL);
    assert!(bench.record("x").is_none());
    let again = now(keeper.lock("x").try_acquire()).unwrap().expect("the same keeper may take it again");
    assert!(again.token() > guard.token());
    drop(guard);
    bench.clock.advance(TTL * 2);
    assert_eq!(again.phase(), Phase::Held, "the old guard's end has not touched it");
}

#[test]
fn row_10_a_forgotten_guard_is_free_by_max_hold() {
    let bench = Bench::new();
    let ((_, a), (_, b)) = (bench.keeper(), bench.keeper());
    let guard = now(a.lock("x").max_hold(TTL * 3).acquire()).unwrap();
    let lease = guard.lease().clone();
    std::mem::forget(guard);
    bench.clock.advance(TTL * 3 - ms(1));
    assert_eq!(lease.phase(), Phase::Held);
    assert!(now(b.lock("x").try_acquire()).unwrap().is_none());
    bench.clock.advance(ms(1));
    assert_eq!(lease.phase(), Phase::Lost(LossReason::MaxHold));
    bench.settle();
    assert!(now(b.lock("x").try_acquire()).unwrap().is_some());
    empty(&a);
}

#[test]
fn row_10_max_hold_counts_from_the_moment_the_grant_is_known() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let lock = keeper.lock("x").max_hold(secs(6));
    faults.hold_reply(Op::Acquire);
    let mut acquire = Probe::new(lock.acquire());
    acquire.pend();
    bench.clock.advance(secs(5));
    faults.let_go(Op::Acquire);
    let guard = acquire.ready().unwrap();
    assert_eq!(guard.remaining(), secs(6));
    bench.clock.advance(secs(6) - ms(1));
    assert_eq!(guard.phase(), Phase::Held);
    bench.clock.advance(ms(1));
    assert_eq!(guard.phase(), Phase::Lost(LossReason::MaxHold));
    assert_eq!(faults.asked(Op::Renew), 0, "nothing to renew before");
}

#[test]
fn work_that_max_hold_ends_is_told_so() {
    let bench = Bench::new();
    let (_, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").max_hold(secs(6)).acquire()).unwrap();
    let mut run = Probe::new(guard.run(std::future::pending::<()>()));
    run.pend();
    bench.clock.advance(secs(5));
    let error = run.ready().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("max_hold") && !error.to_string().contains("lease"), "{error}");
}

#[test]
fn run_cancels_a_sixth_of_the_ttl_before_the_deadline_and_may_borrow() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    let mut steps = Vec::new();
    now(guard.run(async { steps.push(1) })).unwrap();
    let dropped = Arc::new(());
    let held = dropped.clone();
    let mut run = Probe::new(guard.run(async {
        steps.push(2);
        let _held = held;
        std::future::pending::<()>().await
    }));
    run.pend();
    bench.clock.advance(TTL * 5);
    run.pend();
    faults.cut(Op::Renew, u32::MAX);
    let left = guard.remaining();
    bench.clock.advance(left - TTL / 6 - ms(1));
    run.pend();
    bench.clock.advance(ms(1));
    assert!(run.woken());
    assert_eq!(run.ready().unwrap_err().kind(), ErrorKind::Lost);
    drop(run);
    assert_eq!(Arc::strong_count(&dropped), 1, "the work is gone before the lease is");
    assert!(guard.check().is_ok());
    assert_eq!(steps, [1, 2]);
}

#[test]
fn work_takes_no_step_after_a_suspend() {
    let bench = Bench::new();
    let (_, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    let steps = std::sync::atomic::AtomicU32::new(0);
    let work = std::future::poll_fn(|_| {
        steps.fetch_add(1, Ordering::SeqCst);
        std::task::Poll::<()>::Pending
    });
    let mut run = Probe::new(guard.run(work));
    run.pend();
    bench.clock.suspend(TTL * 2);
    assert_eq!(run.ready().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(steps.load(Ordering::SeqCst), 1);
}

#[test]
fn work_that_ends_after_the_deadline_is_lost() {
    let bench = Bench::new();
    let (_, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    let mut first = true;
    let work = std::future::poll_fn(|_| {
        // Blocks for longer than the lease, and then claims to be done.
        if std::mem::take(&mut first) {
            bench.clock.suspend(TTL);
        }
        std::task::Poll::Ready(())
    });
    assert_eq!(now(guard.run(work)).unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn on_the_real_clock_a_cut_store_loses_at_the_deadline() {
    let ttl = ms(400);
    let (faults, keeper) = real(&MemoryStore::new(), ttl);
    let began = Instant::now();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    faults.hold_request(Op::Renew);
    assert_eq!(now(guard.lost()), LossReason::Expired);
    assert!(began.elapsed() < ttl * 10, "{:?}", began.elapsed());
    faults.heal();
    empty(&keeper);
}

#[test]
fn a_keeper_of_a_url_may_share_the_clock() {
    let clock = lockkeeper::testing::Clock::new();
    let keeper = now(Keeper::builder().clock(&clock).connect("memory:")).unwrap();
    let guard = now(keeper.lock("job").acquire()).unwrap();
    clock.advance(secs(3600));
    assert_eq!(guard.phase(), Phase::Held);
    clock.suspend(secs(60));
    assert_eq!(guard.phase(), Phase::Lost(LossReason::Expired));
}
