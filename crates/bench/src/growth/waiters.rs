//! Waiters on one name, as tasks of one keeper and as keepers of their own: all wait, the lock is released, each takes
//! it once and gives it on at once.

use super::climb::{Climb, Refused};
use crate::measure::{Cost, Spent, medians};
use lockkeeper::{Guard, Keeper, Lock};
use std::future::{Future as _, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(30);

/// Small sizes are repeated.
const MOST_ROUNDS: usize = 40;

/// How many keepers connect at once.
const AT_ONCE: usize = 16;

pub(super) async fn tasks(climb: Climb<'_>) {
    let keeper = climb.subject.keeper(TTL).await.unwrap();
    let holder = climb.subject.keeper(TTL).await.unwrap();
    climb
        .each(async |size| {
            let locks = (0..size).map(|_| keeper.lock("baton")).collect::<Vec<_>>();
            let (cost, took) = rounds(&climb, &holder, &locks, 1).await?;
            saw(&climb, "waiters", size, cost);
            Ok(took)
        })
        .await;
}

pub(super) async fn keepers(climb: Climb<'_>) {
    let holder = climb.subject.keeper(TTL).await.unwrap();
    let mut keepers: Vec<Keeper> = Vec::new();
    climb
        .each(async |size| {
            let began = Instant::now();
            connect(&climb, &mut keepers, size as usize).await?;
            let connected = began.elapsed();
            let locks: Vec<Lock> = keepers.iter().map(|keeper| keeper.lock("baton")).collect();
            let (cost, took) = rounds(&climb, &holder, &locks, size).await?;
            saw(&climb, "crowd", size, cost);
            Ok(connected + took)
        })
        .await;
    // The last of so many keepers would be gone after minutes.
    std::mem::forget(keepers);
}

/// Connects keepers until there are so many. Each takes a lock once, so that it has what it needs.
pub(super) async fn connect(climb: &Climb<'_>, keepers: &mut Vec<Keeper>, size: usize) -> Result<(), Refused> {
    while keepers.len() < size {
        let wanted = AT_ONCE.min(size - keepers.len());
        let first = keepers.len();
        let connecting = (0..wanted).map(async |i| {
            let keeper = climb.subject.keeper(TTL).await?;
            keeper.lock(format!("own/{}", first + i)).acquire().await?.release().await?;
            Ok::<_, lockkeeper::Error>(keeper)
        });
        for keeper in futures_util::future::join_all(connecting).await {
            keepers.push(keeper.map_err(|error| format!("a keeper could not connect: {error}"))?);
        }
    }
    Ok(())
}

fn saw(climb: &Climb<'_>, name: &str, size: u64, cost: Cost) {
    climb.saw(&format!("{name}-wall"), size, cost.wall);
    climb.saw(&format!("{name}-cpu"), size, cost.client);
    if !climb.subject.pids().is_empty() {
        climb.saw(&format!("{name}-server"), size, cost.server);
    }
}

/// The cost of a hand-over, and the time of a round.
async fn rounds(climb: &Climb<'_>, holder: &Keeper, locks: &[Lock], in_line: u64) -> Result<(Cost, Duration), Refused> {
    let pids = climb.subject.pids();
    let enough = Duration::from_millis(if climb.quick { 200 } else { 1_000 });
    let (began, mut costs, mut took) = (Instant::now(), Vec::new(), Duration::ZERO);
    while costs.len() < MOST_ROUNDS && (costs.len() < 2 || began.elapsed() < enough) {
        let round = Instant::now();
        let guard = holder.lock("baton").acquire().await.map_err(|error| error.to_string())?;
        let mut tasks = all_wait(holder, locks, in_line).await?;
        let spent = Spent::begin(&pids);
        guard.release().await.map_err(|error| error.to_string())?;
        while let Some(task) = tasks.join_next().await {
            task.unwrap().map_err(|error| error.to_string())?;
        }
        costs.push(spent.end(locks.len() as f64));
        took = round.elapsed();
        // The second round is for what the first one has warmed up.
        if took > Duration::from_secs(4) {
            break;
        }
    }
    let warm = usize::from(costs.len() > 1);
    Ok((medians(&costs[warm..]), took))
}

/// A task for each lock that waits for it. When this returns, all of them wait, `in_line` of them in the store.
async fn all_wait(holder: &Keeper, locks: &[Lock], in_line: u64) -> Result<JoinSet<lockkeeper::Result<()>>, Refused> {
    let waiting = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for lock in locks {
        let (lock, waiting) = (lock.clone(), waiting.clone());
        tasks.spawn(async move { acquire(&lock, &waiting).await?.release().await });
    }
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let seen = holder.inspect("baton").await.map_err(|error| error.to_string())?;
        let seen = seen.map_or(0, |record| u64::from(record.waiting));
        if waiting.load(Ordering::SeqCst) == locks.len() as u64 && seen >= in_line {
            return Ok(tasks);
        }
        if Instant::now() > end {
            return Err(format!("only {seen} of {in_line} were in line after 20 s"));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Acquires, and counts itself among the waiting once it is in its keeper's queue: the first poll puts it there.
async fn acquire(lock: &Lock, waiting: &AtomicU64) -> lockkeeper::Result<Guard> {
    let mut acquiring = std::pin::pin!(lock.acquire());
    let mut counted = false;
    poll_fn(|context| {
        let turn = acquiring.as_mut().poll(context);
        if !std::mem::replace(&mut counted, true) {
            waiting.fetch_add(1, Ordering::SeqCst);
        }
        turn
    })
    .await
}
