//! cargo run -p lockkeeper --example work_queue
//!
//! Five workers share four tenants' queues: each takes any tenant that no other worker serves, and waits when all are
//! served.

#![allow(clippy::print_stdout, reason = "an example")]

use lockkeeper::{Error, Keeper};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const TENANTS: [&str; 4] = ["tenant/ant", "tenant/bee", "tenant/cat", "tenant/dog"];

#[tokio::main]
async fn main() -> Result<(), Error> {
    let left: BTreeMap<String, u32> = TENANTS.map(|tenant| (tenant.to_owned(), 10)).into();
    let left = Arc::new(Mutex::new(left));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let (keeper, left) = (Keeper::connect("memory:queue").await?, left.clone());
        workers.spawn(async move {
            let mut served = 0;
            loop {
                let open: Vec<String> = left
                    .lock()
                    .expect("no panic")
                    .iter()
                    .filter(|(_, n)| **n > 0)
                    .map(|(name, _)| name.clone())
                    .collect();
                if open.is_empty() {
                    return Ok::<u32, Error>(served);
                }
                // Skips what is locked; when all are, waits in the line of each.
                let guard = keeper.lock_any(&open).acquire().await?;
                let name = guard.name().to_string();
                let take = |n: &mut u32| std::mem::replace(n, n.saturating_sub(1)) > 0;
                let item = left.lock().expect("no panic").get_mut(&name).is_some_and(take);
                guard.run(tokio::task::yield_now()).await?; // the work on the item
                served += u32::from(item);
                guard.release().await?;
            }
        });
    }
    let mut served = Vec::new();
    for worker in workers.join_all().await {
        served.push(worker?);
    }
    println!("items served by each worker: {served:?}");
    assert_eq!(served.iter().sum::<u32>(), 40);
    Ok(())
}
