//! Tasks of one keeper and of several in one line; batches; what the metrics say.

use crate::common::misbehaving::Misbehaving;
use crate::common::warnings::Warnings;
use crate::common::{Bench, Probe, TTL, empty, ms, now, secs, until};
use lockkeeper::store::{Event, Grant, Store};
use lockkeeper::testing::{self, Op};
use lockkeeper::{ErrorKind, Fence, Keeper, LossReason, Phase};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use std::collections::HashMap;
use std::sync::Arc;

#[tokio::test]
async fn a_release_hands_over_to_another_keeper() {
    let a = Keeper::connect("memory:handed-over").await.unwrap();
    let b = Keeper::connect("memory:handed-over").await.unwrap();
    let held = a.lock("x").acquire().await.unwrap();
    let waiter = tokio::spawn(async move { b.lock("x").acquire().await.unwrap().token() });
    while a.inspect("x").await.unwrap().unwrap().waiting == 0 {
        tokio::task::yield_now().await;
    }
    let first = held.token();
    held.release().await.unwrap();
    assert!(waiter.await.unwrap() > first);
}

#[test]
fn two_tasks_of_one_keeper_never_both_hold_and_come_in_order() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let lock = keeper.lock("x");
    let mut tasks: Vec<_> = (0..10).map(|_| Probe::new(lock.acquire())).collect();
    let mut held = tasks[0].ready().unwrap();
    tasks[1..].iter_mut().for_each(Probe::pend);
    assert_eq!(faults.asked(Op::Acquire), 1, "the others wait for their turn at home");
    for next in 1..10 {
        let token = held.token();
        now(held.release()).unwrap();
        tasks[next + 1..].iter_mut().for_each(Probe::pend);
        held = tasks[next].ready().unwrap();
        assert!(held.token() > token, "every grant has a token of its own");
        tasks[next + 1..].iter_mut().for_each(Probe::pend);
    }
    now(held.release()).unwrap();
    drop(tasks);
    empty(&keeper);
}

#[test]
fn where_calls_keep_their_order_the_next_task_asks_right_behind_a_release() {
    for (ordered, queue) in [(true, true), (false, true), (true, false)] {
        let bench = Bench::new();
        let (faults, keeper) = bench.keeper_that_says(ordered, queue);
        let lock = keeper.lock("x");
        let held = now(lock.acquire()).unwrap();
        let (token, mut next) = (held.token(), Probe::new(lock.acquire()));
        next.pend();
        faults.hold_reply(Op::Release);
        let mut releasing = Probe::new(held.release());
        releasing.pend();
        assert_eq!(faults.done(Op::Release), 1, "the store has it, and its answer is on the way");
        if ordered && queue {
            let next = next.ready().unwrap();
            assert!(next.token() > token);
            faults.let_go(Op::Release);
            releasing.ready().unwrap();
            assert_eq!(next.phase(), Phase::Held, "the late answer is not about the next one");
            now(next.release()).unwrap();
        } else {
            next.pend();
            assert_eq!(faults.asked(Op::Acquire), 1, "it waits for the answer");
            faults.let_go(Op::Release);
            releasing.ready().unwrap();
            now(next.ready().unwrap().release()).unwrap();
        }
        empty(&keeper);
    }
}

#[test]
fn a_claim_that_overtakes_the_release_before_it_waits_in_line() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper_that_says(true, true);
    let lock = keeper.lock("x");
    let held = now(lock.acquire()).unwrap();
    let (token, mut next) = (held.token(), Probe::new(lock.acquire()));
    next.pend();
    faults.hold_request(Op::Release);
    let mut releasing = Probe::new(held.release());
    releasing.pend();
    next.pend();
    assert_eq!((faults.done(Op::Acquire), faults.done(Op::Release)), (2, 0), "asked, and told to wait");
    faults.let_go(Op::Release);
    releasing.ready().unwrap();
    let next = next.finish().unwrap();
    assert!(next.token() > token);
    now(next.release()).unwrap();
    empty(&keeper);
}

#[test]
fn the_next_task_inherits_the_place_of_one_that_gave_up() {
    let bench = Bench::new();
    let ((_, a), (_, b), (_, c)) = (bench.keeper(), bench.keeper(), bench.keeper());
    let held = now(a.lock("x").acquire()).unwrap();
    let (lock_b, lock_c) = (b.lock("x"), c.lock("x"));
    let (mut head, mut heir) = (Probe::new(lock_b.acquire()), Probe::new(lock_b.acquire()));
    head.pend();
    heir.pend();
    let mut later = Probe::new(lock_c.acquire());
    later.pend();
    assert_eq!(bench.waiting("x"), 2);
    drop(head);
    now(held.release()).unwrap();
    bench.settle();
    later.pend();
    let second = heir.finish().unwrap();
    later.pend();
    now(second.release()).unwrap();
    assert!(later.finish().is_ok());
}

#[test]
fn the_heir_of_a_wait_that_timed_out_keeps_the_place_too() {
    let bench = Bench::new();
    let ((_, a), (_, b), (_, c)) = (bench.keeper(), bench.keeper(), bench.keeper());
    let held = now(a.lock("x").acquire()).unwrap();
    let (short, long, other) = (b.lock("x").wait(secs(2)), b.lock("x"), c.lock("x"));
    let (mut head, mut heir) = (Probe::new(short.acquire()), Probe::new(long.acquire()));
    head.pend();
    heir.pend();
    let mut later = Probe::new(other.acquire());
    later.pend();
    bench.clock.advance(secs(2));
    assert_eq!(head.ready().unwrap_err().kind(), ErrorKind::Busy);
    bench.clock.advance(TTL);
    now(held.release()).unwrap();
    bench.settle();
    later.pend();
    assert!(heir.finish().is_ok());
}

#[test]
fn a_grant_that_arrives_as_the_head_is_dropped_goes_to_the_heir() {
    let bench = Bench::new();
    let ((_, a), (_, b), (_, c)) = (bench.keeper(), bench.keeper(), bench.keeper());
    let held = now(a.lock("x").acquire()).unwrap();
    let (lock_b, lock_c) = (b.lock("x"), c.lock("x"));
    let (mut head, mut heir) = (Probe::new(lock_b.acquire()), Probe::new(lock_b.acquire()));
    head.pend();
    heir.pend();
    let mut later = Probe::new(lock_c.acquire());
    later.pend();
    head.woken();
    now(held.release()).unwrap();
    bench.settle();
    assert!(head.woken(), "granted, and not picked up yet");
    drop(head);
    let granted = heir.ready().unwrap();
    later.pend();
    drop(granted);
    assert!(later.finish().is_ok());
    bench.settle();
    empty(&b);
}

#[test]
fn the_heir_repeats_a_call_that_went_down_with_its_task() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let lock = keeper.lock("x");
    faults.hold_reply(Op::Acquire);
    let (mut head, mut heir) = (Probe::new(lock.acquire()), Probe::new(lock.acquire()));
    head.pend();
    heir.pend();
    faults.let_go(Op::Acquire);
    drop(head);
    let guard = heir.ready().unwrap();
    assert_eq!(faults.asked(Op::Acquire), 2);
    assert_eq!(bench.record("x").unwrap().holders[0].token, Some(guard.token()), "the same claim, the same token");
    now(guard.release()).unwrap();
    assert!(bench.record("x").is_none());
}

#[test]
fn the_call_that_went_down_with_its_task_is_cancelled_for_good() {
    let bench = Bench::new();
    let odd = Arc::new(Misbehaving::new(bench.store.share()));
    let (faults, store) = testing::Faults::wrap(odd.clone());
    let keeper = Keeper::builder().clock(&bench.clock).open(store).unwrap();
    let lock = keeper.lock("x");
    faults.hold_reply(Op::Acquire);
    let (mut head, mut heir) = (Probe::new(lock.acquire()), Probe::new(lock.acquire()));
    head.pend();
    heir.pend();
    faults.let_go(Op::Acquire);
    drop(head);
    now(heir.ready().unwrap().release()).unwrap();
    bench.settle();
    empty(&keeper);
    // The first call arrives again, or only now.
    let late = odd.seen.lock().unwrap()[0].1.clone();
    now(bench.store.try_acquire(&[late])).pop().unwrap().unwrap();
    assert!(bench.record("x").is_none(), "no task would release it");
}

#[test]
fn a_push_that_comes_after_its_lease_costs_no_place_in_line() {
    let bench = Bench::new();
    let odd = Arc::new(Misbehaving::new(bench.store.share()));
    let keeper = Keeper::builder().clock(&bench.clock).open(odd.clone()).unwrap();
    let ((_, holder), (_, later)) = (bench.keeper(), bench.keeper());
    let held = now(holder.lock("x").acquire()).unwrap();
    let (first_lock, second_lock) = (keeper.lock("x"), later.lock("x"));
    let (mut first, mut second) = (Probe::new(first_lock.acquire()), Probe::new(second_lock.acquire()));
    first.pend();
    second.pend();
    let claim = odd.seen.lock().unwrap()[0].1.clone();
    odd.say(Event::Granted(claim.holder, Grant { token: held.token(), stamp: claim.stamp, lease: ms(1) }));
    bench.settle();
    first.pend();
    now(held.release()).unwrap();
    // Kept until the end: dropping it would let the second in.
    let _first = first.finish().unwrap();
    second.pend();
}

#[test]
fn a_try_on_a_name_of_the_same_keeper_costs_no_call() {
    let bench = Bench::new();
    let ((faults, a), (_, b)) = (bench.keeper(), bench.keeper());
    let held = now(a.lock("x").acquire()).unwrap();
    assert!(now(a.lock("x").try_acquire()).unwrap().is_none());
    assert_eq!(faults.asked(Op::Acquire), 1);
    let busy = now(a.lock("x").wait(ms(0)).acquire()).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert_eq!(busy.held().unwrap().remaining, Some(held.remaining()));
    bench.clock.advance(secs(3));
    let busy = now(a.lock("x").wait(ms(0)).acquire()).unwrap_err();
    assert_eq!(busy.held().unwrap().remaining, Some(held.remaining()), "by the clock at the call");
    // Nor does one while a task of the keeper waits in line.
    let lock = b.lock("x");
    let mut waiting = Probe::new(lock.acquire());
    waiting.pend();
    assert!(now(b.lock("x").try_acquire()).unwrap().is_none());
    assert_eq!(faults.asked(Op::Acquire), 1);
}

#[test]
fn shared_tasks_hold_together_and_keep_writers_out() {
    let bench = Bench::new();
    let ((_, a), (_, b)) = (bench.keeper(), bench.keeper());
    let readers: Vec<_> = (0..5).map(|n| now([&a, &b][n % 2].lock("x").shared().acquire()).unwrap()).collect();
    assert!(now(a.lock("x").try_acquire()).unwrap().is_none());
    let lock = b.lock("x");
    let mut writer = Probe::new(lock.acquire());
    writer.pend();
    assert!(now(a.lock("x").shared().try_acquire()).unwrap().is_none(), "a writer waits before it");
    let shared = a.lock("x").shared();
    let mut late: Vec<_> = (0..3).map(|_| Probe::new(shared.acquire())).collect();
    late.iter_mut().for_each(Probe::pend);
    drop(readers);
    let held = writer.finish().unwrap();
    late.iter_mut().for_each(Probe::pend);
    now(held.release()).unwrap();
    let late: Vec<_> = late.into_iter().map(|task| task.finish().unwrap()).collect();
    assert_eq!(bench.record("x").unwrap().holders.len(), 3);
    drop(late);
    bench.settle();
    empty(&a);
}

#[test]
fn permits_are_counted_over_keepers_and_tasks() {
    let bench = Bench::new();
    let ((_, a), (_, b)) = (bench.keeper(), bench.keeper());
    let (lock_a, lock_b) = (a.lock("x").permits(3), b.lock("x").permits(3));
    let held: Vec<_> = [&lock_a, &lock_a, &lock_b].iter().map(|l| now(l.acquire()).unwrap()).collect();
    assert!(now(lock_b.try_acquire()).unwrap().is_none());
    let (mut first, mut second) = (Probe::new(lock_a.acquire()), Probe::new(lock_b.acquire()));
    first.pend();
    second.pend();
    let mut held = held.into_iter();
    drop(held.next());
    let third = first.finish().unwrap();
    second.pend();
    drop(third);
    assert!(second.finish().is_ok());
    assert!(held.all(|guard| guard.check().is_ok()));
}

#[test]
fn guards_due_together_are_renewed_together() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let guards: Vec<_> = (0..100)
        .map(|n| {
            bench.clock.advance(std::time::Duration::from_micros(20));
            now(keeper.lock(format!("job/{n}")).acquire()).unwrap()
        })
        .collect();
    bench.clock.advance(TTL * 2);
    assert!(guards.iter().all(|g| g.phase() == Phase::Held));
    let calls = faults.done(Op::Renew);
    assert!((5..=12).contains(&calls), "{calls} calls for six rounds of 100");
}

#[test]
fn a_try_repeated_after_an_outage_is_cancelled_for_good() {
    let bench = Bench::new();
    let (faults, store) = testing::Faults::wrap(Arc::new(bench.store.share()));
    let odd = Arc::new(Misbehaving::over(store));
    let keeper = Keeper::builder().clock(&bench.clock).open(odd.clone()).unwrap();
    let (_, other) = bench.keeper();
    let held = now(other.lock("x").acquire()).unwrap();
    faults.cut(Op::Acquire, 1);
    assert!(now(keeper.lock("x").try_acquire()).unwrap().is_none(), "the second send was answered");
    bench.settle();
    empty(&keeper);
    now(held.release()).unwrap();
    // The first send arrives after all.
    let late = odd.seen.lock().unwrap()[0].1.clone();
    now(bench.store.try_acquire(&[late])).pop().unwrap().unwrap();
    assert!(bench.record("x").is_none(), "no task would release it");
}

#[test]
fn a_wait_without_a_limit_says_after_30_s_who_is_in_the_way() {
    let bench = Bench::new();
    let (_, store) = bench.faulty();
    let a = bench.builder().label("nightly import").open(store).unwrap();
    let (_, b) = bench.keeper();
    let held = now(a.lock("x").acquire()).unwrap();
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        let (lock, limited) = (b.lock("x"), b.lock("x").wait(secs(60)));
        let (mut waiting, mut other) = (Probe::new(lock.acquire()), Probe::new(limited.acquire()));
        for part in [secs(30) - ms(1), ms(1), secs(29)] {
            waiting.pend();
            other.pend();
            bench.clock.advance(part);
        }
        waiting.pend();
    });
    let said = warnings.text();
    assert!(said.contains("nightly import") && said.contains("lock=x"), "{said}");
    assert_eq!(said.matches("still waiting").count(), 1, "{said}");
    assert!(held.check().is_ok());
}

#[test]
fn the_metrics_tell_what_happened() {
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let bench = Bench::new();
    let (_, other) = bench.keeper();
    recorder.install().unwrap();
    let mut odd = Misbehaving::new(bench.store.share());
    odd.scheme = "renamed"; // told from the keepers of other tests
    let (faults, store) = testing::Faults::wrap(Arc::new(odd));
    let keeper = Keeper::builder().clock(&bench.clock).open(store).unwrap();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    bench.clock.advance(secs(10));
    faults.cut(Op::Renew, 1);
    bench.clock.advance(secs(15));
    now(guard.release()).unwrap();
    let held = now(other.lock("x").acquire()).unwrap();
    assert!(now(keeper.lock("x").try_acquire()).unwrap().is_none());
    faults.cut(Op::Acquire, 2);
    now(keeper.lock("x").try_acquire()).unwrap_err();
    let lock = keeper.lock("x");
    let mut waiting = Probe::new(lock.acquire());
    waiting.pend();
    drop(waiting);
    drop(held);
    bench.settle();
    faults.cut(Op::Release, 1);
    let stale = now(keeper.lock("x").acquire()).unwrap().pass().unwrap();
    bench.clock.advance(secs(1));
    let broken = now(keeper.lock("x").acquire()).unwrap();
    let fence = Fence::new("f", ()).unwrap();
    fence.enter(&broken.pass().unwrap(), |()| ()).unwrap();
    fence.enter(&stale, |()| ()).unwrap_err();
    testing::lose(broken.lease(), LossReason::Broken);
    let forgotten = now(keeper.lock("y").max_hold(secs(1)).acquire()).unwrap();
    bench.clock.advance(secs(1));
    drop(forgotten);
    bench.settle();

    let mut found: HashMap<String, f64> = HashMap::new();
    for (key, _, _, value) in snapshots.snapshot().into_vec() {
        let mut labels: Vec<_> = key.key().labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
        labels.sort();
        if labels.iter().any(|l| l.starts_with("store=") && l != "store=renamed") {
            continue;
        }
        labels.retain(|l| !l.starts_with("store="));
        let value = match value {
            DebugValue::Counter(n) => n as f64,
            DebugValue::Gauge(n) => n.into_inner(),
            DebugValue::Histogram(all) => all.len() as f64,
        };
        found.insert(format!("{} {}", key.key().name(), labels.join(",")).trim_end().to_owned(), value);
    }
    let wanted = [
        ("lockkeeper_acquisitions_total outcome=granted", 4.0),
        ("lockkeeper_acquisitions_total outcome=busy", 1.0),
        ("lockkeeper_acquisitions_total outcome=failed", 1.0),
        ("lockkeeper_acquisitions_total outcome=cancelled", 1.0),
        ("lockkeeper_wait_seconds", 6.0),
        ("lockkeeper_hold_seconds", 2.0),
        ("lockkeeper_release_margin_seconds", 2.0),
        ("lockkeeper_renewals_total outcome=failed", 1.0),
        ("lockkeeper_losses_total reason=broken", 1.0),
        ("lockkeeper_losses_total reason=max-hold", 1.0),
        ("lockkeeper_release_retries_total", 1.0),
        ("lockkeeper_waiters", 0.0),
    ];
    for (name, value) in wanted {
        assert_eq!(found.get(name), Some(&value), "{name} in {found:#?}");
    }
    assert!(found["lockkeeper_renewals_total outcome=renewed"] >= 2.0);
    assert!(found["lockkeeper_releases_total"] >= 3.0);
    assert!(found["lockkeeper_fence_rejections_total fence=in-process"] >= 1.0);
    until("nothing is left", || testing::leftovers(&keeper).claims == 0);
}

/// Looks at the keeper's tables whenever something is logged.
struct Nosy(Keeper, std::sync::mpsc::Sender<()>);

impl tracing::Subscriber for Nosy {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn event(&self, _: &tracing::Event<'_>) {
        lockkeeper::testing::leftovers(&self.0);
        let _ = self.1.send(());
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_subscriber_may_use_the_keeper_it_is_told_about() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let guard = now(keeper.lock("x").acquire()).unwrap();
    faults.cut(Op::Release, 1);
    let (told, heard) = std::sync::mpsc::channel();
    // On a thread of its own, because a failure would hang for ever.
    std::thread::spawn(move || {
        tracing::subscriber::with_default(Nosy(keeper, told), || now(guard.release()).unwrap_err());
    });
    heard.recv_timeout(crate::common::PATIENCE).expect("the failed release is told");
}
