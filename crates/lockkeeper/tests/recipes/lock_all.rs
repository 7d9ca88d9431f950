//! Several names at once: all or none, without deadlock, and nothing is left behind.

use crate::Place;
use lockkeeper::{ErrorKind, Keeper};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

fn names(place: &Place, which: &[usize]) -> Vec<String> {
    which.iter().map(|n| format!("{}/{n}", place.name)).collect()
}

/// Released; or the store gave no answer, and the keeper goes on trying.
fn freed(released: lockkeeper::Result<()>) {
    if let Err(error) = released {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

async fn is_free(keeper: &Keeper, name: &str) -> bool {
    let Some(guard) = keeper.lock(name).try_acquire().await.unwrap() else { return false };
    freed(guard.release().await);
    true
}

pub(crate) async fn all_are_taken_or_none(place: Place) {
    let (a, b) = (place.keeper().await, place.keeper().await);
    let three = names(&place, &[2, 0, 1, 2]);
    let middle = a.lock(&names(&place, &[1])[0]).acquire().await.unwrap();

    assert!(b.lock_all(&three).try_acquire().await.unwrap().is_none());
    let error = b.lock_all(&three).wait(Duration::from_secs(2)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert_eq!(error.lock().map(ToString::to_string), Some(names(&place, &[1])[0].clone()), "the one that was held");
    for name in names(&place, &[0, 2]) {
        assert!(is_free(&a, &name).await, "{name}");
    }

    let waiting = tokio::spawn({
        let (b, three) = (b.clone(), three.clone());
        async move { b.lock_all(three).acquire().await }
    });
    middle.release().await.unwrap();
    let all = waiting.await.unwrap().unwrap();
    assert_eq!(all.leases().count(), 3);
    for name in &three {
        assert!(!is_free(&a, name).await, "{name}");
        assert_eq!(all.pass(name).unwrap().token, all.token(name).unwrap());
    }
    assert!(all.token("another").is_none());
    assert_eq!(all.run(async { 4 }).await.unwrap(), 4);
    all.release().await.unwrap();
    for name in &three {
        assert!(is_free(&a, name).await, "{name}");
    }
}

pub(crate) async fn overlapping_sets_never_deadlock(place: Place) {
    const NAMES: usize = 6;
    let inside: Arc<Vec<AtomicU32>> = Arc::new((0..NAMES).map(|_| AtomicU32::new(0)).collect());
    let mut tasks = tokio::task::JoinSet::new();
    for seed in 0..4 {
        let (keeper, place, inside) = (place.keeper().await, place.clone(), inside.clone());
        tasks.spawn(async move {
            let mut chance = fastrand::Rng::with_seed(seed);
            for _ in 0..6 {
                let which = chance.choose_multiple(0..NAMES, 3);
                let all = keeper.lock_all(names(&place, &which)).acquire().await.unwrap();
                for n in &which {
                    assert_eq!(inside[*n].fetch_add(1, Ordering::SeqCst), 0, "two inside {n}");
                }
                tokio::task::yield_now().await;
                for n in &which {
                    inside[*n].fetch_sub(1, Ordering::SeqCst);
                }
                freed(all.release().await);
            }
        });
    }
    tasks.join_all().await;
    let keeper = place.keeper().await;
    for name in names(&place, &[0, 1, 2, 3, 4, 5]) {
        let guard = keeper.lock(&name).wait(Duration::from_secs(60)).acquire().await.unwrap();
        freed(guard.release().await);
    }
}

pub(crate) async fn a_broken_one_ends_the_work_under_all(place: Place) {
    let (a, b) = (place.keeper().await, place.keeper().await);
    let two = names(&place, &[0, 1]);
    let all = a.lock_all(&two).acquire().await.unwrap();
    let broken = b.break_lock(&two[1], all.token(&two[1]).unwrap()).await.unwrap();
    assert!(broken.is_some());
    let error = all.run(std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    // Where a session carries all locks, an operator can break only the session, and the other lock ends with it.
    assert!(two.contains(&all.lost().await.0.to_string()));
    assert_eq!(all.release().await.unwrap_err().kind(), ErrorKind::Lost);
    let other = b.lock(&two[0]).wait(Duration::from_secs(60)).acquire().await.unwrap();
    freed(other.release().await);
}

pub(crate) async fn lists_that_cannot_work_are_refused_in_one_sentence(place: Place) {
    let keeper = place.keeper().await;
    let many: Vec<String> = (0..10_000).map(|n| n.to_string()).collect();
    for (list, text) in [(Vec::new(), "lock_all was given no names"), (many, "10000 names; at most 1000 are allowed")] {
        let error = keeper.lock_all(list).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(text), "{error}");
    }
    let error = keeper.lock_all(["", "a"]).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidName);
}
