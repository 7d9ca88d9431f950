//! Idle keepers in one process: connections, threads, memory, CPU.

use super::climb::{Climb, anonymous};
use super::waiters::connect;
use crate::measure::Spent;
use lockkeeper::Keeper;
use std::time::{Duration, Instant};

/// Below this, pages and buffers hide what a keeper takes.
const MEASURABLE: u64 = 10;

pub(super) async fn run(climb: Climb<'_>) {
    let watch = if climb.quick { Duration::from_millis(500) } else { Duration::from_secs(3) };
    let (sockets_before, threads_before, memory_before) = (sockets(), threads(), anonymous());
    let mut keepers: Vec<Keeper> = Vec::new();
    climb
        .each(async |size| {
            let began = Instant::now();
            connect(&climb, &mut keepers, size as usize).await?;
            let took = began.elapsed();
            // What they do after they have connected is not what they do for ever.
            tokio::time::sleep(watch / 3).await;
            let each = |now: f64, before: f64| (now - before) / size as f64;
            climb.saw("keepers-connections", size, each(sockets(), sockets_before));
            climb.saw("keepers-threads", size, each(threads(), threads_before));
            if size >= MEASURABLE {
                climb.saw("keepers-memory", size, each(anonymous(), memory_before) / 1024.0);
            }
            let spent = Spent::begin(&[]);
            tokio::time::sleep(watch).await;
            climb.saw("keepers-cpu", size, spent.end(size as f64).client / watch.as_secs_f64());
            Ok(took)
        })
        .await;
    std::mem::forget(keepers);
}

/// Open sockets to servers. A keeper's thread has a pair of its own to be woken by, which is none.
fn sockets() -> f64 {
    let of = |table: &str| std::fs::read_to_string(format!("/proc/self/net/{table}")).unwrap_or_default();
    let tables: Vec<String> = ["tcp", "tcp6"].iter().map(|table| of(table)).collect();
    let established: std::collections::HashSet<&str> = tables
        .iter()
        .flat_map(|table| table.lines())
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.get(3) == Some(&"01"))
        .filter_map(|fields| fields.get(9).copied())
        .collect();
    let files = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    let ours = targets.filter(|target| {
        let name = target.to_string_lossy();
        name.strip_prefix("socket:[").is_some_and(|rest| established.contains(rest.trim_end_matches(']')))
    });
    ours.count() as f64
}

fn threads() -> f64 {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) as f64
}
