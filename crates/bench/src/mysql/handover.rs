//! From the release of one keeper to the grant of another, both always in line. The floor is a session lock that one
//! connection gives back and another has waited for.

use super::open;
use crate::measure::quantile;
use lockkeeper::{Guard, Keeper};
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use std::time::{Duration, Instant};
use testkit::MysqlServer;
use tokio::runtime::Runtime;

const ROUNDS: usize = 200;

pub(super) fn run(runtime: &Runtime) {
    let server = MysqlServer::with(&["--innodb-flush-log-at-trx-commit=2"]);
    let (floor, timed) = runtime.block_on(async {
        let mut baton = Baton::new(&server).await;
        let mut timed = Pair::new(&server).await;
        let mut samples = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            samples.0.push(baton.pass().await);
            samples.1.push(timed.pass().await);
        }
        samples
    });
    println!("\n### MariaDB, commits left to the system, hand-over between two keepers, {ROUNDS} rounds\n");
    println!("| | p50 µs | p99 µs | x floor (p50) |\n|---|---|---|---|");
    let least = quantile(&floor, 0.5);
    for (name, sample) in
        [("RELEASE_LOCK to GET_LOCK by hand", &floor), ("release() to acquire(), timed retry", &timed)]
    {
        let (p50, p99) = (quantile(sample, 0.5), quantile(sample, 0.99));
        println!("| {name} | {p50:.0} | {p99:.0} | {:.1} |", p50 / least);
    }
}

/// Waits until so many connections wait for a session lock.
async fn asleep(conn: &mut Conn, count: u64) {
    let text = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'";
    while conn.query_first::<u64, _>(text).await.unwrap() != Some(count) {
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
}

/// Two plain connections and the lock that one of them has.
struct Baton {
    has: Conn,
    waits: Option<Conn>,
    look: Conn,
}

impl Baton {
    async fn new(server: &MysqlServer) -> Self {
        let mut has = open(server).await;
        has.query_drop("DO GET_LOCK('baton', 0)").await.unwrap();
        Self { has, waits: Some(open(server).await), look: open(server).await }
    }

    async fn pass(&mut self) -> f64 {
        let mut next = self.waits.take().unwrap();
        let waiting = tokio::spawn(async move {
            let got: Option<u64> = next.query_first("SELECT GET_LOCK('baton', 60)").await.unwrap();
            assert_eq!(got, Some(1));
            (next, Instant::now())
        });
        asleep(&mut self.look, 1).await;
        let released = Instant::now();
        self.has.query_drop("DO RELEASE_LOCK('baton')").await.unwrap();
        let (next, at) = waiting.await.unwrap();
        self.waits = Some(std::mem::replace(&mut self.has, next));
        (at - released).as_secs_f64() * 1e6
    }
}

/// Two keepers, and the guard of the first.
struct Pair {
    keepers: [Keeper; 2],
    name: String,
    guard: Option<Guard>,
}

impl Pair {
    async fn new(server: &MysqlServer) -> Self {
        let url = server.url();
        let keepers = [Keeper::connect(&url).await.unwrap(), Keeper::connect(&url).await.unwrap()];
        let name = "baton".to_owned();
        let guard = Some(keepers[0].lock(&name).acquire().await.unwrap());
        let mut pair = Self { keepers, name, guard };
        pair.pass().await;
        pair
    }

    async fn pass(&mut self) -> f64 {
        let lock = self.keepers[1].lock(&self.name);
        let waiting = tokio::spawn(async move { (lock.acquire().await.unwrap(), Instant::now()) });
        while self.keepers[0].inspect(&self.name).await.unwrap().unwrap().waiting == 0 {
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        let guard = self.guard.take().unwrap();
        let released = Instant::now();
        guard.release().await.unwrap();
        let (guard, at) = waiting.await.unwrap();
        self.guard = Some(guard);
        self.keepers.reverse();
        (at - released).as_secs_f64() * 1e6
    }
}
