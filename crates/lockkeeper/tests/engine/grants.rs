//! Grants: from when a lease counts, which task picks it up, and how its release is answered.

use crate::common::{Bench, Probe, TTL, empty, ms, now, secs};
use lockkeeper::testing::Op;
use lockkeeper::{LossReason, Phase};

#[test]
fn max_hold_of_a_lock_that_was_handed_over_counts_from_the_hand_over() {
    for max_hold in [secs(2), secs(5)] {
        let bench = Bench::new();
        let ((_, a), (_, b), (_, c)) = (bench.keeper(), bench.keeper(), bench.keeper());
        let held = now(a.lock("x").acquire()).unwrap();
        let (first, second) = (b.lock("x").max_hold(max_hold), c.lock("x"));
        let (mut first, mut second) = (Probe::new(first.acquire()), Probe::new(second.acquire()));
        first.pend();
        second.pend();
        // Right before the keep-alive of its place; the grant's lease counts from that keep-alive.
        bench.clock.advance(secs(3));
        now(held.release()).unwrap();
        bench.settle();
        second.pend();
        let guard = first.ready().unwrap();
        assert_eq!(guard.remaining(), max_hold);
        bench.clock.advance(max_hold - ms(1));
        assert_eq!(guard.phase(), Phase::Held);
        bench.clock.advance(ms(1));
        assert_eq!(guard.phase(), Phase::Lost(LossReason::MaxHold));
        drop((second, guard));
        empty(&b);
    }
}

#[test]
fn an_heir_has_its_own_max_hold_or_none() {
    let bench = Bench::new();
    let ((_, a), (faults, b)) = (bench.keeper(), bench.keeper());
    let held = now(a.lock("x").acquire()).unwrap();
    let (limited, plain) = (b.lock("x").max_hold(secs(2)), b.lock("x"));
    let (mut head, mut heir) = (Probe::new(limited.acquire()), Probe::new(plain.acquire()));
    head.pend();
    heir.pend();
    now(held.release()).unwrap();
    bench.settle();
    drop(head); // which never picked its grant up
    bench.clock.advance(secs(4));
    let guard = heir.ready().unwrap();
    assert_eq!(faults.asked(Op::Acquire), 1, "the grant of the head, not another one");
    bench.clock.advance(TTL * 3);
    assert_eq!(guard.phase(), Phase::Held);
    let mut late = Probe::new(limited.acquire());
    late.pend();
    now(guard.release()).unwrap();
    assert_eq!(late.ready().unwrap().remaining(), secs(2));
}

#[test]
fn a_grant_that_is_never_picked_up_ends_by_max_hold_too() {
    let bench = Bench::new();
    let ((_, a), (_, b)) = (bench.keeper(), bench.keeper());
    let held = now(a.lock("x").acquire()).unwrap();
    let (limited, plain) = (b.lock("x").max_hold(secs(2)), a.lock("x"));
    let (mut stuck, mut next) = (Probe::new(limited.acquire()), Probe::new(plain.acquire()));
    stuck.pend();
    now(held.release()).unwrap();
    next.pend();
    bench.clock.advance(secs(2));
    assert!(next.finish().is_ok(), "the task that was granted the lock stands still; the next one does not");
}

#[test]
fn a_release_that_the_keeper_repeated_first_is_no_loss() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").ttl(TTL * 4).acquire()).unwrap();
    faults.hold_request(Op::Release);
    let mut release = Probe::new(guard.release());
    release.pend();
    bench.clock.advance(secs(11));
    assert_eq!(faults.asked(Op::Release), 2, "the keeper's thread has repeated it");
    faults.let_go(Op::Release);
    now(faults.until_done(Op::Release, 1)); // the repeat; the caller's own arrives when it is polled
    bench.settle();
    release.ready().expect("the lock was held, and has been released");
    empty(&keeper);
}

#[test]
fn a_release_waits_no_longer_than_its_repeat() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").ttl(TTL * 100).acquire()).unwrap();
    faults.hold_request(Op::Release);
    let mut release = Probe::new(guard.release());
    release.pend();
    bench.clock.advance(secs(10));
    let error = release.ready().unwrap_err();
    assert_eq!(error.kind(), lockkeeper::ErrorKind::Unavailable);
    faults.heal();
    bench.clock.advance(secs(11));
    empty(&keeper);
    assert!(bench.record("x").is_none());
}
