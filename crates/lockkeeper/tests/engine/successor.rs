//! The next task's call, which the task of a release makes for it.

use crate::common::misbehaving::Misbehaving;
use crate::common::{Bench, Probe, TTL, empty, now, secs};
use lockkeeper::store::Store;
use lockkeeper::testing::{Faults, Op};
use lockkeeper::{ErrorKind, Guard, Keeper, Lock, Result};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// A keeper whose calls keep their order.
fn keeper(bench: &Bench) -> (Faults, Keeper) {
    bench.keeper_that_says(true, true)
}

/// The same, and the store itself.
fn odd_keeper(bench: &Bench) -> (Arc<Misbehaving>, Faults, Keeper) {
    let mut odd = Misbehaving::new(bench.store.share());
    odd.ordered = true;
    let odd = Arc::new(odd);
    let (faults, store) = Faults::wrap(odd.clone() as Arc<dyn Store>);
    let keeper = bench.builder().open(store).expect("opened");
    (odd, faults, keeper)
}

/// The lock is held, another task waits for it, and the holder releases; neither answer has come yet.
fn handing_over<'a>(faults: &Faults, lock: &'a Lock) -> (Probe<'a, Result<Guard>>, Probe<'a, Result<()>>) {
    let held = now(lock.acquire()).expect("free");
    let mut next = Probe::new(lock.acquire());
    next.pend();
    faults.hold_reply(Op::Release);
    faults.hold_reply(Op::Acquire);
    let mut releasing = Probe::new(held.release());
    releasing.pend();
    (next, releasing)
}

#[test]
fn the_store_is_asked_for_a_task_that_was_not_polled() {
    let bench = Bench::new();
    let (faults, keeper) = keeper(&bench);
    let lock = keeper.lock("x");
    let (mut next, mut releasing) = handing_over(&faults, &lock);
    assert_eq!((faults.done(Op::Release), faults.done(Op::Acquire)), (1, 2), "one behind the other");
    assert!(!next.woken(), "it has nothing to do before the answer");
    faults.let_go(Op::Acquire);
    assert!(next.woken(), "the answer is for it");
    let second = next.ready().unwrap();
    releasing.pend();
    faults.let_go(Op::Release);
    releasing.ready().unwrap();
    now(second.release()).unwrap();
    empty(&keeper);
}

/// Other keepers most likely wait too, and are let in first.
#[test]
fn behind_a_grant_from_the_line_the_next_task_waits_for_the_answer() {
    let bench = Bench::new();
    let ((_, other), (faults, keeper)) = (bench.keeper(), keeper(&bench));
    let held = now(other.lock("x").acquire()).unwrap();
    let lock = keeper.lock("x");
    let (mut first, mut next) = (Probe::new(lock.acquire()), Probe::new(lock.acquire()));
    first.pend();
    next.pend();
    now(held.release()).unwrap();
    let first = first.finish().unwrap();
    faults.hold_reply(Op::Release);
    let mut releasing = Probe::new(first.release());
    releasing.pend();
    assert_eq!((faults.asked(Op::Release), faults.asked(Op::Acquire)), (1, 1));
    faults.let_go(Op::Release);
    releasing.ready().unwrap();
    now(next.finish().unwrap().release()).unwrap();
    empty(&keeper);
}

#[test]
fn the_call_goes_on_when_the_release_is_given_up() {
    let bench = Bench::new();
    let (faults, keeper) = keeper(&bench);
    let lock = keeper.lock("x");
    let (mut next, releasing) = handing_over(&faults, &lock);
    drop(releasing);
    faults.heal();
    let second = next.ready().unwrap();
    now(second.release()).unwrap();
    empty(&keeper);
}

#[test]
fn a_task_that_leaves_takes_the_call_with_it() {
    let bench = Bench::new();
    let (faults, keeper) = keeper(&bench);
    let lock = keeper.lock("x");
    let (next, mut releasing) = handing_over(&faults, &lock);
    drop(next);
    faults.heal();
    releasing.ready().unwrap();
    empty(&keeper);
    assert!(bench.record("x").is_none(), "the grant was given back");
}

#[test]
fn an_heir_repeats_the_call_of_a_task_that_left() {
    let bench = Bench::new();
    let (faults, keeper) = keeper(&bench);
    let lock = keeper.lock("x");
    let (next, mut releasing) = handing_over(&faults, &lock);
    let mut heir = Probe::new(lock.acquire());
    heir.pend();
    drop(next);
    faults.heal();
    let heir = heir.ready().unwrap();
    assert_eq!(faults.done(Op::Acquire), 3, "the same claim, once more");
    releasing.ready().unwrap();
    now(heir.release()).unwrap();
    empty(&keeper);
}

#[test]
fn a_call_without_an_answer_ends_at_its_limit() {
    let bench = Bench::new();
    let (faults, keeper) = keeper(&bench);
    let lock = keeper.lock("x");
    let (mut next, releasing) = handing_over(&faults, &lock);
    assert!(!next.woken());
    bench.clock.advance(TTL / 3);
    assert!(next.woken(), "its alarm rings, though it has not been polled since the call was made");
    assert_eq!(next.ready().unwrap_err().kind(), ErrorKind::Unavailable, "as with a call of its own");
    drop(next);
    faults.heal();
    drop(releasing);
    empty(&keeper);
    assert!(bench.record("x").is_none(), "the grant was given back");
}

#[test]
fn a_wait_ends_while_the_call_is_under_way() {
    let bench = Bench::new();
    let (faults, keeper) = keeper(&bench);
    let held = now(keeper.lock("x").acquire()).unwrap();
    let lock = keeper.lock("x").wait(secs(2));
    let mut next = Probe::new(lock.acquire());
    next.pend();
    faults.hold_reply(Op::Release);
    faults.hold_request(Op::Acquire);
    let mut releasing = Probe::new(held.release());
    releasing.pend();
    bench.clock.advance(secs(2));
    let error = next.finish().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "the store did not answer: {error}");
    faults.heal();
    releasing.ready().unwrap();
    empty(&keeper);
}

type Acquiring = Pin<Box<dyn Future<Output = Result<Guard>> + Send>>;

/// While its call was being made, the next task was polled by another executor.
#[test]
fn a_task_that_moved_between_executors_is_woken_where_it_is() {
    let bench = Bench::new();
    let (odd, faults, keeper) = odd_keeper(&bench);
    let lock = keeper.lock("x");
    let held = now(lock.acquire()).unwrap();
    let next: Acquiring = Box::pin(async move { lock.acquire().await });
    let next = Arc::new(Mutex::new(next));
    let asking = |next: Arc<Mutex<Acquiring>>| Probe::new(poll_fn(move |cx| next.lock().unwrap().as_mut().poll(cx)));
    asking(next.clone()).pend();
    let moved = Arc::new(Mutex::new(asking(next)));
    let moving = moved.clone();
    odd.on_acquire(move || moving.lock().unwrap().pend());
    faults.hold_reply(Op::Acquire);
    faults.hold_reply(Op::Release);
    let mut releasing = Probe::new(held.release());
    releasing.pend();
    assert!(moved.lock().unwrap().woken(), "it takes the call over");
    moved.lock().unwrap().pend();
    faults.let_go(Op::Acquire);
    assert!(moved.lock().unwrap().woken(), "by the executor where it is now");
    let second = moved.lock().unwrap().ready().unwrap();
    faults.let_go(Op::Release);
    releasing.ready().unwrap();
    now(second.release()).unwrap();
    empty(&keeper);
}

#[test]
fn closing_the_keeper_ends_a_task_whose_call_is_under_way() {
    let bench = Bench::new();
    let (faults, keeper) = keeper(&bench);
    let lock = keeper.lock("x");
    let (mut next, releasing) = handing_over(&faults, &lock);
    let mut closing = Probe::new(keeper.close(secs(1)));
    closing.pend();
    assert!(next.woken());
    assert_eq!(next.ready().unwrap_err().kind(), ErrorKind::Closed);
    faults.heal();
    drop(releasing);
    drop(next);
    let left = closing.finish().unwrap();
    assert_eq!((left.held, left.releasing), (0, 0));
    assert!(bench.record("x").is_none(), "the grant was given back");
}

/// The release makes the next task's call, and the store panics in it: that is no reason for the next task to hang.
#[test]
fn a_task_asks_by_itself_when_the_store_panics_in_the_call_made_for_it() {
    let bench = Bench::new();
    let (odd, faults, keeper) = odd_keeper(&bench);
    let lock = keeper.lock("x");
    let held = now(lock.acquire()).unwrap();
    let mut next = Probe::new(lock.acquire());
    next.pend();
    faults.hold_reply(Op::Release);
    odd.acquire_panics.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| now(held.release()))).is_err());
    odd.acquire_panics.store(false, Ordering::SeqCst);
    faults.heal();
    let second = next.finish().unwrap();
    now(second.release()).unwrap();
    empty(&keeper);
}
