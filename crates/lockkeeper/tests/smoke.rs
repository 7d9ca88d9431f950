//! x
use lockkeeper::testing::{self, Clock};
use lockkeeper::*;
use std::time::Duration;

#[tokio::test]
async fn handover() {
    let a = Keeper::connect("memory:h").await.unwrap();
    let b = Keeper::connect("memory:h").await.unwrap();
    let g = a.lock("x").acquire().await.unwrap();
    let t = tokio::spawn(async move { b.lock("x").acquire().await.unwrap().token() });
    while a.inspect("x").await.unwrap().unwrap().waiting == 0 {
        tokio::task::yield_now().await;
    }
    let first = g.token();
    g.release().await.unwrap();
    assert!(t.await.unwrap() > first);
}

#[tokio::test]
async fn manual_clock() {
    let clock = Clock::new();
    let keeper = Keeper::builder("memory:").clock(&clock).connect().await.unwrap();
    let guard = keeper.lock("job").acquire().await.unwrap();
    for _ in 0..10 {
        clock.advance(Duration::from_secs(3600));
        assert_eq!(guard.state(), State::Held);
    }
    clock.suspend(Duration::from_secs(60));
    assert_eq!(guard.state(), State::Lost(LossReason::Expired));
    let guard = keeper.lock("other").acquire().await.unwrap();
    testing::lose(&guard, LossReason::Broken);
    assert_eq!(guard.lost().await, LossReason::Broken);
}
