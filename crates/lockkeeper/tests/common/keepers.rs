//! What tests on real servers do again and again: connect a keeper, take a lock, be refused, make a claim.
#![allow(dead_code, unreachable_pub, reason = "for tests, each of which uses its own part")]

use lockkeeper::clock::system_now;
use lockkeeper::store::Claim;
use lockkeeper::{Error, Guard, HolderId, Keeper, LockName, Mode};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than any hand-over that a test waits for; reached only when something hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A keeper at this URL.
pub async fn keeper(url: &str, ttl: Duration) -> Keeper {
    Keeper::builder().ttl(ttl).connect(url).await.unwrap_or_else(|e| panic!("{url}: {e}"))
}

/// The lock, as soon as it is free.
pub async fn taken(keeper: &Keeper, name: &str) -> Guard {
    keeper.lock(name).wait(PATIENCE).acquire().await.expect("granted")
}

/// Returns when so many claims stand in line.
pub async fn in_line(keeper: &Keeper, name: &str, count: u32) {
    let end = Instant::now() + PATIENCE;
    while keeper.inspect(name).await.expect("inspected").is_none_or(|record| record.waiting != count) {
        assert!(Instant::now() < end, "{count} wait for {name}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What a store that cannot be asked answers: neither a guard nor "held".
pub async fn refusal(keeper: &Keeper, name: &str) -> Error {
    keeper.lock(name).try_acquire().await.map(|guard| guard.is_some()).expect_err("an error")
}

/// A claim of a holder that is new.
pub fn claim(name: &str, mode: Mode, ttl: Duration) -> Claim {
    let (name, holder) = (LockName::new(name).expect("a name"), HolderId::random().expect("random"));
    let mut claim = Claim::new(name, holder, ttl, system_now(), Arc::default());
    claim.mode = mode;
    claim
}

/// The only answer to a call with one claim.
pub fn one<T>(mut answers: Vec<lockkeeper::Result<T>>) -> T {
    assert_eq!(answers.len(), 1);
    answers.remove(0).expect("answered")
}
