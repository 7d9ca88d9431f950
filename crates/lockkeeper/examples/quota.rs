//! cargo run -p lockkeeper --example quota
//!
//! An upstream service allows three requests at a time. Ten workers keep to it, on however many machines they run.

#![allow(clippy::print_stdout, reason = "an example")]

use lockkeeper::{Error, Keeper};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const QUOTA: u32 = 3;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let (inside, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let keeper = Keeper::connect("memory:upstream").await?;
        let (inside, most) = (inside.clone(), most.clone());
        workers.spawn(async move {
            for _ in 0..5 {
                // One of three permits; a worker that dies gives its own back after the TTL.
                let permit = keeper.lock("upstream").permits(QUOTA).acquire().await?;
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await; // the request
                inside.fetch_sub(1, Ordering::SeqCst);
                permit.release().await?;
            }
            Ok::<_, Error>(())
        });
    }
    for worker in workers.join_all().await {
        worker?;
    }
    let most = most.load(Ordering::SeqCst);
    println!("50 requests, at most {most} at a time");
    assert!(most <= QUOTA);
    Ok(())
}
