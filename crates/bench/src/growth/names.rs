//! Names that are used once each: what a cycle costs when so many were used before, and what stays of them.

use super::climb::{Climb, Refused, anonymous};
use crate::measure::Spent;
use lockkeeper::Keeper;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const TASKS: u64 = 64;

/// The cost is that of the last ones before the size.
const LAST: u64 = 20_000;

/// Below this, pages and buffers hide what a name leaves.
const MEASURABLE: u64 = 1_000;

pub(super) async fn run(climb: Climb<'_>) {
    let pids = climb.subject.pids();
    let keeper = climb.subject.keeper(Duration::from_secs(30)).await.unwrap();
    let lock = keeper.lock("warm");
    for _ in 0..300 {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    let (memory, kept) = (anonymous(), climb.subject.kept());
    let mut used = 0;
    climb
        .each(async |size| {
            let began = Instant::now();
            let measured = LAST.min(size - used);
            cycles(&keeper, used, size - measured).await?;
            let spent = Spent::begin(&pids);
            cycles(&keeper, size - measured, size).await?;
            let cost = spent.end(measured as f64);
            used = size;
            climb.saw("names-cpu", size, cost.client);
            climb.saw("names-wall", size, cost.wall);
            if !pids.is_empty() {
                climb.saw("names-server", size, cost.server);
            }
            let took = began.elapsed();
            if size >= MEASURABLE {
                climb.saw("names-client-left", size, ((anonymous() - memory) / size as f64).max(0.0));
                if let (Some(before), Some(now)) = (kept, climb.subject.kept()) {
                    climb.saw("names-server-left", size, ((now - before) / size as f64).max(0.0));
                }
            }
            Ok(took)
        })
        .await;
}

/// Acquire and release of each name from `from` on, once.
async fn cycles(keeper: &Keeper, from: u64, end: u64) -> Result<(), Refused> {
    let next = Arc::new(AtomicU64::new(from));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS.min(end - from) {
        let (keeper, next) = (keeper.clone(), next.clone());
        tasks.spawn(async move {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= end {
                    return Ok::<_, lockkeeper::Error>(());
                }
                keeper.lock(format!("orders/{i:07}")).acquire().await?.release().await?;
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap().map_err(|error| error.to_string())?;
    }
    Ok(())
}
