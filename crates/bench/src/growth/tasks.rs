//! Tasks on names of their own: locks a second, beside the same work by hand.

use super::climb::{Climb, Refused};
use super::floors::Floor;
use crate::measure::{Cost, Spent, medians};
use lockkeeper::Keeper;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

pub(super) async fn run(climb: Climb<'_>) {
    let (rounds, time) = if climb.quick { (2, Duration::from_millis(100)) } else { (3, Duration::from_millis(300)) };
    let keeper = climb.subject.keeper(Duration::from_secs(30)).await.unwrap();
    climb
        .each(async |size| {
            let began = Instant::now();
            let floor = climb.subject.floor(size).await;
            let (mut ours, mut by_hand) = (Vec::new(), Vec::new());
            for round in 0..=rounds {
                let own = Worker::Ours(keeper.clone()).work(&climb, size, time).await?;
                let hand = Worker::Hand(floor.clone()).work(&climb, size, time).await?;
                // The first round only warms up.
                if round > 0 {
                    ours.push(own);
                    by_hand.push(hand);
                }
            }
            let (ours, by_hand) = (medians(&ours), medians(&by_hand));
            climb.saw("tasks-rate", size, 1e6 / ours.wall);
            climb.saw("tasks-cpu", size, ours.client);
            climb.saw_floor("tasks-rate", size, 1e6 / by_hand.wall);
            climb.saw_floor("tasks-cpu", size, by_hand.client);
            if !climb.subject.pids().is_empty() {
                climb.saw("tasks-server", size, ours.server);
                climb.saw_floor("tasks-server", size, by_hand.server);
            }
            // It hardly grows: every size runs for the same time.
            Ok(began.elapsed() / 10)
        })
        .await;
}

#[derive(Clone)]
enum Worker {
    Ours(Keeper),
    Hand(Floor),
}

impl Worker {
    /// The cost of a cycle while so many tasks work for some time.
    async fn work(&self, climb: &Climb<'_>, tasks: u64, time: Duration) -> Result<Cost, Refused> {
        let (done, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let spent = Spent::begin(&climb.subject.pids());
        let mut working = JoinSet::new();
        for task in 0..tasks {
            let (worker, done, over) = (self.clone(), done.clone(), over.clone());
            working.spawn(async move {
                let result = worker.cycles(task, &done, &over).await;
                result.map_err(|error| error.to_string())
            });
        }
        tokio::time::sleep(time).await;
        over.store(true, Ordering::Relaxed);
        while let Some(task) = working.join_next().await {
            task.unwrap()?;
        }
        Ok(spent.end(done.load(Ordering::Relaxed) as f64))
    }

    async fn cycles(self, task: u64, done: &AtomicU64, over: &AtomicBool) -> lockkeeper::Result<()> {
        let mut count = 0;
        match self {
            Self::Ours(keeper) => {
                let lock = keeper.lock(format!("task/{task}"));
                // At least one each, so that all of them count.
                while count == 0 || !over.load(Ordering::Relaxed) {
                    lock.acquire().await?.release().await?;
                    count += 1;
                    pause(count).await;
                }
            }
            Self::Hand(mut floor) => {
                while count == 0 || !over.load(Ordering::Relaxed) {
                    floor.cycle(task).await;
                    count += 1;
                    pause(count).await;
                }
            }
        }
        done.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }
}

/// Work that never waits must let the others run, and the timer.
async fn pause(count: u64) {
    if count.is_multiple_of(16) {
        tokio::task::yield_now().await;
    }
}
