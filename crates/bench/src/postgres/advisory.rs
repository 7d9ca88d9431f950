//! Advisory mode against the same calls by hand: the lock alone, and with the least that draws a token.

use super::{connect, server};
use crate::measure::{quantile, rounds, table};
use crate::redis::{pin, runtime};
use lockkeeper::Keeper;
use std::sync::Arc;
use std::time::Instant;
use testkit::PostgresServer;
use tokio_postgres::{Client, Statement};

const TASKS: usize = 64;

/// The least that draws a token while the lock is held.
const LEAST: &str = "CREATE TABLE advisory_least (key bigint PRIMARY KEY, token bigint) WITH (fillfactor = 50)";
const FENCED: &str = "WITH asked AS MATERIALIZED (SELECT pg_try_advisory_lock($1) AS taken)
    INSERT INTO advisory_least AS l SELECT $1, 1 FROM asked WHERE taken
    ON CONFLICT (key) DO UPDATE SET token = l.token + 1 RETURNING token";

/// Prepared statements on one session.
#[derive(Clone)]
struct Floor {
    client: Arc<Client>,
    take: [Statement; 2],
    free: Statement,
}

impl Floor {
    async fn new(server: &PostgresServer) -> Self {
        let client = connect(server).await;
        client.batch_execute("SET synchronous_commit = off").await.unwrap();
        let take =
            [client.prepare("SELECT pg_try_advisory_lock($1)").await.unwrap(), client.prepare(FENCED).await.unwrap()];
        let free = client.prepare("SELECT pg_advisory_unlock($1)").await.unwrap();
        Self { client: Arc::new(client), take, free }
    }

    async fn cycle(&self, fenced: bool, key: i64) {
        let taken = self.client.query(&self.take[usize::from(fenced)], &[&key]).await.unwrap();
        assert!(if fenced { taken[0].get::<_, i64>(0) > 0 } else { taken[0].get(0) });
        let freed = self.client.query(&self.free, &[&key]).await.unwrap();
        assert!(freed[0].get::<_, bool>(0));
    }
}

pub(super) fn run() {
    serial();
    many();
}

fn serial() {
    pin(1);
    let server = server(true);
    server.sql(LEAST);
    let runtime = runtime();
    let keeper = runtime.block_on(Keeper::connect(format!("{}?mode=advisory", server.url()))).unwrap();
    let floor = runtime.block_on(Floor::new(&server));
    // A session on a thread of its own, as any that outlives its callers has.
    let elsewhere = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let far = elsewhere.block_on(Floor::new(&server));
    let by_hand = |fenced: bool, far_away: bool| {
        let (floor, runtime) = (if far_away { far.clone() } else { floor.clone() }, &runtime);
        Box::new(move |n| {
            let floor = floor.clone();
            let task = runtime.spawn(async move {
                for _ in 0..n {
                    floor.cycle(fenced, 42).await;
                }
            });
            runtime.block_on(task).unwrap();
        })
    };
    let ours = |n| {
        let lock = keeper.lock("orders/42");
        let task = runtime.spawn(async move {
            for _ in 0..n {
                lock.acquire().await.unwrap().release().await.unwrap();
            }
        });
        runtime.block_on(task).unwrap();
    };
    let samples = rounds(
        24,
        400,
        vec![
            ("pg_try_advisory_lock and unlock by hand, prepared", by_hand(false, false)),
            ("least fenced: lock and token in one statement, unlock", by_hand(true, false)),
            ("least fenced, the session on another thread", by_hand(true, true)),
            ("lockkeeper, mode=advisory, fenced", Box::new(ours)),
        ],
    );
    table("PostgreSQL advisory locks, one task, acquire + release", &samples);
    println!("\nlockkeeper against the least fenced: {:.2}x", samples[3].ratio(&samples[1]));
    println!("against the least fenced on another thread: {:.2}x", samples[3].ratio(&samples[2]));
}

fn many() {
    const EACH: usize = 60;
    pin(0);
    let server = server(true);
    server.sql(LEAST);
    pin(1);
    let runtime = runtime();
    let keeper = runtime.block_on(Keeper::connect(format!("{}?mode=advisory", server.url()))).unwrap();
    let floor = runtime.block_on(Floor::new(&server));
    let names = ["lock and unlock by hand, one session, pipelined", "least fenced, pipelined", "lockkeeper, fenced"];
    let mut speeds: [Vec<f64>; 3] = Default::default();
    for round in 0..=15 {
        for (contestant, speeds) in speeds.iter_mut().enumerate() {
            let began = Instant::now();
            let tasks = (0..TASKS).map(|task| {
                let (lock, floor) = (keeper.lock(format!("task/{task}")), floor.clone());
                runtime.spawn(async move {
                    for _ in 0..EACH {
                        match contestant {
                            2 => lock.acquire().await.unwrap().release().await.unwrap(),
                            way => floor.cycle(way == 1, task as i64).await,
                        }
                    }
                })
            });
            let tasks: Vec<_> = tasks.collect();
            runtime.block_on(async {
                for task in tasks {
                    task.await.unwrap();
                }
            });
            if round > 0 {
                speeds.push((TASKS * EACH) as f64 / began.elapsed().as_secs_f64());
            }
        }
    }
    println!("\n### PostgreSQL advisory locks, {TASKS} tasks on distinct names\n");
    println!("| | locks/s (quartiles) | x floor |\n|---|---|---|");
    for (name, speed) in names.iter().zip(&speeds) {
        let [low, mid, high] = [0.25, 0.5, 0.75].map(|q| quantile(speed, q));
        let ratio = quantile(&speed.iter().zip(&speeds[0]).map(|(ours, floor)| ours / floor).collect::<Vec<_>>(), 0.5);
        println!("| {name} | {mid:.0} ({low:.0}–{high:.0}) | {ratio:.2} |");
    }
}
