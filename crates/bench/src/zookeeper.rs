//! The ZooKeeper store against the same requests sent by hand, on a server of its own that does not wait for its disk.

use crate::measure::{quantile, rounds, table};
use lockkeeper::Keeper;
use std::time::{Duration, Instant};
use testkit::ZooKeeperServer;
use tokio::runtime::Runtime;
pub(crate) use zookeeper_client::Client;
use zookeeper_client::{Acls, CreateMode};

/// How many tasks ask at once, each for a lock of its own.
const TASKS: u32 = 64;

pub(crate) fn run() {
    let server = ZooKeeperServer::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let url = format!("{}/bench?session_timeout=60s", server.url());
    let keeper = runtime.block_on(Keeper::connect(&url)).unwrap();
    let client = runtime.block_on(by_hand(&server, TASKS));
    serial(&runtime, &keeper, &client);
    many(&runtime, &keeper, &client);
    let other = runtime.block_on(Keeper::connect(&url)).unwrap();
    hand_over(&runtime, &keeper, &other);
}

/// A client with a directory for each task.
pub(crate) async fn by_hand(server: &ZooKeeperServer, tasks: u32) -> Client {
    let connector = Client::connector().with_session_timeout(Duration::from_secs(60));
    let client = connector.connect(&format!("127.0.0.1:{}", server.port())).await.unwrap();
    let node = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for task in 0..=tasks {
        client.mkdir(&format!("/hand/{task}"), &node).await.unwrap();
    }
    client
}

#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// No lock: the client does not check for other holders.
    Writes,
    /// Each answer is waited for.
    Recipe,
    /// The first two go out together.
    Pipelined,
}

/// Takes and gives back a lock that is free.
pub(crate) async fn cycle(client: &Client, way: Way, dir: &str) {
    let (path, node) = (format!("{dir}/lock-"), CreateMode::EphemeralSequential.with_acls(Acls::anyone_all()));
    let making = client.create(&path, b"127.0.0.1", &node);
    let number = match way {
        Way::Writes => making.await.unwrap().1,
        Way::Recipe => {
            let number = making.await.unwrap().1;
            assert_eq!(client.list_children(dir).await.unwrap().len(), 1);
            number
        }
        Way::Pipelined => {
            let reading = client.list_children(dir);
            let number = making.await.unwrap().1;
            assert_eq!(reading.await.unwrap().len(), 1);
            number
        }
    };
    client.delete(&format!("{path}{number}"), None).await.unwrap();
}

async fn ours(keeper: &Keeper, name: &str) {
    keeper.lock(name).acquire().await.unwrap().release().await.unwrap();
}

fn serial(runtime: &Runtime, keeper: &Keeper, client: &Client) {
    let hand = |way: Way| {
        move |n: u32| {
            let client = client.clone();
            let work = async move {
                for _ in 0..n {
                    cycle(&client, way, "/hand/0").await;
                }
            };
            runtime.block_on(runtime.spawn(work)).unwrap();
        }
    };
    let mine = |n: u32| {
        let keeper = keeper.clone();
        let work = async move {
            for _ in 0..n {
                ours(&keeper, "serial").await;
            }
        };
        runtime.block_on(runtime.spawn(work)).unwrap();
    };
    let samples = rounds(
        9,
        200,
        vec![
            ("create, list, delete by hand", Box::new(hand(Way::Recipe))),
            ("create + list together, delete", Box::new(hand(Way::Pipelined))),
            ("create, delete: no lock", Box::new(hand(Way::Writes))),
            ("lockkeeper", Box::new(mine)),
        ],
    );
    table("ZooKeeper: acquire and release, one task", &samples);
}

fn many(runtime: &Runtime, keeper: &Keeper, client: &Client) {
    let hand = |way: Way| {
        move |n: u32| {
            let mut tasks = tokio::task::JoinSet::new();
            for task in 1..=TASKS {
                let client = client.clone();
                let work = async move {
                    for _ in 0..n / TASKS {
                        cycle(&client, way, &format!("/hand/{task}")).await;
                    }
                };
                tasks.spawn_on(work, runtime.handle());
            }
            runtime.block_on(tasks.join_all());
        }
    };
    let mine = |n: u32| {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 1..=TASKS {
            let keeper = keeper.clone();
            let work = async move {
                for _ in 0..n / TASKS {
                    ours(&keeper, &format!("many/{task}")).await;
                }
            };
            tasks.spawn_on(work, runtime.handle());
        }
        runtime.block_on(tasks.join_all());
    };
    let samples = rounds(
        9,
        TASKS * 20,
        vec![
            ("create, list, delete by hand", Box::new(hand(Way::Recipe))),
            ("create + list together, delete", Box::new(hand(Way::Pipelined))),
            ("lockkeeper", Box::new(mine)),
        ],
    );
    table("ZooKeeper: acquire and release, 64 tasks, each its own lock", &samples);
}

/// From the call of a release to the grant of a waiter of another keeper.
fn hand_over(runtime: &Runtime, one: &Keeper, other: &Keeper) {
    let mut times = Vec::new();
    for _ in 0..200 {
        let took = runtime.block_on(async {
            let guard = one.lock("baton").acquire().await.unwrap();
            let waiter = tokio::spawn({
                let lock = other.lock("baton");
                async move {
                    let guard = lock.acquire().await.unwrap();
                    let granted = Instant::now();
                    guard.release().await.unwrap();
                    granted
                }
            });
            while one.inspect("baton").await.unwrap().is_none_or(|record| record.waiting == 0) {
                tokio::task::yield_now().await;
            }
            let released = Instant::now();
            guard.release().await.unwrap();
            waiter.await.unwrap().saturating_duration_since(released)
        });
        times.push(took.as_secs_f64() * 1e6);
    }
    println!(
        "\nZooKeeper: hand-over to another keeper: {:.0} µs (quartiles {:.0}–{:.0}) of {}",
        quantile(&times, 0.5),
        quantile(&times, 0.25),
        quantile(&times, 0.75),
        times.len()
    );
}
