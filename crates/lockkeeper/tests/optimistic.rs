//! Read-think-write with another try when somebody was faster.

mod common;

use common::now;
use lockkeeper::optimistic::{Retry, Turn};
use lockkeeper::{Error, ErrorKind, blocking, optimistic};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

fn quick() -> Retry {
    Retry::new().first_pause(Duration::from_micros(10)).longest_pause(Duration::from_millis(1))
}

/// A version and a value that may lag behind it for a moment, as a row and its reader do.
async fn add_one(cell: &AtomicU64, _attempt: u32) -> Result<Turn<u64>, Error> {
    let read = cell.load(Ordering::SeqCst);
    tokio::task::yield_now().await;
    let write = cell.compare_exchange(read, read + 1, Ordering::SeqCst, Ordering::SeqCst);
    Ok(write.map_or(Turn::Conflict, |_| Turn::Done(read + 1)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_that_meet_all_get_through() {
    let cell = Arc::new(AtomicU64::new(0));
    let conflicts = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (cell, conflicts) = (cell.clone(), conflicts.clone());
        // Spawned: the future can be sent to another thread.
        tasks.push(tokio::spawn(async move {
            let retry = quick().attempts(1000);
            for _ in 0..100 {
                let done = optimistic::retry(&retry, |attempt| {
                    conflicts.fetch_add(u32::from(attempt > 1), Ordering::SeqCst);
                    add_one(&cell, attempt)
                });
                done.await?;
            }
            Ok::<_, Error>(())
        }));
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(cell.load(Ordering::SeqCst), 800);
    println!("800 updates, {} conflicts, none lost", conflicts.load(Ordering::SeqCst));
    assert!(conflicts.load(Ordering::SeqCst) > 0, "nobody ever met: this shows nothing");
}

#[test]
fn it_works_without_a_runtime_and_can_be_dropped() {
    let act = |attempt| async move { Ok::<_, Error>(if attempt < 4 { Turn::Conflict } else { Turn::Done(attempt) }) };
    assert_eq!(now(optimistic::retry(&quick(), act)).unwrap(), 4);
    let slow = Retry::new().first_pause(Duration::from_secs(3600)).longest_pause(Duration::from_secs(3600));
    let slow = slow.within(Duration::MAX);
    let mut waiting = common::Probe::new(optimistic::retry(&slow, |_| async { Ok::<Turn<()>, Error>(Turn::Conflict) }));
    waiting.pend();
    drop(waiting);
}

#[test]
fn it_ends_with_the_attempts_and_passes_errors_on() {
    let recorder = DebuggingRecorder::new();
    let shown = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let mut tried = 0;
        let end = blocking::retry(&quick().attempts(5), |_| {
            tried += 1;
            Ok::<Turn<()>, Error>(Turn::Conflict)
        });
        assert_eq!((end.unwrap_err().kind(), tried), (ErrorKind::Busy, 5));
        let mut tried = 0;
        let end = blocking::retry(&quick(), |_| {
            tried += 1;
            Err::<Turn<()>, _>(Error::unavailable("the database is away"))
        });
        assert_eq!((end.unwrap_err().kind(), tried), (ErrorKind::Unavailable, 1));
    });
    let mut seen = Vec::new();
    for (key, _, _, value) in shown.snapshot().into_vec() {
        let DebugValue::Counter(count) = value else { panic!("{value:?}") };
        let outcome: String = key.key().labels().map(|label| label.value().to_owned()).collect();
        seen.push((key.key().name().to_owned(), outcome, count));
    }
    seen.sort();
    let name = "lockkeeper_conflicts_total".to_owned();
    assert_eq!(seen, [(name.clone(), "given-up".into(), 1), (name, "repeated".into(), 4)]);
}
