//! cargo run -p lockkeeper --example cache_stampede
//!
//! Thirty tasks of three keepers want a price list at the moment it has run out: one of them builds it, the others wait
//! for its result. Ten seconds later the next one builds it anew.

#![allow(clippy::print_stdout, reason = "an example")]

use lockkeeper::{Error, Keeper};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

type Prices = Vec<(String, u32)>;

/// What takes long, and must not be done thirty times at once.
async fn build(builds: &AtomicU32) -> Result<Prices, Error> {
    builds.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(200)).await;
    Ok(vec![("tea".into(), 250), ("cake".into(), 390)])
}

async fn prices(keeper: &Keeper, builds: &AtomicU32) -> Result<Prices, Error> {
    // The schema tag keeps a new version from reading what an old one has built.
    let list = keeper.once("cache/prices").schema("v1").keep(Duration::from_secs(10));
    list.run(|_| build(builds)).await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let builds = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        // In real life each keeper is another process, and the URL that of a store they all reach.
        let keeper = Keeper::connect("memory:shop").await?;
        for _ in 0..10 {
            let (keeper, builds) = (keeper.clone(), builds.clone());
            tasks.push(tokio::spawn(async move { prices(&keeper, &builds).await }));
        }
    }
    for task in tasks {
        assert_eq!(task.await.expect("a task does not panic")?.len(), 2);
    }
    println!("30 readers, {} build", builds.load(Ordering::SeqCst));
    Ok(())
}
