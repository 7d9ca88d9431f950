//! `once` on every store: one effect, one result, whatever becomes of its runner.
#![allow(clippy::unwrap_used, reason = "tests")]

#[cfg(all(feature = "redis", feature = "fence-tokio-postgres-0-7"))]
mod killed;
mod unanswered;

use crate::Place;
use lockkeeper::recipes::Once;
use lockkeeper::recipes::once::{InProgress, MAX_RESULT, OnFailure};
use lockkeeper::{Error, ErrorKind, Keeper, Result};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use testkit::SOON;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

/// The tests' patience with another caller; reached only when something hangs.
fn once(keeper: &Keeper, place: &Place) -> Once {
    keeper.once(&place.name).wait(SOON)
}

/// A run that returns `value`; panics if the work must not run.
async fn value(once: &Once, value: u32) -> Result<u32> {
    once.run(async |_| Ok(value)).await
}

async fn stored(once: &Once) -> Result<u32> {
    once.run(async |_| -> Result<u32> { panic!("a second run") }).await
}

/// A runner in the middle of its work, on a task of its own; it goes on when told.
async fn running(once: Once, result: u32) -> (JoinHandle<Result<u32>>, Arc<Notify>) {
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (inside, wait) = (begun.clone(), go.clone());
    let work = async move {
        let run = once.run(async move |_| {
            inside.notify_one();
            wait.notified().await;
            Ok::<_, Error>(result)
        });
        run.await
    };
    let task = tokio::spawn(work);
    begun.notified().await;
    (task, go)
}

pub(crate) async fn all_callers_get_the_first_result(place: Place) {
    let runs = Arc::new(AtomicU32::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..3 {
        let keeper = place.keeper().await;
        for _ in 0..8 {
            let (once, runs) = (once(&keeper, &place), runs.clone());
            callers.spawn(async move {
                once.run(async |running| {
                    assert_eq!((running.attempt(), running.taken_over()), (1, false));
                    tokio::time::sleep(Duration::from_millis(30)).await;
                    Ok::<_, Error>(runs.fetch_add(1, Ordering::SeqCst))
                })
                .await
            });
        }
    }
    let results: Vec<u32> = callers.join_all().await.into_iter().map(|result| result.expect("a result")).collect();
    assert_eq!((results, runs.load(Ordering::SeqCst)), (vec![0; 24], 1));
}

pub(crate) async fn a_stored_result_needs_no_lock(place: Place) {
    let keeper = place.keeper().await;
    assert_eq!(value(&once(&keeper, &place), 7).await.unwrap(), 7);
    let held = keeper.lock(format!("once/{}", place.name)).acquire().await.unwrap();
    assert_eq!(stored(&once(&keeper, &place)).await.unwrap(), 7);
    held.release().await.unwrap();
}

pub(crate) async fn a_caller_may_be_told_that_it_is_in_progress(place: Place) {
    let (first, second) = (place.keeper().await, place.keeper().await);
    let (runner, go) = running(once(&first, &place), 1).await;
    for keeper in [&first, &second] {
        let refused = stored(&once(keeper, &place).in_progress(InProgress::Refuse)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        assert!(refused.to_string().contains(&format!("'once/{}': another caller is running it", place.name)));
    }
    // Long enough for the store to answer at all, on a busy machine too.
    let mut wait = Duration::from_millis(20);
    let waits = loop {
        let refused = stored(&once(&second, &place).wait(wait)).await.unwrap_err();
        if refused.kind() != ErrorKind::Unavailable || wait > SOON {
            break refused;
        }
        wait *= 2;
    };
    assert_eq!(waits.kind(), ErrorKind::Busy, "{waits}");
    go.notify_one();
    assert_eq!(runner.await.unwrap().unwrap(), 1);
    assert_eq!(stored(&once(&second, &place).in_progress(InProgress::Refuse)).await.unwrap(), 1);
}

pub(crate) async fn another_request_under_the_key_is_refused(place: Place) {
    let (first, second) = (place.keeper().await, place.keeper().await);
    let (runner, go) = running(once(&first, &place).fingerprint("5 EUR"), 5).await;
    // No limit to its wait: it is refused before it waits.
    let other = second.once(&place.name).fingerprint("6 EUR");
    let refused = stored(&other).await.unwrap_err();
    assert_eq!((refused.kind(), refused.kind().http_status()), (ErrorKind::Mismatch, 422), "{refused}");
    go.notify_one();
    assert_eq!(runner.await.unwrap().unwrap(), 5);
    assert_eq!(stored(&other).await.unwrap_err().kind(), ErrorKind::Mismatch);
    assert_eq!(stored(&once(&second, &place).fingerprint("5 EUR")).await.unwrap(), 5);
    assert_eq!(stored(&once(&second, &place)).await.unwrap(), 5, "nothing to compare");
}

pub(crate) async fn a_cancelled_runner_is_taken_over(place: Place) {
    let (first, second) = (place.keeper().await, place.keeper().await);
    let (runner, _go) = running(once(&first, &place).fingerprint("a"), 1).await;
    runner.abort();
    assert!(runner.await.unwrap_err().is_cancelled());
    let refused = stored(&once(&second, &place).fingerprint("b")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Mismatch, "what was begun is still another request: {refused}");
    let next = once(&second, &place).fingerprint("a");
    let token = next
        .run(async |running| {
            assert_eq!((running.attempt(), running.taken_over()), (2, true));
            assert_eq!(running.pass().token, running.lease().token());
            Ok::<_, Error>(running.token().get())
        })
        .await
        .unwrap();
    assert!(token > 0);
    assert_eq!(once(&first, &place).run(async |_| -> Result<u64> { panic!("a second run") }).await.unwrap(), token);
}

pub(crate) async fn a_runner_that_panics_is_taken_over(place: Place) {
    let keeper = place.keeper().await;
    let panics = once(&keeper, &place);
    let run = async move { panics.run(async |_| -> Result<u32> { panic!("on purpose") }).await };
    assert!(tokio::spawn(run).await.unwrap_err().is_panic());
    let taken_over = once(&keeper, &place).run(async |running| Ok::<_, Error>(running.taken_over())).await;
    assert!(taken_over.unwrap());
}

pub(crate) async fn a_late_result_is_refused(place: Place) {
    let (first, second) = (place.keeper().await, place.keeper().await);
    let (say_begun, begun) = mpsc::channel();
    let (say_go, go) = mpsc::channel();
    // Blocking work cannot be cancelled when its lock is lost, as a process that is paused cannot.
    let slow = lockkeeper::blocking::Keeper::from(first).once(&place.name).wait(SOON);
    let paused = std::thread::spawn(move || {
        slow.run(|running| {
            say_begun.send(running.token()).unwrap();
            go.recv().unwrap();
            Ok::<_, Error>(1)
        })
    });
    let token = tokio::task::spawn_blocking(move || begun.recv_timeout(SOON).unwrap()).await.unwrap();
    second.break_lock(format!("once/{}", place.name), token).await.unwrap().expect("it is held");
    let next = once(&second, &place);
    let taken_over = next.run(async |running| {
        assert!(running.taken_over() && running.token() > token);
        Ok::<_, Error>(2)
    });
    assert_eq!(taken_over.await.unwrap(), 2);
    say_go.send(()).unwrap();
    let late = tokio::task::spawn_blocking(|| paused.join().unwrap()).await.unwrap().unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Stale, "{late}");
    assert!(late.to_string().contains("the work is done, but its result was not stored"), "{late}");
    assert_eq!(stored(&once(&second, &place)).await.unwrap(), 2);
}

pub(crate) async fn a_result_after_the_lease_counts_while_no_caller_has_taken_over(place: Place) {
    let keeper = place.keeper().await;
    let late = once(&keeper, &place);
    let result = late.run(async |running| {
        lockkeeper::testing::lose(running.lease(), lockkeeper::LossReason::Expired);
        Ok::<_, Error>(3)
    });
    assert_eq!(result.await.unwrap(), 3);
    assert_eq!(stored(&once(&keeper, &place)).await.unwrap(), 3);
}

pub(crate) async fn work_that_loses_its_lock_is_cancelled(place: Place) {
    let keeper = place.keeper().await;
    let loses = once(&keeper, &place);
    let lost = loses.run(async |running| {
        lockkeeper::testing::lose(running.lease(), lockkeeper::LossReason::Expired);
        std::future::pending::<Result<u32>>().await
    });
    assert_eq!(lost.await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(once(&keeper, &place).run(async |running| Ok::<_, Error>(running.taken_over())).await.unwrap());
}

pub(crate) async fn a_failure_is_tried_again_or_kept(place: Place) {
    let keeper = place.keeper().await;
    let fail = async |once: &Once| {
        once.run(async |_| -> Result<u32> { Err(Error::unavailable("the bank is closed")) }).await.unwrap_err()
    };
    let retry = once(&keeper, &place).fingerprint("a");
    for _ in 0..2 {
        assert_eq!(fail(&retry).await.message(), "the bank is closed");
    }
    assert_eq!(stored(&once(&keeper, &place).fingerprint("b")).await.unwrap_err().kind(), ErrorKind::Mismatch);
    let third = retry.run(async |running| Ok::<_, Error>((running.attempt(), running.taken_over())));
    assert_eq!(third.await.unwrap(), (3, false));

    let keep = keeper.once(format!("{}/kept", place.name)).on_failure(OnFailure::Keep);
    assert_eq!(fail(&keep).await.kind(), ErrorKind::Unavailable, "the first caller gets the work's own error");
    let kept = stored(&keep).await.unwrap_err();
    assert_eq!(kept.kind(), ErrorKind::Failed);
    assert!(kept.message().ends_with("its failure is kept: the bank is closed"), "{kept}");
}

pub(crate) async fn a_result_over_the_limit_is_the_same_error_for_all(place: Place) {
    let keeper = place.keeper().await;
    let small = once(&keeper, &place).limit(10);
    let long = async |_| Ok::<_, Error>("0123456789".to_owned());
    let first = small.run(long).await.unwrap_err();
    assert!(first.message().ends_with("was not kept: it has 12 bytes as JSON, and the limit is 10"), "{first}");
    let again = once(&keeper, &place).run(async |_| -> Result<String> { panic!("a second run") }).await.unwrap_err();
    assert_eq!((first.kind(), first.to_string()), (again.kind(), again.to_string()));

    let full = keeper.once(format!("{}/full", place.name));
    let largest = "x".repeat(MAX_RESULT - 2);
    for _ in 0..2 {
        let result: Result<String> = full.run(async |_| Ok(largest.clone())).await;
        assert_eq!(result.unwrap().len(), largest.len());
    }
}

pub(crate) async fn a_result_of_another_version_is_never_a_second_run(place: Place) {
    let keeper = place.keeper().await;
    let v1 = once(&keeper, &place).schema("v1");
    assert_eq!(value(&v1, 1).await.unwrap(), 1);
    let v2 = stored(&once(&keeper, &place).schema("v2")).await.unwrap_err();
    assert!(v2.message().ends_with("stored with schema 'v1', and this caller reads results with schema 'v2'"), "{v2}");
    let none = stored(&once(&keeper, &place)).await.unwrap_err();
    assert!(none.message().ends_with("reads results with no schema tag"), "{none}");
    let typed = v1.run(async |_| -> Result<Vec<String>> { panic!("a second run") }).await.unwrap_err();
    assert!(typed.message().contains("cannot be read as alloc::vec::Vec<alloc::string::String>"), "{typed}");
    // A value that JSON cannot bring back is an error for the first caller too.
    let lossy = keeper.once(format!("{}/nan", place.name));
    let first = lossy.run(async |_| Ok::<_, Error>(f64::NAN)).await.unwrap_err();
    let again = lossy.run(async |_| -> Result<f64> { panic!("a second run") }).await.unwrap_err();
    assert_eq!(first.to_string(), again.to_string());
}

pub(crate) async fn a_result_is_kept_for_as_long_as_was_asked(place: Place) {
    let keeper = place.keeper().await;
    let short = keeper.once(format!("{}/short", place.name)).keep(Duration::from_secs(1));
    let runs = AtomicU32::new(0);
    let unit = once(&keeper, &place);
    unit.run(async |_| Ok::<(), Error>(())).await.unwrap();
    let end = std::time::Instant::now() + SOON;
    while runs.load(Ordering::SeqCst) < 2 {
        let last = short.run(async |running| {
            assert_eq!((running.attempt(), running.taken_over()), (1, false), "forgotten, not taken over");
            Ok::<_, Error>(runs.fetch_add(1, Ordering::SeqCst) + 1)
        });
        assert_eq!(last.await.unwrap(), runs.load(Ordering::SeqCst));
        assert!(std::time::Instant::now() < end, "it is kept for ever");
    }
    unit.run(async |_| -> Result<()> { panic!("kept for 24 hours") }).await.unwrap();
}

pub(crate) async fn settings_that_cannot_work_are_one_sentence(place: Place) {
    let keeper = place.keeper().await;
    let here = || keeper.once(&place.name);
    let cases = [
        (keeper.once(""), ErrorKind::InvalidName, "is empty; it must have 1 to 512 bytes"),
        (keeper.once([b'x'; 508]), ErrorKind::InvalidName, "has 513 bytes; it must have 1 to 512"),
        (
            here().keep(Duration::ZERO),
            ErrorKind::InvalidConfig,
            "keep 0s is out of range; a result is kept for 1ms to 3650d",
        ),
        (here().keep(Duration::MAX), ErrorKind::InvalidConfig, "a result is kept for 1ms to 3650d"),
        (
            here().limit(MAX_RESULT + 1),
            ErrorKind::InvalidConfig,
            "limit 64513 is too large; at most 64512 bytes are stored",
        ),
        (
            here().schema("x".repeat(65)),
            ErrorKind::InvalidConfig,
            "the schema tag has 65 bytes; at most 64 are allowed",
        ),
        (here().ttl(Duration::ZERO), ErrorKind::InvalidConfig, "ttl 0s is out of range"),
        (here().label("x".repeat(201)), ErrorKind::InvalidConfig, "the label has 201 bytes"),
    ];
    for (once, kind, text) in cases {
        let error = stored(&once).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
}

pub(crate) async fn the_blocking_face_shares_its_keys(place: Place) {
    let keeper = place.keeper().await;
    let blocking = lockkeeper::blocking::Keeper::from(keeper.clone());
    let there = blocking.once(&place.name).fingerprint("a").keep(SOON).in_progress(InProgress::Refuse);
    let results = tokio::task::spawn_blocking(move || {
        let first = there.run(|running| Ok::<_, Error>(running.attempt()));
        (first, there.run(|_| -> Result<u32> { panic!("a second run") }))
    });
    let (first, again) = results.await.unwrap();
    assert_eq!((first.unwrap(), again.unwrap()), (1, 1));
    assert_eq!(stored(&once(&keeper, &place).fingerprint("a")).await.unwrap(), 1);
}
