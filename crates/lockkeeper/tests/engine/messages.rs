//! Messages that are lost, late, repeated or reordered: rows 4, 12 and 14–19 of the failure catalogue.

use crate::common::misbehaving::Misbehaving;
use crate::common::{Bench, Probe, TTL, empty, ms, now, real, secs, until};
use lockkeeper::store::Event;
use lockkeeper::stores::memory::MemoryStore;
use lockkeeper::testing::{Faults, Op};
use lockkeeper::{ErrorKind, Keeper, LossReason, Phase};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn row_04_no_two_acquisitions_share_a_holder() {
    let bench = Bench::new();
    let ((_, a), (_, b)) = (bench.keeper(), bench.keeper());
    let mut seen = HashSet::new();
    for _ in 0..5_000 {
        for keeper in [&a, &b] {
            let guard = now(keeper.lock("x").acquire()).unwrap();
            assert!(seen.insert(guard.holder()), "{:?}", guard.holder());
            now(guard.release()).unwrap();
        }
    }
}

#[test]
fn row_12_releasing_an_expired_guard_never_touches_the_next_owner() {
    let bench = Bench::new();
    let ((faults, a), (_, b)) = (bench.keeper(), bench.keeper());
    let old = now(a.lock("x").acquire()).unwrap();
    faults.cut(Op::Renew, u32::MAX);
    faults.hold_request(Op::Release);
    bench.clock.advance(TTL);
    assert_eq!(old.phase(), Phase::Lost(LossReason::Expired));
    let new = now(b.lock("x").acquire()).unwrap();
    assert_eq!(now(old.release()).unwrap_err().kind(), ErrorKind::Lost);
    faults.heal(); // the releases of the old guard land now
    bench.settle();
    empty(&a);
    assert_eq!(new.phase(), Phase::Held);
    assert_eq!(bench.record("x").unwrap().holders[0].token, Some(new.token()));
}

#[test]
fn row_12_a_release_that_finds_nothing_says_lost() {
    let bench = Bench::new();
    let (_, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    now(keeper.break_lock("x", guard.token())).unwrap().unwrap();
    assert_eq!(now(guard.release()).unwrap_err().kind(), ErrorKind::Lost);
    empty(&keeper);
}

#[test]
fn row_14_a_lost_reply_is_asked_about_with_the_same_holder_and_draws_one_token() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let before = now(keeper.lock("x").acquire()).unwrap();
    let first = before.token().get();
    now(before.release()).unwrap();
    faults.lose_reply(Op::Acquire, 1);
    let guard = now(keeper.lock("x").acquire()).unwrap();
    assert_eq!((faults.asked(Op::Acquire), guard.token().get()), (3, first + 1));
    assert_eq!(bench.record("x").unwrap().holders.len(), 1);
    now(guard.release()).unwrap();
    empty(&keeper);
    assert!(bench.record("x").is_none());
    let next = now(keeper.lock("x").acquire()).unwrap();
    assert_eq!(next.token().get(), first + 2, "the clock stands, so every token drawn is one more");
}

#[test]
fn row_14_when_no_reply_comes_the_grant_behind_it_is_given_back() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    faults.lose_reply(Op::Acquire, u32::MAX);
    for _ in 0..2 {
        assert_eq!(now(keeper.lock("x").acquire()).unwrap_err().kind(), ErrorKind::Unavailable);
    }
    bench.settle();
    empty(&keeper);
    assert!(bench.record("x").is_none());
}

#[test]
fn row_15_an_acquire_that_lands_after_its_release_is_cancelled() {
    let bench = Bench::new();
    let ((faults, a), (_, b)) = (bench.keeper(), bench.keeper());
    let lock = a.lock("x");
    faults.hold_request(Op::Acquire);
    let mut acquire = Probe::new(lock.acquire());
    acquire.pend();
    drop(acquire);
    now(faults.until_done(Op::Release, 1)); // overtakes
    empty(&a);
    faults.let_go(Op::Acquire);
    now(faults.until_done(Op::Acquire, 1)); // lands
    assert!(bench.record("x").is_none(), "the tombstone has cancelled it");
    assert!(now(b.lock("x").try_acquire()).unwrap().is_some());
}

#[test]
fn row_15_the_same_when_the_call_timed_out() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let lock = keeper.lock("x");
    faults.hold_request(Op::Acquire);
    let mut acquire = Probe::new(lock.try_acquire());
    acquire.pend();
    bench.clock.advance(TTL / 3);
    assert_eq!(acquire.ready().unwrap_err().kind(), ErrorKind::Unavailable);
    now(faults.until_done(Op::Release, 1));
    drop(acquire);
    faults.let_go(Op::Acquire);
    now(faults.until_done(Op::Acquire, 1));
    assert!(bench.record("x").is_none());
    empty(&keeper);
}

#[test]
fn row_16_a_delayed_renewal_and_release_do_not_touch_the_next_hold() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let old = now(keeper.lock("x").acquire()).unwrap();
    faults.hold_request(Op::Renew);
    bench.clock.advance(TTL / 3);
    now(faults.until_asked(Op::Renew, 1));
    faults.hold_request(Op::Release);
    let mut release = Probe::new(old.release());
    release.pend();
    drop(release);
    bench.clock.advance(TTL + secs(1)); // it expires in the store, with the calls still under way
    let new = now(keeper.lock("x").acquire()).unwrap();
    faults.heal();
    bench.settle();
    until("the old calls have landed", || faults.done(Op::Release) >= 1 && faults.done(Op::Renew) >= 1);
    assert_eq!(new.phase(), Phase::Held);
    assert_eq!(bench.record("x").unwrap().holders[0].token, Some(new.token()));
    bench.clock.advance(TTL * 3);
    assert_eq!(new.phase(), Phase::Held);
}

#[test]
fn row_16_duplicates_are_harmless() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    for op in [Op::Acquire, Op::Renew, Op::Release] {
        faults.duplicate(op, u32::MAX);
    }
    let mut last = None;
    for _ in 0..5 {
        let guard = now(keeper.lock("x").acquire()).unwrap();
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
        bench.clock.advance(TTL * 2);
        assert_eq!(guard.phase(), Phase::Held);
        now(guard.release()).unwrap();
        assert!(bench.record("x").is_none());
    }
    empty(&keeper);
}

#[test]
fn row_16_a_waiters_keep_alive_answered_after_the_grant_loses_nothing() {
    let bench = Bench::new();
    let ((_, a), (faults, b)) = (bench.keeper(), bench.keeper());
    let held = now(a.lock("x").acquire()).unwrap();
    let lock = b.lock("x");
    let mut acquire = Probe::new(lock.acquire());
    acquire.pend();
    faults.hold_reply(Op::Renew);
    bench.clock.advance(secs(4)); // a keep-alive is answered "waiting", and the answer is on its way
    assert_eq!(faults.done(Op::Renew), 1);
    now(held.release()).unwrap();
    let guard = acquire.finish().unwrap(); // the push was faster
    faults.let_go(Op::Renew);
    bench.settle();
    assert_eq!(guard.phase(), Phase::Held, "an older answer says nothing about the grant");
    bench.clock.advance(TTL * 2);
    assert_eq!(guard.phase(), Phase::Held);
}

#[test]
fn row_17_a_storm_of_timeouts_keeps_exclusion_and_leaves_nothing() {
    let store = MemoryStore::new();
    let inside = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let (faults, keeper) = real(&store, ms(2000));
            let inside = inside.clone();
            std::thread::spawn(move || {
                let mut granted = 0;
                for round in 0..60 {
                    match (round + n) % 6 {
                        0 => faults.lose_reply(Op::Acquire, 1),
                        1 => faults.lose_reply(Op::Release, 1),
                        2 => faults.cut(Op::Acquire, 2),
                        3 => faults.duplicate(Op::Acquire, 1),
                        _ => faults.cut(Op::Release, 1),
                    }
                    match now(keeper.lock("x").wait(ms(1)).acquire()) {
                        Ok(guard) => {
                            granted += 1;
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                            std::thread::yield_now();
                            assert!(guard.check().is_ok());
                            inside.fetch_sub(1, Ordering::SeqCst);
                            drop(guard);
                        }
                        Err(e) => assert!(matches!(e.kind(), ErrorKind::Busy | ErrorKind::Unavailable), "{e:?}"),
                    }
                }
                faults.heal();
                empty(&keeper);
                granted
            })
        })
        .collect();
    let granted: u32 = threads.into_iter().map(|t| t.join().unwrap()).sum();
    assert!(granted > 0);
    let name = lockkeeper::LockName::new("x").unwrap();
    assert!(now(lockkeeper::Store::inspect(&store, &name)).unwrap().is_none());
}

#[test]
fn row_18_an_outage_is_never_busy() {
    let bench = Bench::new();
    let ((_, a), (faults, b)) = (bench.keeper(), bench.keeper());
    let held = now(a.lock("x").acquire()).unwrap();
    faults.cut(Op::Acquire, u32::MAX);
    assert_eq!(now(b.lock("x").try_acquire()).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(now(b.lock("x").wait(secs(1)).acquire()).unwrap_err().kind(), ErrorKind::Unavailable);
    faults.heal();
    assert!(now(b.lock("x").try_acquire()).unwrap().is_none());
    drop(held);
}

#[test]
fn row_18_a_wait_rides_out_an_outage() {
    let bench = Bench::new();
    let ((_, a), (faults, b)) = (bench.keeper(), bench.keeper());
    let held = now(a.lock("x").acquire()).unwrap();
    let lock = b.lock("x");
    let mut acquire = Probe::new(lock.acquire());
    acquire.pend();
    for op in [Op::Acquire, Op::Renew, Op::Release] {
        faults.cut(op, u32::MAX);
    }
    faults.deafen(true);
    bench.clock.advance(TTL * 4); // long enough for its place in line to end
    acquire.pend();
    now(held.release()).unwrap();
    faults.heal();
    bench.clock.advance(secs(4));
    assert!(acquire.finish().is_ok());
}

#[test]
fn row_18_the_limit_of_a_wait_in_an_outage_is_unavailable() {
    let bench = Bench::new();
    let ((_, a), (faults, b)) = (bench.keeper(), bench.keeper());
    let _held = now(a.lock("x").acquire()).unwrap();
    let lock = b.lock("x").wait(secs(20));
    let (mut first, mut second) = (Probe::new(lock.acquire()), Probe::new(lock.acquire()));
    first.pend();
    second.pend();
    faults.cut(Op::Renew, u32::MAX);
    bench.clock.advance(secs(20));
    for mut acquire in [first, second] {
        assert_eq!(acquire.ready().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    // Without an outage the error is busy, and names the holder.
    faults.heal();
    let mut third = Probe::new(lock.acquire());
    third.pend();
    bench.clock.advance(secs(20));
    let busy = third.ready().unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert!(busy.held().is_some_and(|h| h.holder.is_some()));
}

#[test]
fn row_18_the_limit_of_a_wait_holds_while_the_store_is_silent() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let lock = keeper.lock("x").wait(secs(2));
    faults.hold_request(Op::Acquire);
    let (mut first, mut second) = (Probe::new(lock.acquire()), Probe::new(lock.acquire()));
    first.pend();
    second.pend();
    bench.clock.advance(secs(2));
    for acquire in [&mut second, &mut first] {
        assert_eq!(
            acquire.ready().unwrap_err().kind(),
            ErrorKind::Unavailable,
            "the store has not said that it is held"
        );
    }
    drop((first, second));
    faults.heal();
    bench.settle();
    empty(&keeper);
}

#[test]
fn row_19_a_lost_wake_up_costs_one_keep_alive() {
    let bench = Bench::new();
    let ((_, a), (faults, b)) = (bench.keeper(), bench.keeper());
    faults.deafen(true);
    for ttl in [TTL, ms(900)] {
        let held = now(a.lock("x").acquire()).unwrap();
        let lock = b.lock("x").ttl(ttl);
        let mut acquire = Probe::new(lock.acquire());
        acquire.pend();
        now(held.release()).unwrap();
        acquire.pend();
        let bound = ttl.min(secs(10)) / 3;
        bench.clock.advance(bound + ms(1));
        let guard = acquire.ready().unwrap();
        now(guard.release()).unwrap();
    }
}

#[test]
fn row_19_the_first_in_line_looks_when_a_dead_holders_lease_ends() {
    let bench = Bench::new();
    let ((faults_a, a), (faults, b)) = (bench.keeper(), bench.keeper());
    faults.deafen(true);
    let held = now(a.lock("x").ttl(secs(2)).acquire()).unwrap();
    for op in [Op::Renew, Op::Release] {
        faults_a.cut(op, u32::MAX); // as good as dead
    }
    let lock = b.lock("x");
    let mut acquire = Probe::new(lock.acquire());
    acquire.pend();
    bench.clock.advance(secs(2) - ms(1));
    acquire.pend();
    bench.clock.advance(ms(20)); // not at its keep-alive, which is due at 3.3 s
    assert!(acquire.ready().unwrap().check().is_ok());
    drop(held);
}

#[test]
fn a_new_connection_makes_waiters_ask_and_guards_renew() {
    let bench = Bench::new();
    let odd = Arc::new(Misbehaving::new(bench.store.share()));
    let keeper = Keeper::builder().clock(&bench.clock).open(odd.clone()).unwrap();
    let (_, other) = bench.keeper();
    let _held = now(other.lock("y").acquire()).unwrap();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    let lock = keeper.lock("y");
    let mut waiting = Probe::new(lock.acquire());
    waiting.pend();
    bench.clock.advance(secs(1));
    assert_eq!(odd.renewals.load(Ordering::SeqCst), 0);
    let left = guard.remaining();
    odd.say(Event::Reconnected);
    bench.settle();
    until("renewed", || guard.remaining() > left);
    assert_eq!(odd.renewals.load(Ordering::SeqCst), 1, "one batch for the guard and the waiter");
}

#[test]
fn a_session_that_ended_loses_its_guards_and_sends_its_waiters_back_in_line() {
    let bench = Bench::new();
    let odd = Arc::new(Misbehaving::new(bench.store.share()));
    let keeper = Keeper::builder().clock(&bench.clock).open(odd.clone()).unwrap();
    let (_, other) = bench.keeper();
    let held = now(other.lock("y").acquire()).unwrap();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    let lock = keeper.lock("y");
    let mut waiting = Probe::new(lock.acquire());
    waiting.pend();
    odd.say(Event::SessionLost);
    assert_eq!(now(guard.lost()), LossReason::SessionEnded);
    bench.settle();
    waiting.pend();
    now(held.release()).unwrap();
    bench.clock.advance(Duration::from_secs(11)); // its old entry, if it is still there, ends within w
    assert!(waiting.finish().is_ok());
}

#[test]
fn a_session_that_ends_while_a_grant_is_on_its_way_ends_that_grant_too() {
    let bench = Bench::new();
    let odd = Arc::new(Misbehaving::new(bench.store.share()));
    let (faults, store) = Faults::wrap(odd.clone());
    let keeper = Keeper::builder().clock(&bench.clock).open(store).unwrap();
    faults.hold_reply(Op::Acquire);
    let lock = keeper.lock("x");
    let mut asking = Probe::new(lock.acquire());
    asking.pend();
    until("granted by the store", || faults.done(Op::Acquire) == 1);
    let first = bench.record("x").unwrap().holders[0].token.unwrap();
    odd.say(Event::SessionLost);
    bench.settle();
    faults.let_go(Op::Acquire);
    let guard = asking.finish().unwrap();
    assert!(guard.token() > first, "the grant of the ended session was handed out");
    bench.settle();
    assert_eq!((guard.phase(), bench.record("x").unwrap().holders.len()), (Phase::Held, 1));
}
