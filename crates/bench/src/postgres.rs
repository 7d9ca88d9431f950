//! The PostgreSQL store against the same statements sent by hand, on a server of its own with its data on disk.
//!
//! Pinned as the Redis part is: serial cases share one core with the server, throughput cases have one core each.

mod advisory;
mod held;

use crate::measure::{quantile, rounds, table};
use crate::redis::{pin, runtime};
use lockkeeper::{HolderId, Keeper};
use std::sync::Arc;
use std::time::Instant;
use testkit::PostgresServer;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, accepts, to_sql_checked};
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

/// Each in a process of its own, so that none inherits another's connections, memory and cores.
pub(crate) fn run() {
    for part in ["serial", "many", "handover", "held", "advisory"] {
        let child = std::process::Command::new(std::env::current_exe().unwrap()).args(["postgres", part]).status();
        assert!(child.unwrap().success());
    }
}

pub(crate) fn part(name: &str) {
    match name {
        "serial" => [true, false].into_iter().for_each(serial),
        "many" => [true, false].into_iter().for_each(many),
        "handover" => handover(),
        "held" => held::run(),
        "advisory" => advisory::run(),
        _ => println!("usage: bench postgres [serial|many|handover|held|advisory]"),
    }
}

/// A server that has a commit on disk before it answers, or one that does not wait.
fn server(durable: bool) -> PostgresServer {
    let commit = if durable { "synchronous_commit=on" } else { "synchronous_commit=off" };
    PostgresServer::with(&["fsync=on", commit, "shared_buffers=256MB", "autovacuum=on"])
}

/// A holder's id.
#[derive(Debug, Clone, Copy)]
struct Id(HolderId);

impl ToSql for Id {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0.to_u128().to_be_bytes());
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}

/// The least table that keeps a lease and a token.
pub(crate) const LEAST: &str =
    "CREATE TABLE least (name bytea PRIMARY KEY, token bigint, holder uuid, expires timestamptz)
    WITH (fillfactor = 50)";
const TAKE: &str = "INSERT INTO least AS l VALUES ($1, 1, $2, clock_timestamp() + interval '30 s')
    ON CONFLICT (name) DO UPDATE SET token = l.token + 1, holder = $2, expires = clock_timestamp() + interval '30 s'
    WHERE l.holder IS NULL OR l.expires <= clock_timestamp() RETURNING l.token";
const END: &str = "UPDATE least SET holder = NULL WHERE name = $1 AND holder = $2";

/// What the store sends for a lock that no other client wants.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
fn plain() -> [String; 2] {
    [
        format!(
            "INSERT INTO lockkeeper.lock AS l (name, token, holder, expires, ttl, since, host, pid, label)
             SELECT $1, a.at, $2, a.at + $3, $3, a.at, $4, $5, $6 FROM (SELECT {NOW} AS at OFFSET 0) AS a
             ON CONFLICT (name) DO UPDATE SET token = greatest(l.token + 1, excluded.token), holder = excluded.holder,
                 expires = excluded.expires, ttl = excluded.ttl, since = excluded.since, host = excluded.host,
                 pid = excluded.pid, label = excluded.label, keeper = NULL, stamp = NULL, lease = NULL
             WHERE l.others = 0 AND (l.holder IS NULL OR l.expires <= excluded.since) AND l.token < 9007199254740991
             RETURNING l.token"
        ),
        format!(
            "UPDATE lockkeeper.lock l SET holder = NULL, expires = NULL, ttl = NULL, since = NULL, host = NULL, pid = NULL,
                 label = NULL, keeper = NULL, stamp = NULL, lease = NULL
             WHERE l.name = $1 AND l.holder = $2 AND l.others = 0 AND l.expires > {NOW}"
        ),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The store's own statements.
    Plain,
    /// The store's own functions, for the cases that the statements do not cover.
    Functions,
    /// The least with a token.
    Least,
}

/// Two prepared statements by hand on one connection.
#[derive(Clone)]
pub(crate) struct Floor {
    client: Arc<Client>,
    plain: [Statement; 2],
    ours: [Statement; 2],
    least: [Statement; 2],
}

async fn connect(server: &PostgresServer) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Floor {
    pub(crate) async fn new(server: &PostgresServer) -> Self {
        let client = connect(server).await;
        let acquire = "SELECT * FROM lockkeeper.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        let ours = [
            client.prepare(acquire).await.unwrap(),
            client.prepare("SELECT * FROM lockkeeper.release($1, $2, $3)").await.unwrap(),
        ];
        let least = [client.prepare(TAKE).await.unwrap(), client.prepare(END).await.unwrap()];
        let [take, end] = plain();
        let plain = [client.prepare(&take).await.unwrap(), client.prepare(&end).await.unwrap()];
        Self { client: Arc::new(client), plain, ours, least }
    }

    pub(crate) async fn cycle(&self, way: Way, name: &str) {
        // A random holder id, as every real client makes one.
        let holder = Id(HolderId::random().unwrap());
        if way == Way::Least {
            let taken = self.client.query(&self.least[0], &[&name.as_bytes(), &holder]).await.unwrap();
            let ended = self.client.execute(&self.least[1], &[&name.as_bytes(), &holder]).await.unwrap();
            return assert_eq!((taken.len(), ended), (1, 1));
        }
        if way == Way::Plain {
            let (name, note) = (name.as_bytes(), &b"bench-host"[..]);
            let params: [&(dyn ToSql + Sync); 6] = [&name, &holder, &30_000_000_i64, &note, &12_345_i64, &note];
            let taken = self.client.query(&self.plain[0], &params).await.unwrap();
            let ended = self.client.execute(&self.plain[1], &[&name, &holder]).await.unwrap();
            return assert_eq!((taken.len(), ended), (1, 1));
        }
        let names = [name.as_bytes()];
        let (ttl, bytes) = ([30_000_000_i64], [&b"bench-host"[..]]);
        let params: [&(dyn ToSql + Sync); 11] = [
            &&names[..],
            &&[holder][..],
            &&[0_i64][..],
            &&ttl[..],
            &&[true][..],
            &&ttl[..],
            &&[1_234_567_890_i64][..],
            &holder,
            &&bytes[..],
            &&[12_345_i64][..],
            &&bytes[..],
        ];
        let taken = self.client.query(&self.ours[0], &params).await.unwrap();
        assert_eq!(taken[0].get::<_, i32>(1), 1);
        let ended =
            self.client.query(&self.ours[1], &[&&names[..], &&[holder][..], &&[None::<i64>][..]]).await.unwrap();
        assert_eq!(ended[0].get::<_, i32>(1), 1);
    }
}

fn word(durable: bool) -> &'static str {
    if durable { "on" } else { "off" }
}

/// One task, acquire then release.
fn serial(durable: bool) {
    pin(1);
    let server = server(durable);
    server.sql(LEAST);
    let runtime = runtime();
    let keeper = runtime.block_on(Keeper::connect(server.url())).unwrap();
    let floor = runtime.block_on(Floor::new(&server));
    let by_hand = |way: Way| {
        let (floor, runtime) = (floor.clone(), &runtime);
        Box::new(move |n| {
            let floor = floor.clone();
            // Spawned: the main thread is no worker, and each wake-up of it would be counted.
            let task = runtime.spawn(async move {
                for _ in 0..n {
                    floor.cycle(way, "orders/42").await;
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
        if durable { 150 } else { 600 },
        vec![
            ("the store's two statements by hand, prepared", by_hand(Way::Plain)),
            ("the store's two functions by hand, prepared", by_hand(Way::Functions)),
            ("least fenced: upsert and update by hand, prepared", by_hand(Way::Least)),
            ("lockkeeper: acquire + release, fenced", Box::new(ours)),
        ],
    );
    table(&format!("PostgreSQL, synchronous_commit={}, one task, acquire + release", word(durable)), &samples);
    println!("\nlockkeeper against the least fenced floor: {:.2}x", samples[3].ratio(&samples[2]));
}

/// Many tasks, each on a name of its own.
fn many(durable: bool) {
    const TASKS: usize = 64;
    let each = if durable { 20 } else { 60 };
    pin(0);
    let server = server(durable);
    server.sql(LEAST);
    pin(1);
    let runtime = runtime();
    let keeper = runtime.block_on(Keeper::connect(server.url())).unwrap();
    let floors: Vec<Floor> = (0..16).map(|_| runtime.block_on(Floor::new(&server))).collect();
    let names = ["least by hand, one connection, pipelined", "least by hand, 16 connections", "lockkeeper, fenced"];
    let mut speeds: [Vec<f64>; 3] = Default::default();
    for round in 0..=11 {
        for (contestant, speeds) in speeds.iter_mut().enumerate() {
            let began = Instant::now();
            let tasks = (0..TASKS).map(|task| {
                let (lock, floor) = (keeper.lock(format!("task/{task}")), floors[task * contestant % 16].clone());
                runtime.spawn(async move {
                    for _ in 0..each {
                        match contestant {
                            2 => lock.acquire().await.unwrap().release().await.unwrap(),
                            _ => floor.cycle(Way::Least, &format!("task/{task}")).await,
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
                speeds.push((TASKS * each) as f64 / began.elapsed().as_secs_f64());
            }
        }
    }
    println!("\n### PostgreSQL, synchronous_commit={}, {TASKS} tasks on distinct names\n", word(durable));
    println!("| | locks/s (quartiles) | x floor |\n|---|---|---|");
    for (name, speed) in names.iter().zip(&speeds) {
        let [low, mid, high] = [0.25, 0.5, 0.75].map(|q| quantile(speed, q));
        let ratio = quantile(&speed.iter().zip(&speeds[1]).map(|(ours, floor)| ours / floor).collect::<Vec<_>>(), 0.5);
        println!("| {name} | {mid:.0} ({low:.0}–{high:.0}) | {ratio:.2} |");
    }
}

/// From the release of one keeper to the grant of another; the floor is a notification from one connection to another.
fn handover() {
    const ROUNDS: usize = 300;
    pin(1);
    let server = server(false);
    let runtime = runtime();
    let (mut floor, mut ours) = (Vec::new(), Vec::new());
    runtime.block_on(async {
        let (a, b) = (Keeper::connect(server.url()).await.unwrap(), Keeper::connect(server.url()).await.unwrap());
        let talker = connect(&server).await;
        let (listener, mut connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
        let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(_) = message {
                    let _ = sender.send(Instant::now());
                }
            }
        });
        listener.batch_execute("LISTEN floor").await.unwrap();
        let notify = talker.prepare("SELECT pg_notify('floor', 'a grant')").await.unwrap();
        for _ in 0..ROUNDS {
            let began = Instant::now();
            talker.query(&notify, &[]).await.unwrap();
            floor.push((heard.recv().await.unwrap() - began).as_secs_f64() * 1e6);
            let guard = a.lock("baton").acquire().await.unwrap();
            let lock = b.lock("baton");
            let waiting = tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                let at = Instant::now();
                guard.release().await.unwrap();
                at
            });
            while a.inspect("baton").await.unwrap().unwrap().waiting == 0 {
                tokio::time::sleep(std::time::Duration::from_micros(200)).await;
            }
            let released = Instant::now();
            guard.release().await.unwrap();
            ours.push((waiting.await.unwrap() - released).as_secs_f64() * 1e6);
        }
    });
    println!("\n### PostgreSQL, synchronous_commit=off, hand-over between two keepers, {ROUNDS} rounds\n");
    println!("| | p50 µs | p99 µs | x floor (p50) |\n|---|---|---|---|");
    let least = quantile(&floor, 0.5);
    for (name, sample) in [("NOTIFY by hand", &floor), ("release() to acquire()", &ours)] {
        let (p50, p99) = (quantile(sample, 0.5), quantile(sample, 0.99));
        println!("| {name} | {p50:.0} | {p99:.0} | {:.1} |", p50 / least);
    }
}
