//! The SQLite store against its own two statements, run by hand on one connection.

use crate::measure::{cpu_time, rounds, table};
use lockkeeper::Keeper;
pub(crate) use lockkeeper::stores::sqlite::Synchronous;
use lockkeeper::stores::sqlite::{END, SqliteOptions, SqliteStore, TAKE};
use rusqlite::{Connection, named_params};
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(crate) fn run() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (level, synchronous, count) in [("normal", Synchronous::Normal, 4_000), ("full", Synchronous::Full, 200)] {
        let dir = scratch();
        let keeper = runtime.block_on(Keeper::connect(url(&dir, level))).unwrap();
        let floor = Floor::open(&dir.join("floor.db"), synchronous);
        let samples = rounds(
            20,
            count,
            vec![
                ("the same two statements by hand", Box::new(|n| (0..n).for_each(|_| floor.cycle("orders/42")))),
                (
                    "lockkeeper: acquire + release, fenced",
                    Box::new(|n| {
                        runtime.block_on(async {
                            for _ in 0..n {
                                keeper.lock("orders/42").acquire().await.unwrap().release().await.unwrap();
                            }
                        });
                    }),
                ),
            ],
        );
        table(&format!("SQLite, synchronous={level}, one task, acquire + release"), &samples);
        many_tasks(&runtime, &keeper, level, count);
        drop((keeper, floor));
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// Sixteen tasks share the flush of one transaction.
fn many_tasks(runtime: &tokio::runtime::Runtime, keeper: &Keeper, level: &str, count: u32) {
    let cycles = |tasks: u32, each: u32| {
        let (start, cpu) = (Instant::now(), cpu_time());
        runtime.block_on(async {
            let mut running = Vec::new();
            for task in 0..tasks {
                let lock = keeper.lock(format!("task/{task}"));
                running.push(tokio::spawn(async move {
                    for _ in 0..each {
                        lock.acquire().await.unwrap().release().await.unwrap();
                    }
                }));
            }
            for task in running {
                task.await.unwrap();
            }
        });
        let total = f64::from(tasks * each);
        (total / start.elapsed().as_secs_f64(), (cpu_time() - cpu).as_secs_f64() * 1e6 / total)
    };
    let (mut one, mut many) = (Vec::new(), Vec::new());
    for _ in 0..11 {
        one.push(cycles(1, count));
        many.push(cycles(16, count / 4));
    }
    let median = |v: &[(f64, f64)]| crate::measure::quantile(&v.iter().map(|x| x.0).collect::<Vec<_>>(), 0.5);
    let (serial, shared) = (median(&one), median(&many));
    println!(
        "\n1 task: {serial:.0} locks/s; 16 tasks: {shared:.0} locks/s = {:.1}x (synchronous={level})",
        shared / serial
    );
}

/// The two statements of a cycle, prepared once, on the tables that the store itself made.
pub(crate) struct Floor {
    conn: Connection,
}

impl Floor {
    pub(crate) fn open(path: &Path, synchronous: Synchronous) -> Self {
        let mut options = SqliteOptions::default();
        options.synchronous = synchronous;
        drop(SqliteStore::open(path, options).unwrap());
        let conn = Connection::open(path).unwrap();
        let level = if synchronous == Synchronous::Full { "FULL" } else { "NORMAL" };
        conn.pragma_update(None, "synchronous", level).unwrap();
        Self { conn }
    }

    pub(crate) fn cycle(&self, name: &str) {
        let now = i64::try_from(lockkeeper::clock::system_now().as_micros()).unwrap();
        let wall = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap();
        let holder = lockkeeper::HolderId::random().unwrap().to_u128().to_be_bytes();
        let mut take = self.conn.prepare_cached(TAKE).unwrap();
        let mut rows = take
            .query(named_params! {
                ":name": name.as_bytes(), ":wall": wall, ":holder": holder, ":expires": now + 30_000_000, ":boot": 1,
                ":keeper": 1, ":host": "host", ":pid": 1, ":label": "", ":now": now,
            })
            .unwrap();
        let _token: i64 = rows.next().unwrap().unwrap().get(0).unwrap();
        assert!(rows.next().unwrap().is_none());
        drop(rows);
        let ended = self
            .conn
            .prepare_cached(END)
            .unwrap()
            .execute(named_params! { ":name": name.as_bytes(), ":holder": holder, ":boot": 1, ":now": now });
        assert_eq!(ended.unwrap(), 1);
    }
}

fn url(dir: &Path, level: &str) -> String {
    format!("sqlite:{}?synchronous={level}", dir.join("locks.db").display())
}

/// A folder of our own on the disk that holds the target folder: /tmp may be memory, whose flush costs nothing.
pub(crate) fn scratch() -> PathBuf {
    let near = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let dir = near.join(format!("bench-{}-{}", std::process::id(), lockkeeper::clock::system_now().as_micros()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}
