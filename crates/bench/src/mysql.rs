//! The MySQL store against two statements by hand: an upsert that draws the token, and an update that ends the lease.
//! Also against its own procedure, called by hand. On MariaDB, by loopback.

mod handover;
mod held;

use crate::measure::{quantile, rounds, table};
use lockkeeper::{HolderId, Keeper};
pub(crate) use mysql_async::Conn;
use mysql_async::Opts;
use mysql_async::prelude::Queryable as _;
use std::sync::Arc;
use std::time::Instant;
use testkit::MysqlServer;
use tokio::runtime::Runtime;

/// As many as the store's default.
pub(crate) const CONNECTIONS: usize = 4;

const TASKS: usize = 64;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS floor (name VARBINARY(512) PRIMARY KEY, token BIGINT UNSIGNED NOT NULL, \
    owner BINARY(16), expires BIGINT NOT NULL) ENGINE=InnoDB";

const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// Each in a process of its own, so that none inherits another's connections and memory.
pub(crate) fn run() {
    for part in ["cycle", "handover", "held"] {
        let child = std::process::Command::new(std::env::current_exe().unwrap()).args(["mysql", part]).status();
        assert!(child.unwrap().success());
    }
}

pub(crate) fn part(name: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match name {
        "cycle" => cycle(&runtime),
        "handover" => handover::run(&runtime),
        "held" => held::run(),
        _ => println!("usage: bench mysql [cycle|handover|held]"),
    }
}

fn cycle(runtime: &Runtime) {
    for (title, flush) in [("commits left to the system", 2), ("commits flushed to disk", 1)] {
        let server = MysqlServer::with(&[&format!("--innodb-flush-log-at-trx-commit={flush}")]);
        serial(runtime, &server, title);
        many(runtime, &server, title);
    }
}

fn serial(runtime: &Runtime, server: &MysqlServer, title: &str) {
    let keeper = runtime.block_on(Keeper::connect(server.url())).unwrap();
    let mut floor = runtime.block_on(open(server));
    let mut calls = runtime.block_on(open(server));
    let samples = rounds(
        10,
        300,
        vec![
            (
                "two statements by hand, exclusive only",
                Box::new(|n| {
                    runtime.block_on(async {
                        for _ in 0..n {
                            by_hand(&mut floor, "orders/42").await;
                        }
                    });
                }),
            ),
            (
                "two calls of the procedure by hand",
                Box::new(|n| {
                    runtime.block_on(async {
                        for _ in 0..n {
                            by_call(&mut calls, "orders/43").await;
                        }
                    });
                }),
            ),
            (
                "lockkeeper: acquire + release",
                Box::new(|n| {
                    runtime.block_on(async {
                        for _ in 0..n {
                            keeper.lock("orders/44").acquire().await.unwrap().release().await.unwrap();
                        }
                    });
                }),
            ),
        ],
    );
    table(&format!("MariaDB, {title}, one task, acquire + release"), &samples);
}

/// So many tasks, each with a lock of its own.
fn many(runtime: &Runtime, server: &MysqlServer, title: &str) {
    const EACH: u32 = 20;
    let keeper = runtime.block_on(Keeper::connect(server.url())).unwrap();
    let pool: Arc<Vec<tokio::sync::Mutex<Conn>>> = Arc::new(runtime.block_on(async {
        let mut pool = Vec::new();
        for _ in 0..CONNECTIONS {
            pool.push(open(server).await.into());
        }
        pool
    }));
    let ours = || {
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for task in 0..TASKS {
                let lock = keeper.lock(format!("task/{task}"));
                tasks.spawn(async move {
                    for _ in 0..EACH {
                        lock.acquire().await.unwrap().release().await.unwrap();
                    }
                });
            }
            tasks.join_all().await;
        });
    };
    let theirs = || {
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for task in 0..TASKS {
                let (pool, name) = (pool.clone(), format!("task/{task}"));
                tasks.spawn(async move {
                    for _ in 0..EACH {
                        by_hand(&mut *pool[task % CONNECTIONS].lock().await, &name).await;
                    }
                });
            }
            tasks.join_all().await;
        });
    };
    let rate = |work: &dyn Fn()| {
        let start = Instant::now();
        work();
        f64::from(EACH) * TASKS as f64 / start.elapsed().as_secs_f64()
    };
    let (mut hand, mut keeper) = (Vec::new(), Vec::new());
    for round in 0..=8 {
        let pair = (rate(&theirs), rate(&ours));
        if round > 0 {
            hand.push(pair.0);
            keeper.push(pair.1);
        }
    }
    let (hand, keeper) = (quantile(&hand, 0.5), quantile(&keeper, 0.5));
    println!(
        "\n{TASKS} tasks, {CONNECTIONS} connections, {title}: {hand:.0} locks/s by hand, {keeper:.0} locks/s with lockkeeper \
         = {:.2}x",
        keeper / hand
    );
}

pub(crate) async fn open(server: &MysqlServer) -> Conn {
    let mut conn = Conn::new(Opts::from_url(&format!("{}?prefer_socket=false", server.url())).unwrap()).await.unwrap();
    let setup = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET time_zone = '+00:00'";
    conn.query_drop(setup).await.unwrap();
    conn.query_drop(TABLE).await.unwrap();
    conn
}

/// What is usually written by hand: no queue, no modes, no note of the holder.
pub(crate) async fn by_hand(conn: &mut Conn, name: &str) {
    let holder = HolderId::random().unwrap().to_hex();
    let take = format!(
        "INSERT INTO floor VALUES ('{name}', LAST_INSERT_ID({NOW}), X'{holder}', {NOW} + 30000000) ON DUPLICATE KEY UPDATE \
         token = IF(expires <= {NOW}, LAST_INSERT_ID(GREATEST(token + 1, {NOW})), token + 0 * LAST_INSERT_ID(0)), \
         owner = IF(expires <= {NOW}, X'{holder}', owner), expires = IF(expires <= {NOW}, {NOW} + 30000000, expires)"
    );
    conn.query_drop(take).await.unwrap();
    assert!(conn.last_insert_id().is_some_and(|token| token > 0), "granted");
    conn.query_drop(format!(
        "UPDATE floor SET owner = NULL, expires = 0 WHERE name = '{name}' AND owner = X'{holder}'"
    ))
    .await
    .unwrap();
    assert_eq!(conn.affected_rows(), 1, "released");
}

/// The store's own round trips, without the store.
async fn by_call(conn: &mut Conn, name: &str) {
    let holder = HolderId::random().unwrap().to_hex();
    for (op, code) in [('a', 1), ('r', 1)] {
        let text = format!(
            "START TRANSACTION;CALL lockkeeper_step('{op}','{name}',X'{holder}',0,30000000,10000000,0,0,X'{holder}','host',1,'');COMMIT"
        );
        let mut result = conn.query_iter(text).await.unwrap();
        let _begun: Vec<mysql_async::Row> = result.collect().await.unwrap();
        let rows: Vec<mysql_async::Row> = result.collect().await.unwrap();
        result.drop_result().await.unwrap();
        assert_eq!(rows[0].get::<i64, _>(0), Some(code));
    }
}
