//! What schedules have found, one test for each.

use crate::network::{Line, Op, What, World};
use crate::tasks::Probe;
use crate::truth::Way;
use lockkeeper::store::{Claim, Stamp};
use lockkeeper::testing::Clock;
use lockkeeper::{ErrorKind, HolderId, Keeper, LockName};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

fn keeper() -> (World, Clock, Keeper) {
    keeper_of(false)
}

/// A keeper of a store that keeps calls in order, or of one that does not.
fn keeper_of(ordered: bool) -> (World, Clock, Keeper) {
    let (world, clock) = (World::default(), Clock::by_hand());
    world.lock().sinks = vec![None];
    world.lock().truth.habits.queue = true;
    world.lock().truth.habits.ordered = ordered;
    let store = Arc::new(Line { world: world.clone(), keeper: 0 });
    let keeper = Keeper::builder().clock(&clock).drop_timeout(Duration::ZERO).ttl(Duration::from_secs(1)).open(store);
    run(&clock);
    (world, clock, keeper.unwrap())
}

fn run(clock: &Clock) {
    while let Some(job) = clock.ready_job() {
        clock.poll_job(job);
    }
}

fn under_way(world: &World) -> Vec<Op> {
    let sent = |what: &What| if let What::Request { op, .. } = what { Some(*op) } else { None };
    world.lock().messages.iter().filter_map(|message| sent(&message.what)).collect()
}

/// The release was never sent, because the claim's lease would have ended during the pause. But the acquire was still on
/// its way, and its grant kept others out for a whole TTL.
#[test]
fn a_claim_dropped_before_a_pause_longer_than_its_ttl_is_still_released() {
    let (world, clock, keeper) = keeper();
    let lock = keeper.lock("a");
    let mut asking = Probe::new(async move { lock.acquire().await });
    assert!(asking.poll().is_pending());
    drop(asking);
    clock.move_on(Duration::from_secs(5));
    run(&clock);
    assert_eq!(under_way(&world), [Op::Acquire, Op::Release]);
    // The release arrives first, and its tombstone stops the acquire.
    world.lock().deliver(1);
    world.lock().deliver(0);
    assert!(world.lock().truth.leases.is_empty());
}

/// A waiter that gave up was let in at the end of its place, while its process was paused, and was never released: the
/// keeper counted one TTL from the moment the waiter gave up.
#[test]
fn a_waiter_that_gave_up_before_a_pause_longer_than_its_ttl_is_still_released() {
    let (world, clock, keeper) = keeper();
    let (name, holder) = (LockName::new("a").unwrap(), HolderId::from_u128(u128::MAX));
    let other = Claim::new(name, holder, Duration::from_secs(9), Stamp::default(), Arc::default());
    world.lock().truth.acquire(&other, Way { keeper: 0, copy: false, slow: false }, 0);
    let lock = keeper.lock("a").wait(Duration::from_millis(30));
    let mut asking = Probe::new(async move { lock.acquire().await });
    assert!(asking.poll().is_pending());
    world.lock().deliver(0);
    world.lock().deliver(0);
    assert!(asking.poll().is_pending());
    assert_eq!(world.lock().truth.waiters.len(), 1);
    clock.move_on(Duration::from_millis(30));
    let Poll::Ready(Err(error)) = asking.poll() else { panic!("still waits") };
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    clock.move_on(Duration::from_secs(5));
    run(&clock);
    assert_eq!(under_way(&world), [Op::Release]);
}

/// The wait of a second task was over while the first one's release was under way, and it was told of an outage.
#[test]
fn a_wait_that_ends_while_the_holder_releases_finds_the_lock_busy() {
    let (world, clock, keeper) = keeper();
    let (lock, short) = (keeper.lock("a"), keeper.lock("a").wait(Duration::from_millis(30)));
    let mut first = Probe::new(async move { lock.acquire().await });
    assert!(first.poll().is_pending());
    world.lock().deliver(0);
    world.lock().deliver(0);
    let Poll::Ready(Ok(guard)) = first.poll() else { panic!("not granted") };
    let mut second = Probe::new(async move { short.acquire().await });
    assert!(second.poll().is_pending());
    let mut releasing = Probe::new(guard.release());
    assert!(releasing.poll().is_pending());
    assert_eq!(under_way(&world), [Op::Release]);
    clock.move_on(Duration::from_millis(30));
    let Poll::Ready(Err(error)) = second.poll() else { panic!("still waits") };
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
}

/// The wait of a task was over when the next task's call had been under way for a moment, and it was told of an outage.
#[test]
fn a_wait_that_ends_at_the_next_tasks_turn_finds_the_lock_busy() {
    let (world, clock, keeper) = keeper_of(true);
    let ask = |wait: Option<u64>| {
        let lock = keeper.lock("a");
        let lock = wait.map_or(lock.clone(), |wait| lock.wait(Duration::from_millis(wait)));
        let mut asking = Probe::new(async move { lock.acquire().await });
        assert!(asking.poll().is_pending());
        asking
    };
    let mut first = ask(None);
    world.lock().deliver(0);
    world.lock().deliver(0);
    let Poll::Ready(Ok(guard)) = first.poll() else { panic!("not granted") };
    let (mut next, mut short) = (ask(None), ask(Some(30)));
    let mut releasing = Probe::new(guard.release());
    assert!(releasing.poll().is_pending());
    assert_eq!(under_way(&world), [Op::Release, Op::Acquire], "the release sends the next task's call behind it");
    clock.move_on(Duration::from_millis(30));
    let Poll::Ready(Err(error)) = short.poll() else { panic!("still waits") };
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(next.poll().is_pending());
}
