//! Ten thousand held locks, against the same renewals sent by hand in one statement per thousand.

use super::{Id, LEAST, connect, pin, server};
use crate::measure::cpu_time;
use lockkeeper::{Guard, HolderId, Keeper};
use std::time::{Duration, Instant};
use testkit::PostgresServer;

const LOCKS: usize = 10_000;
const TTL: Duration = Duration::from_secs(30);
const WATCH: Duration = Duration::from_secs(30);
const DEEP: usize = 1000;

const KEEP: &str = "UPDATE least l SET expires = clock_timestamp() + interval '30 s'
    FROM unnest($1::bytea[], $2::uuid[]) AS x (name, holder)
    WHERE l.name = x.name AND l.holder = x.holder AND l.expires > clock_timestamp()";

pub(super) fn run() {
    pin(0);
    let server = server(true);
    server.sql(LEAST);
    pin(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("\n### PostgreSQL, synchronous_commit=on, {LOCKS} locks held, TTL {TTL:?}\n");
    println!("| | client CPU µs per renewal | commits per {LOCKS} renewals | still held |\n|---|---|---|---|");
    let (cpu, took) = runtime.block_on(by_hand(&server));
    println!("| least UPDATE by hand, {DEEP} in one | {cpu:.2} | {} | – |", LOCKS / DEEP);
    let (cpu, commits, alive) = runtime.block_on(hold(&server));
    println!("| lockkeeper | {cpu:.2} | {commits:.0} | {alive} of {LOCKS} |");
    println!("\nBy hand, {LOCKS} renewals take the server and the client {:.0} ms.", took.as_secs_f64() * 1e3);
}

fn commits(server: &PostgresServer) -> f64 {
    let text = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'";
    server.sql(text).parse().unwrap()
}

async fn hold(server: &PostgresServer) -> (f64, f64, usize) {
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
    let (commits_before, cpu) = (commits(server), cpu_time());
    tokio::time::sleep(WATCH).await;
    let cpu = cpu_time() - cpu;
    // Every lock is renewed once in a third of its TTL.
    let rounds = WATCH.as_secs_f64() / (TTL / 3).as_secs_f64();
    let alive = guards.iter().filter(|guard| guard.check().is_ok()).count();
    let commits = (commits(server) - commits_before) / rounds;
    drop(guards);
    keeper.close(TTL).await.unwrap();
    (cpu.as_secs_f64() * 1e6 / (rounds * LOCKS as f64), commits, alive)
}

async fn by_hand(server: &PostgresServer) -> (f64, Duration) {
    let client = connect(server).await;
    let names: Vec<Vec<u8>> = (0..LOCKS).map(|i| format!("orders/{i:06}").into_bytes()).collect();
    let holders: Vec<Id> = names.iter().map(|_| Id(HolderId::random().unwrap())).collect();
    let fill = "INSERT INTO least SELECT x.name, 1, x.holder, clock_timestamp() + interval '1 h'
        FROM unnest($1::bytea[], $2::uuid[]) AS x (name, holder)";
    client.execute(fill, &[&names, &holders]).await.unwrap();
    let keep = client.prepare(KEEP).await.unwrap();
    let (mut cpu, mut took) = (Duration::ZERO, Duration::ZERO);
    const ROUNDS: u32 = 5;
    for _ in 0..ROUNDS {
        let (began, before) = (Instant::now(), cpu_time());
        for (names, holders) in names.chunks(DEEP).zip(holders.chunks(DEEP)) {
            assert_eq!(client.execute(&keep, &[&names, &holders]).await.unwrap(), DEEP as u64);
        }
        cpu += cpu_time() - before;
        took += began.elapsed();
    }
    (cpu.as_secs_f64() * 1e6 / (f64::from(ROUNDS) * LOCKS as f64), took / ROUNDS)
}
