//! The etcd store against the same two transactions sent by hand, on a server of its own.
//!
//! A cycle is two writes to the server's log, each with its flush; `TMPDIR=/dev/shm` takes the disk out of it. Serial and
//! contended cases share one core with the server, as for Redis; throughput cases have all cores.

mod raw;

use crate::measure::{quantile, rounds, table};
use lockkeeper::Keeper;
pub(crate) use raw::Raw;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::time::{Duration, Instant};
use testkit::EtcdServer;
use tokio::runtime::Runtime;

const TTL: Duration = Duration::from_secs(30);

/// Each in a process of its own, so that none inherits another's connections, memory and cores.
pub(crate) fn run() {
    for part in ["serial", "many", "handover"] {
        let child = std::process::Command::new(std::env::current_exe().unwrap()).args(["etcd", part]).status();
        assert!(child.unwrap().success());
    }
}

pub(crate) fn part(name: &str) {
    match name {
        "serial" => serial(),
        "many" => many(),
        "handover" => hand_over(),
        _ => println!("usage: bench etcd [serial|many|handover]"),
    }
}

/// Pins this thread, and all it starts from here on, to one core; does nothing where that is not allowed.
fn pin() {
    let mut set = CpuSet::new();
    set.set(0);
    let _ = sched_setaffinity(None, &set);
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

async fn keeper(server: &EtcdServer) -> Keeper {
    Keeper::builder().ttl(TTL).connect(server.url()).await.unwrap()
}

fn serial() {
    pin();
    let server = EtcdServer::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (keeper, raw) = runtime.block_on(async { (keeper(&server).await, Raw::connect(server.port()).await) });
    let samples = rounds(
        20,
        200,
        vec![
            (
                "two transactions by hand",
                Box::new(|n| {
                    runtime.block_on(async {
                        for _ in 0..n {
                            raw.cycle("floor").await;
                        }
                    });
                }),
            ),
            (
                "the messages of a lock by hand",
                Box::new(|n| {
                    runtime.block_on(async {
                        for _ in 0..n {
                            raw.cycle_in_line("line").await;
                        }
                    });
                }),
            ),
            (
                "lockkeeper: acquire + release, fenced",
                Box::new(|n| {
                    runtime.block_on(async {
                        for _ in 0..n {
                            keeper.lock("ours").acquire().await.unwrap().release().await.unwrap();
                        }
                    });
                }),
            ),
        ],
    );
    table("etcd, one task, acquire + release", &samples);
}

fn many() {
    const TASKS: u32 = 64;
    let server = EtcdServer::new();
    let runtime = runtime();
    let (keeper, raw) = runtime.block_on(async { (keeper(&server).await, Raw::connect(server.port()).await) });
    let samples = rounds(
        12,
        TASKS * 20,
        vec![
            (
                "two transactions by hand, 64 tasks",
                Box::new(|n| {
                    runtime.block_on(async {
                        let cycles = |task: u32| {
                            let (raw, name) = (raw.clone(), format!("floor-{task}"));
                            tokio::spawn(async move {
                                for _ in 0..n / TASKS {
                                    raw.cycle(&name).await;
                                }
                            })
                        };
                        for task in (0..TASKS).map(cycles).collect::<Vec<_>>() {
                            task.await.unwrap();
                        }
                    });
                }),
            ),
            (
                "lockkeeper, 64 tasks on their own names",
                Box::new(|n| {
                    runtime.block_on(async {
                        let cycles = |task: u32| {
                            let lock = keeper.lock(format!("ours-{task}"));
                            tokio::spawn(async move {
                                for _ in 0..n / TASKS {
                                    lock.acquire().await.unwrap().release().await.unwrap();
                                }
                            })
                        };
                        for task in (0..TASKS).map(cycles).collect::<Vec<_>>() {
                            task.await.unwrap();
                        }
                    });
                }),
            ),
        ],
    );
    table("etcd, 64 tasks, acquire + release", &samples);
    println!("\nthroughput: {:.2} of the floor's", 1.0 / samples[1].ratio(&samples[0]));
}

/// From the beginning of a release to the next keeper's guard.
fn hand_over() {
    const TURNS: usize = 400;
    pin();
    let server = EtcdServer::new();
    let runtime = runtime();
    let mut times = Vec::with_capacity(TURNS);
    let mut floor = Vec::with_capacity(TURNS);
    runtime.block_on(async {
        let raw = Raw::connect(server.port()).await;
        let keepers = [keeper(&server).await, keeper(&server).await];
        let mut held = keepers[0].lock("turns").acquire().await.unwrap();
        for turn in 1..=TURNS {
            let lock = keepers[turn % 2].lock("turns");
            let next = tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                (guard, Instant::now())
            });
            // In line, and watching.
            while keepers[0].inspect("turns").await.unwrap().is_none_or(|record| record.waiting != 1) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
            let began = Instant::now();
            held.release().await.unwrap();
            let (guard, at) = next.await.unwrap();
            held = guard;
            times.push(at.duration_since(began).as_secs_f64() * 1e6);
            let began = Instant::now();
            raw.cycle("floor").await;
            floor.push(began.elapsed().as_secs_f64() * 1e6);
        }
    });
    println!("\n### etcd, hand-over between two keepers\n");
    println!("| | p50 µs | p90 µs |\n|---|---|---|");
    for (name, times) in [("two transactions by hand", &floor), ("release to the next one's guard", &times)] {
        println!("| {name} | {:.0} | {:.0} |", quantile(times, 0.5), quantile(times, 0.9));
    }
}
