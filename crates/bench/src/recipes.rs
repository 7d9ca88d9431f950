//! What the recipes cost over a plain lock, on Redis; and how long an election takes when the leader is killed.

use crate::measure::{quantile, rounds, table};
use crate::redis::runtime;
use lockkeeper::clock::system_now;
use lockkeeper::{Error, Keeper};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;
use testkit::RedisServer;

/// Of the elections here.
const TTL: Duration = Duration::from_secs(2);
/// How often the leader is killed.
const KILLS: usize = 10;

pub(crate) fn run() {
    let server = RedisServer::new();
    costs(&server);
    fail_over(&server);
}

fn costs(server: &RedisServer) {
    let runtime = runtime();
    let keeper = runtime.block_on(Keeper::connect(server.url())).unwrap();
    let names = |count: usize| (0..count).map(|n| format!("all/{n}")).collect::<Vec<String>>();
    let (five, fifty) = (names(5), names(50));
    let mut key = 0u64;
    let all = |names: &Vec<String>, n: u32| {
        runtime.block_on(async {
            for _ in 0..n {
                keeper.lock_all(names).acquire().await.unwrap().release().await.unwrap();
            }
        });
    };
    runtime.block_on(keeper.once("hit").run(async |_| Ok::<_, Error>(1))).unwrap();
    let samples = rounds(
        20,
        200,
        vec![
            (
                "a lock: acquire + release",
                Box::new(|n| {
                    runtime.block_on(async {
                        for _ in 0..n {
                            keeper.lock("one").acquire().await.unwrap().release().await.unwrap();
                        }
                    });
                }),
            ),
            ("`lock_all` of 5 names", Box::new(|n| all(&five, n))),
            ("`lock_all` of 50 names", Box::new(|n| all(&fifty, n))),
            (
                "`once`, a new key (miss)",
                Box::new(|n| {
                    runtime.block_on(async {
                        for _ in 0..n {
                            key += 1;
                            keeper.once(format!("miss/{key}")).run(async |_| Ok::<_, Error>(1)).await.unwrap();
                        }
                    });
                }),
            ),
            (
                "`once`, a stored result (hit)",
                Box::new(|n| {
                    runtime.block_on(async {
                        for _ in 0..n {
                            keeper.once("hit").run(async |_| Ok::<_, Error>(2)).await.unwrap();
                        }
                    });
                }),
            ),
        ],
    );
    table("Recipes on Redis, one task", &samples);
}

/// From the kill of the leader to the next leader's grant, with one other candidate.
fn fail_over(server: &RedisServer) {
    let runtime = runtime();
    let keeper = runtime.block_on(Keeper::builder().ttl(TTL).connect(server.url())).unwrap();
    let mut took = Vec::new();
    for _ in 0..KILLS {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut leader = command.args(["leader", &server.url()]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(leader.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let candidate = {
            let keeper = keeper.clone();
            runtime.spawn(async move { keeper.election("bench").campaign("b").await })
        };
        while runtime.block_on(keeper.inspect("election/bench")).unwrap().is_none_or(|record| record.waiting == 0) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Anywhere between two renewals.
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..1000)));
        leader.kill().unwrap();
        let killed = system_now();
        leader.wait().unwrap();
        let leadership = runtime.block_on(candidate).unwrap().unwrap();
        took.push(system_now().since(killed).as_secs_f64() / TTL.as_secs_f64());
        runtime.block_on(leadership.resign()).unwrap();
    }
    println!("\n### Election on Redis: the leader is killed, {KILLS} times, TTL {} s\n", TTL.as_secs());
    println!("| | median | longest |\n|---|---|---|");
    println!("| time to the next leader, in TTLs | {:.2} | {:.2} |", quantile(&took, 0.5), quantile(&took, 1.0));
}

/// The other process: leads until it is killed.
pub(crate) fn lead(url: &str) {
    let keeper = lockkeeper::blocking::Keeper::builder().ttl(TTL).connect(url).unwrap();
    let leadership = keeper.election("bench").campaign("a").unwrap();
    println!("{}", leadership.term());
    leadership.lost();
}
