//! Locks held by one keeper: what a renewal costs, and how much memory a lock takes.

use super::climb::{Climb, Refused, anonymous};
use crate::measure::Spent;
use lockkeeper::{Guard, Keeper};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How many calls are under way while the locks are taken.
const AT_ONCE: u64 = 128;

/// Below this, pages and buffers hide what a lock takes.
const MEASURABLE: u64 = 1_000;

pub(super) async fn run(climb: Climb<'_>) {
    let (ttl, periods) = if climb.quick { (Duration::from_secs(3), 1) } else { (Duration::from_secs(6), 2) };
    let period = ttl / 3;
    let pids = climb.subject.pids();
    let keeper = climb.subject.keeper(ttl).await.unwrap();
    keeper.lock("first").acquire().await.unwrap().release().await.unwrap();
    // What the server does by itself is not for the locks; after its start it may have something left to do.
    let mut idle = f64::MAX;
    for _ in 0..2 {
        let spent = Spent::begin(&pids);
        tokio::time::sleep(period * periods).await;
        idle = idle.min(spent.end(1.0).server);
    }
    let before = anonymous();
    let mut guards: Vec<Guard> = Vec::new();
    climb
        .each(async |size| {
            let began = Instant::now();
            take(&keeper, &mut guards, size).await?;
            let took = began.elapsed();
            let bytes = (anonymous() - before) / size as f64;
            let (spent, start) = (Spent::begin(&pids), Instant::now());
            tokio::time::sleep(period * periods).await;
            let renewals = start.elapsed().as_secs_f64() / period.as_secs_f64() * size as f64;
            let cost = spent.end(renewals);
            let lost = guards.iter().filter(|guard| guard.check().is_err()).count();
            if lost > 0 {
                return Err(format!("{lost} of {size} locks were lost"));
            }
            climb.saw("held-cpu", size, cost.client);
            if !pids.is_empty() {
                climb.saw("held-server", size, (cost.server - idle / renewals).max(0.0));
            }
            if size >= MEASURABLE {
                climb.saw("held-bytes", size, bytes);
            }
            Ok(took)
        })
        .await;
    // Not dropped: their releases would be measured with whatever comes next.
    std::mem::forget(guards);
}

/// Takes locks until there are so many.
async fn take(keeper: &Keeper, guards: &mut Vec<Guard>, size: u64) -> Result<(), Refused> {
    let first = guards.len() as u64;
    let mut tasks = JoinSet::new();
    for task in 0..AT_ONCE.min(size - first) {
        let keeper = keeper.clone();
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for i in (first + task..size).step_by(AT_ONCE.min(size - first) as usize) {
                guards.push(keeper.lock(format!("orders/{i:06}")).acquire().await?);
            }
            Ok::<_, lockkeeper::Error>(guards)
        });
    }
    while let Some(task) = tasks.join_next().await {
        guards.extend(task.unwrap().map_err(|error| error.to_string())?);
    }
    Ok(())
}
