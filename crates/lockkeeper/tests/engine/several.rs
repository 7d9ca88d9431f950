//! Several locks in one call: how many calls there are, and what a lost reply or a busy name changes.

use crate::common::{Bench, Probe, empty, now, secs, until};
use lockkeeper::testing::Op;
use lockkeeper::{ErrorKind, LossReason};

const FIVE: [&str; 5] = ["e", "a", "c", "b", "d"];

#[test]
fn free_names_cost_one_call_and_their_release_another() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let all = now(keeper.lock_all(FIVE).acquire()).unwrap();
    assert_eq!(faults.asked(Op::Acquire), 1);
    let names: Vec<String> = all.leases().map(|lease| lease.name().to_string()).collect();
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
    now(all.release()).unwrap();
    assert_eq!(faults.asked(Op::Release), 1);
    assert!(FIVE.iter().all(|name| bench.record(name).is_none()));
    empty(&keeper);
}

#[test]
fn only_names_before_the_one_that_is_waited_for_are_held() {
    let bench = Bench::new();
    let ((_, a), (_, b)) = (bench.keeper(), bench.keeper());
    let middle = now(a.lock("c").acquire()).unwrap();
    let mut waiting = Probe::new(async { b.lock_all(FIVE).acquire().await });
    waiting.pend();
    until("in line", || {
        let _ = waiting.poll();
        bench.waiting("c") == 1
    });
    let held = |name: &str| bench.record(name).is_some_and(|r| !r.holders.is_empty());
    assert_eq!(["a", "b", "d", "e"].map(held), [true, true, false, false]);
    now(middle.release()).unwrap();
    let all = waiting.finish().unwrap();
    assert!(FIVE.iter().all(|name| held(name)));
    now(all.release()).unwrap();
    empty(&b);
}

#[test]
fn a_lost_reply_is_asked_for_again() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    faults.lose_reply(Op::Acquire, 1);
    let all = now(keeper.lock_all(FIVE).acquire()).unwrap();
    assert_eq!(all.leases().count(), 5);
    faults.lose_reply(Op::Release, 1);
    assert_eq!(now(all.release()).unwrap_err().kind(), ErrorKind::Unavailable);
    bench.clock.advance(secs(30));
    assert!(FIVE.iter().all(|name| bench.record(name).is_none()), "the keeper repeats the release");
    empty(&keeper);
}

#[test]
fn the_first_loss_ends_the_work_and_the_rest_is_released() {
    let bench = Bench::new();
    let (_, keeper) = bench.keeper();
    let all = now(keeper.lock_all(FIVE).acquire()).unwrap();
    lockkeeper::testing::lose(all.get("d").unwrap().lease(), LossReason::Broken);
    let (name, reason) = now(all.lost());
    assert_eq!((name.to_string().as_str(), reason), ("d", LossReason::Broken));
    assert_eq!(now(all.run(async {})).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(now(all.release()).unwrap_err().kind(), ErrorKind::Lost);
    bench.settle();
    assert!(FIVE.iter().all(|name| bench.record(name).is_none()));
}

#[test]
fn a_second_grant_of_lock_any_is_given_back() {
    let bench = Bench::new();
    let ((_, a), (_, b)) = (bench.keeper(), bench.keeper());
    let held: Vec<_> = ["p", "q"].into_iter().map(|name| now(a.lock(name).acquire()).unwrap()).collect();
    let mut waiting = Probe::new(async { b.lock_any(["p", "q"]).acquire().await });
    until("in both lines", || {
        let _ = waiting.poll();
        bench.waiting("p") + bench.waiting("q") == 2
    });
    for guard in held {
        now(guard.release()).unwrap();
    }
    let one = waiting.finish().unwrap();
    let other = if one.name().to_string() == "p" { "q" } else { "p" };
    until("given back", || bench.record(other).is_none());
    now(one.release()).unwrap();
    empty(&b);
}
