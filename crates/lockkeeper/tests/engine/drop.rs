//! Futures dropped at any await, guards dropped anywhere: row 11 of the failure catalogue, and `with`.

use crate::common::misbehaving::Misbehaving;
use crate::common::{Bench, Probe, TTL, empty, ms, now, real, secs, until};
use lockkeeper::stores::memory::MemoryStore;
use lockkeeper::testing::{Faults, Op};
use lockkeeper::{Error, ErrorKind, Keeper, LossReason, Phase};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

type Subject = fn(Keeper) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// Every public future, from a keeper on a fresh store.
const SUBJECTS: [(&str, Subject); 12] = [
    ("acquire", |k| Box::pin(async move { drop(k.lock("x").acquire().await) })),
    ("try_acquire", |k| Box::pin(async move { drop(k.lock("x").try_acquire().await) })),
    ("acquire with a limit", |k| Box::pin(async move { drop(k.lock("x").wait(ms(3)).acquire().await) })),
    ("release", |k| {
        Box::pin(async move {
            if let Ok(guard) = k.lock("x").acquire().await {
                drop(guard.release().await);
            }
        })
    }),
    ("with", |k| Box::pin(async move { drop(k.lock("x").with(|_| async { Ok::<_, Error>(()) }).await) })),
    ("run", |k| {
        Box::pin(async move {
            if let Ok(guard) = k.lock("x").acquire().await {
                drop(guard.run(nap()).await);
            }
        })
    }),
    ("close", |k| {
        Box::pin(async move {
            let guard = k.lock("x").acquire().await;
            drop(k.close(ms(3)).await);
            drop(guard);
        })
    }),
    ("lost", |k| {
        Box::pin(async move {
            if let Ok(guard) = k.lock("x").max_hold(ms(10)).acquire().await {
                guard.lost().await;
            }
        })
    }),
    ("ends_within", |k| {
        Box::pin(async move {
            if let Ok(guard) = k.lock("x").max_hold(ms(10)).acquire().await {
                guard.lease().ends_within(ms(2)).await;
            }
        })
    }),
    ("lock_all", |k| Box::pin(async move { drop(k.lock_all(["w", "x", "y"]).acquire().await) })),
    ("lock_all and release", |k| {
        Box::pin(async move {
            if let Ok(all) = k.lock_all(["w", "x", "y"]).wait(ms(3)).acquire().await {
                drop(all.release().await);
            }
        })
    }),
    ("lock_any", |k| Box::pin(async move { drop(k.lock_any(["w", "x", "y"]).acquire().await) })),
];

/// Pending twice.
async fn nap() {
    for _ in 0..2 {
        let mut slept = false;
        std::future::poll_fn(|cx: &mut Context<'_>| {
            cx.waker().wake_by_ref();
            if std::mem::replace(&mut slept, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

type Setting = (&'static str, fn(&Faults));

/// Every setting of the switches.
const SETTINGS: [Setting; 9] = [
    ("nothing", |_| {}),
    ("lost acquire", |f| f.lose_reply(Op::Acquire, 1)),
    ("cut acquire", |f| f.cut(Op::Acquire, 1)),
    ("acquires held before", |f| f.hold_request(Op::Acquire)),
    ("acquires held after", |f| f.hold_reply(Op::Acquire)),
    ("releases held before", |f| f.hold_request(Op::Release)),
    ("releases held after", |f| f.hold_reply(Op::Release)),
    ("lost release", |f| f.lose_reply(Op::Release, 2)),
    ("deaf", |f| f.deafen(true)),
];

/// Drops `subject` after `polls` polls; whether it had ended before.
fn sweep_one(what: &str, subject: Subject, set: fn(&Faults), polls: usize, contended: bool) -> bool {
    let store = MemoryStore::new();
    let ((faults, keeper), (_, other)) = (real(&store, ms(500)), real(&store, ms(500)));
    let held = contended.then(|| now(other.lock("x").acquire()).expect("free"));
    set(&faults);
    let mut probe = Probe::new(subject(keeper.clone()));
    let mut ended = false;
    for n in 0..polls {
        ended = probe.poll().is_ready();
        if ended {
            break;
        }
        if n == 1 {
            faults.heal();
        }
        // As an executor would: the next poll comes after a wake-up.
        let end = Instant::now() + ms(2);
        while !probe.woken() && Instant::now() < end {
            std::thread::yield_now();
        }
    }
    drop(probe);
    drop(held);
    faults.heal();
    let began = Instant::now();
    for name in ["w", "x", "y"] {
        let guard = now(other.lock(name).wait(secs(15)).acquire()).unwrap_or_else(|e| panic!("{what}: {e:?}"));
        let took = began.elapsed();
        assert!(took < secs(5), "{what}: free after {took:?}");
        now(guard.release()).expect("held");
    }
    empty(&keeper);
    ended
}

fn sweep(contended: bool) {
    for (setting, set) in SETTINGS {
        for (name, subject) in SUBJECTS {
            for polls in 0..6 {
                let what = format!("{name}, {setting}, dropped after {polls} polls, contended: {contended}");
                if sweep_one(&what, subject, set, polls, contended) {
                    break;
                }
            }
        }
    }
}

#[test]
fn row_11_any_future_dropped_at_any_await_leaves_nothing() {
    sweep(false);
}

#[test]
fn row_11_the_same_on_a_name_that_is_held() {
    sweep(true);
}

#[test]
fn row_11_a_guard_dropped_with_no_runtime_inside_one_that_ends_or_in_a_panic_is_released() {
    let bench = Bench::new();
    let (_, keeper) = bench.keeper();
    let free = || {
        bench.settle();
        empty(&keeper);
        assert!(bench.record("x").is_none());
    };
    drop(now(keeper.lock("x").acquire()).unwrap());
    free();

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let (lock, (tell, told)) = (keeper.lock("x"), std::sync::mpsc::channel());
    runtime.spawn(async move {
        let _guard = lock.acquire().await.unwrap();
        tell.send(()).unwrap();
        std::future::pending::<()>().await
    });
    told.recv().unwrap();
    drop(runtime);
    free();

    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = now(keeper.lock("x").acquire()).unwrap();
        resume_unwind(Box::new("injected"));
    }));
    assert!(panicked.is_err());
    free();
}

#[test]
fn row_11_a_runtime_that_ends_during_an_acquire_leaves_nothing() {
    let bench = Bench::new();
    let ((_, a), (faults, b)) = (bench.keeper(), bench.keeper());
    let held = now(a.lock("x").acquire()).unwrap();
    for in_flight in [true, false] {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let lock = b.lock("x");
        let asked = faults.asked(Op::Acquire);
        if in_flight {
            faults.hold_request(Op::Acquire);
        }
        runtime.spawn(async move { drop(lock.acquire().await) });
        now(faults.until_asked(Op::Acquire, asked + 1));
        if !in_flight {
            until("in line", || bench.waiting("x") == 1);
        }
        drop(runtime);
        faults.heal();
        bench.settle();
        empty(&b);
    }
    until("no claim waits", || bench.waiting("x") == 0);
    drop(held);
}

#[test]
fn row_11_a_waker_that_drops_its_task_is_no_deadlock() {
    /// An executor that has ended: waking a task drops it.
    struct Ended(std::sync::Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);
    impl std::task::Wake for Ended {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
        }
    }
    let bench = Bench::new();
    let ((_, a), (_, b)) = (bench.keeper(), bench.keeper());
    let held = now(a.lock("x").acquire()).unwrap();
    let start = |future: Pin<Box<dyn Future<Output = ()> + Send>>| {
        let task = Arc::new(Ended(std::sync::Mutex::new(Some(future))));
        let waker = std::task::Waker::from(task.clone());
        let mut future = task.0.lock().unwrap().take().unwrap();
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        *task.0.lock().unwrap() = Some(future);
        task
    };
    let gone = |task: &Ended| task.0.lock().unwrap().is_none();
    let (lock, guard) = (b.lock("x"), now(b.lock("y").acquire()).unwrap());
    let waiter = start(Box::pin(async move { drop(lock.acquire().await) }));
    let watcher = start(Box::pin(async move {
        guard.lost().await;
    }));
    let lock = b.lock("x").wait(secs(5));
    let limited = start(Box::pin(async move { drop(lock.acquire().await) }));
    now(held.release()).unwrap(); // wakes the waiter, whose end passes the grant on, and so on
    until("the waiters are gone", || gone(&waiter) && gone(&limited));
    now(b.break_lock("y", bench.record("y").unwrap().holders[0].token.unwrap())).unwrap();
    bench.clock.advance(TTL);
    until("the watcher is gone", || gone(&watcher));
    empty(&b);
    assert!(bench.record("x").is_none() && bench.record("y").is_none());
}

#[test]
fn row_11_a_store_that_panics_in_a_callers_call_leaves_nothing() {
    let bench = Bench::new();
    let odd = Arc::new(Misbehaving::new(bench.store.share()));
    let keeper = Keeper::builder().clock(&bench.clock).open(odd.clone()).unwrap();
    odd.acquire_panics.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| now(keeper.lock("x").acquire()))).is_err());
    odd.acquire_panics.store(false, Ordering::SeqCst);
    bench.settle();
    empty(&keeper);
    let guard = now(keeper.lock("x").acquire()).unwrap();
    odd.release_panics.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| now(guard.release()))).is_err());
    odd.release_panics.store(false, Ordering::SeqCst);
    // Long enough for a second try, in case the thread panicked too.
    bench.clock.advance(TTL / 3 + secs(1));
    empty(&keeper);
    assert!(bench.record("x").is_none());
}

#[test]
fn with_releases_on_success_error_panic_and_cancellation() {
    let bench = Bench::new();
    let (_, keeper) = bench.keeper();
    let lock = keeper.lock("x");
    let free = || {
        bench.settle();
        empty(&keeper);
        assert!(bench.record("x").is_none());
    };
    assert_eq!(now(lock.with(|lease| async move { lease.check().map(|()| 7) })).unwrap(), 7);
    free();
    let failed = now(lock.with(|_| async { Err::<(), _>(Error::unavailable("the body's own")) })).unwrap_err();
    assert_eq!(failed.message(), "the body's own");
    free();
    let body = lock.with(|_| async { resume_unwind(Box::new("the body's own")) as Result<(), Error> });
    let panic = catch_unwind(AssertUnwindSafe(|| now(body))).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"the body's own"), "goes on with what the body threw");
    free();
    let dropped = Arc::new(());
    let inside = dropped.clone();
    let mut body = Probe::new(lock.with(|_| async move {
        let _inside = inside;
        std::future::pending::<Result<(), Error>>().await
    }));
    body.pend();
    drop(body);
    assert_eq!(Arc::strong_count(&dropped), 1);
    free();
}

#[test]
fn with_drops_the_body_when_the_lock_is_lost_and_says_so() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    let (lock, ran_on) = (keeper.lock("x"), Arc::new(AtomicBool::new(false)));
    let (tell, lease) = std::sync::mpsc::channel();
    let flag = ran_on.clone();
    let mut body = Probe::new(lock.with(|lease| async move {
        tell.send(lease.clone()).unwrap();
        lease.lost().await;
        flag.store(true, Ordering::SeqCst);
        Ok::<_, Error>(())
    }));
    body.pend();
    let lease = lease.recv().unwrap();
    faults.cut(Op::Renew, u32::MAX);
    bench.clock.advance(TTL);
    assert_eq!(lease.phase(), Phase::Lost(LossReason::Expired));
    // The body is polled once more after the loss. It may see the loss, but its success does not count.
    assert_eq!(body.ready().unwrap_err().kind(), ErrorKind::Lost);
    drop(body);
    faults.heal();
    bench.settle();
    empty(&keeper);
}

#[test]
fn with_keeps_a_success_whose_release_failed() {
    let bench = Bench::new();
    let (faults, keeper) = bench.keeper();
    faults.cut(Op::Release, 2);
    assert_eq!(now(keeper.lock("x").with(|_| async { Ok::<_, Error>(1) })).unwrap(), 1);
    assert!(bench.record("x").is_some());
    bench.clock.advance(Duration::from_secs(1));
    assert!(bench.record("x").is_none(), "the keeper has repeated the release");
    empty(&keeper);
}

#[test]
fn the_blocking_face_tells_of_a_loss_and_not_of_a_release() {
    let bench = Bench::new();
    let (_, store) = bench.faulty();
    let keeper = lockkeeper::blocking::Keeper::builder().clock(&bench.clock).open(store).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let guard = keeper.lock("x").acquire().unwrap();
    let tell_released = tell.clone();
    guard.on_lost(move |reason| tell_released.send(("released", reason)).unwrap()).unwrap();
    guard.release().unwrap();
    let guard = keeper.lock("x").acquire().unwrap();
    guard.on_lost(move |reason| tell.send(("lost", reason)).unwrap()).unwrap();
    bench.clock.suspend(TTL);
    assert_eq!(told.recv(), Ok(("lost", LossReason::Expired)));
    assert!(told.recv().is_err(), "both watchers have ended, one without a word");
    assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Lost);
}
