//! Any free one: never two on one name, no name is left out, and no place in line stays behind.

use crate::Place;
use lockkeeper::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

fn names(place: &Place, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{}/{n}", place.name)).collect()
}

pub(crate) async fn a_free_one_is_taken_and_any_is_waited_for(place: Place) {
    let (a, b) = (place.keeper().await, place.keeper().await);
    let three = names(&place, 3);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(a.lock_any(&three).try_acquire().await.unwrap().expect("one is free"));
    }
    assert!(b.lock_any(&three).try_acquire().await.unwrap().is_none());
    let error = b.lock_any(&three).wait(Duration::from_secs(2)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("none of 3 locks"), "{error}");

    let waiting = tokio::spawn({
        let (b, three) = (b.clone(), three.clone());
        async move { b.lock_any(three).acquire().await }
    });
    let freed = held.remove(1);
    let name = freed.name().clone();
    freed.release().await.unwrap();
    let got = waiting.await.unwrap().unwrap();
    assert_eq!(*got.name(), name);
    got.release().await.unwrap();
    for guard in held {
        guard.release().await.unwrap();
    }
    // Its places in the other lines are given up: each is free for a caller that does not wait.
    for name in &three {
        let guard = a.lock(name).wait(Duration::from_secs(30)).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
}

pub(crate) async fn never_two_on_one_name_and_no_name_is_left_out(place: Place) {
    const NAMES: usize = 3;
    let three = names(&place, NAMES);
    let inside: Arc<Vec<AtomicU32>> = Arc::new((0..NAMES).map(|_| AtomicU32::new(0)).collect());
    let served: Arc<Vec<AtomicU32>> = Arc::new((0..NAMES).map(|_| AtomicU32::new(0)).collect());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let keeper = place.keeper().await;
        let (three, inside, served) = (three.clone(), inside.clone(), served.clone());
        tasks.spawn(async move {
            for _ in 0..8 {
                let guard = keeper.lock_any(&three).acquire().await.unwrap();
                let at = three.iter().position(|name| *name == guard.name().to_string()).unwrap();
                assert_eq!(inside[at].fetch_add(1, Ordering::SeqCst), 0, "two on {}", guard.name());
                served[at].fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                inside[at].fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let served: Vec<u32> = served.iter().map(|n| n.load(Ordering::SeqCst)).collect();
    assert_eq!(served.iter().sum::<u32>(), 48);
    assert!(served.iter().all(|n| *n > 0), "{served:?}");
}

pub(crate) async fn lists_that_cannot_work_are_refused_in_one_sentence(place: Place) {
    let keeper = place.keeper().await;
    let error = keeper.lock_any(Vec::<String>::new()).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("lock_any was given no names; it needs at least one"), "{error}");
}
