//! Ten thousand held locks, against the same renewals sent by hand, as many in one statement.

use super::{NOW, open};
use crate::measure::cpu_time;
use lockkeeper::{Guard, HolderId, Keeper};
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use std::time::{Duration, Instant};
use testkit::MysqlServer;

const LOCKS: usize = 10_000;
const TTL: Duration = Duration::from_secs(30);
const WATCH: Duration = Duration::from_secs(30);

/// As many as the store sends in one.
const DEEP: usize = 200;

pub(super) fn run() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = MysqlServer::with(&["--innodb-flush-log-at-trx-commit=1"]);
    println!("\n### MariaDB, commits flushed to disk, {LOCKS} locks held, TTL {TTL:?}\n");
    println!(
        "| | client CPU µs per renewal | x floor | updates per {LOCKS} renewals | still held |\n|---|---|---|---|---|"
    );
    let (floor, took) = runtime.block_on(by_hand(&server));
    println!("| least UPDATE by hand, {DEEP} in one | {floor:.2} | 1.00 | {} | – |", LOCKS / DEEP);
    let (cpu, updates, alive) = runtime.block_on(hold(&server));
    println!("| lockkeeper | {cpu:.2} | {:.2} | {updates:.0} | {alive} of {LOCKS} |", cpu / floor);
    println!("\nBy hand, {LOCKS} renewals take the server and the client {:.0} ms.", took.as_secs_f64() * 1e3);
}

/// How many updates the server has done.
async fn updates(conn: &mut Conn) -> f64 {
    let (_, count): (String, f64) = conn.query_first("SHOW GLOBAL STATUS LIKE 'Com_update'").await.unwrap().unwrap();
    count
}

async fn hold(server: &MysqlServer) -> (f64, f64, usize) {
    let mut look = open(server).await;
    let keeper = Keeper::builder().ttl(TTL).connect(server.url()).await.unwrap();
    let mut taking = Vec::with_capacity(LOCKS);
    for i in 0..LOCKS {
        let lock = keeper.lock(format!("orders/{i:06}"));
        taking.push(tokio::spawn(async move { lock.acquire().await.unwrap() }));
    }
    let mut guards: Vec<Guard> = Vec::with_capacity(LOCKS);
    for task in taking {
        guards.push(task.await.unwrap());
    }
    let (updates_before, cpu) = (updates(&mut look).await, cpu_time());
    tokio::time::sleep(WATCH).await;
    let cpu = cpu_time() - cpu;
    // Every lock is renewed once in a third of its TTL.
    let rounds = WATCH.as_secs_f64() / (TTL / 3).as_secs_f64();
    let alive = guards.iter().filter(|guard| guard.check().is_ok()).count();
    let updates = (updates(&mut look).await - updates_before) / rounds;
    drop(guards);
    keeper.close(TTL).await.unwrap();
    (cpu.as_secs_f64() * 1e6 / (rounds * LOCKS as f64), updates, alive)
}

async fn by_hand(server: &MysqlServer) -> (f64, Duration) {
    let mut conn = open(server).await;
    let locks: Vec<(String, String)> = (0..LOCKS)
        .map(|i| (format!("'orders/{i:06}'"), format!("X'{}'", HolderId::random().unwrap().to_hex())))
        .collect();
    for chunk in locks.chunks(DEEP) {
        let rows: Vec<String> =
            chunk.iter().map(|(name, owner)| format!("({name}, 1, {owner}, {NOW} + 3600000000)")).collect();
        conn.query_drop(format!("INSERT INTO floor VALUES {}", rows.join(","))).await.unwrap();
    }
    let (mut cpu, mut took) = (Duration::ZERO, Duration::ZERO);
    const ROUNDS: u32 = 5;
    for _ in 0..ROUNDS {
        let (began, before) = (Instant::now(), cpu_time());
        for chunk in locks.chunks(DEEP) {
            let (names, owners): (Vec<&str>, Vec<&str>) =
                chunk.iter().map(|(name, owner)| (name.as_str(), owner.as_str())).unzip();
            let keep = format!(
                "UPDATE floor FORCE INDEX (PRIMARY) SET expires = {NOW} + 30000000 WHERE name IN ({}) AND owner IN ({}) \
                 AND expires > {NOW}",
                names.join(","),
                owners.join(",")
            );
            conn.query_drop(keep).await.unwrap();
            assert_eq!(conn.affected_rows(), DEEP as u64);
        }
        cpu += cpu_time() - before;
        took += began.elapsed();
    }
    (cpu.as_secs_f64() * 1e6 / (f64::from(ROUNDS) * LOCKS as f64), took / ROUNDS)
}
