//! Connections that went silent without a word: a vanished server behind an address, a forgotten entry of a firewall.
#![allow(unreachable_pub, reason = "for tests")]

use lockkeeper::{ErrorKind, Keeper};
use std::time::Duration;
use testkit::Gate;

/// All connections of a keeper go silent, and new ones work: callers who wait for `wait` are served again after at most
/// `most` failures, and from then on.
pub async fn works_again(keeper: &Keeper, gates: &[Gate], wait: Duration, most: u32) {
    let lock = keeper.lock("job").wait(wait);
    for _ in 0..2 {
        lock.acquire().await.expect("granted").release().await.expect("released");
    }
    gates.iter().for_each(Gate::silence);
    let mut failures = 0;
    let guard = loop {
        match lock.acquire().await {
            Ok(guard) => break guard,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                failures += 1;
                assert!(failures <= most, "{failures} failures: {error}");
            }
        }
    };
    guard.release().await.expect("released");
    for _ in 0..3 {
        lock.acquire().await.expect("granted").release().await.expect("released");
    }
}
