//! Other clients in the same run: the same cycle, each in its own language, on the same server.
//!
//! Those in Python and JavaScript are what `scripts/peers` installs; without them their rows say so.

use super::{Floor, Way, pin, runtime};
use crate::measure::quantile;
use lockkeeper::Keeper;
use rslock::LockManager;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::RedisServer;

const ROUNDS: usize = 7;
const CYCLES: u32 = 1_000;

const PYTHON: &str = "
import sys, time, redis
client = redis.Redis(port=int(sys.argv[1]))
def cycles(n):
    for _ in range(n):
        lock = client.lock('peers', timeout=30)
        lock.acquire()
        lock.release()
cycles(100)
began = time.perf_counter()
cycles(int(sys.argv[2]))
print(time.perf_counter() - began)
";

const NODE: &str = "
const { default: Redlock } = require('redlock');
const { Redis } = require('ioredis');
const client = new Redis({ host: '127.0.0.1', port: Number(process.argv[1]) });
const redlock = new Redlock([client]);
const cycles = async (n) => { for (let i = 0; i < n; i++) await (await redlock.acquire(['peers'], 30000)).release(); };
(async () => {
  await cycles(100);
  const began = process.hrtime.bigint();
  await cycles(Number(process.argv[2]));
  console.log(Number(process.hrtime.bigint() - began) / 1e9);
  client.disconnect();
})();
";

fn installed() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    cache.unwrap_or_else(home).join("lockkeeper/peers")
}

/// Seconds for all cycles, as a program of another language prints them.
fn elsewhere(command: &mut Command) -> Option<f64> {
    let output = command.output().ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// Serial cycles of every client, in turn, on one core with the server.
pub(super) fn run() {
    pin(1);
    let server = RedisServer::new();
    let runtime = runtime();
    let keeper = runtime.block_on(Keeper::connect(server.url())).unwrap();
    let floor = runtime.block_on(Floor::new(&server));
    let manager = LockManager::new(vec![server.url()]);
    let (port, count, peers) = (server.port().to_string(), CYCLES.to_string(), installed());
    let by_hand = |way: Way| {
        let mut floor = floor.clone();
        let began = Instant::now();
        let cycles = runtime.spawn(async move {
            for _ in 0..CYCLES {
                floor.cycle(way, "peers").await;
            }
        });
        runtime.block_on(cycles).unwrap();
        Some(began.elapsed().as_secs_f64())
    };
    let ours = || {
        let lock = keeper.lock("peers");
        let began = Instant::now();
        let cycles = runtime.spawn(async move {
            for _ in 0..CYCLES {
                lock.acquire().await.unwrap().release().await.unwrap();
            }
        });
        runtime.block_on(cycles).unwrap();
        Some(began.elapsed().as_secs_f64())
    };
    let rslock = || {
        let manager = manager.clone();
        let began = Instant::now();
        let cycles = runtime.spawn(async move {
            for _ in 0..CYCLES {
                let lock = manager.lock("peers", Duration::from_secs(30)).await.unwrap();
                manager.unlock(&lock).await;
            }
        });
        runtime.block_on(cycles).unwrap();
        Some(began.elapsed().as_secs_f64())
    };
    let python = || elsewhere(Command::new(peers.join("python/bin/python")).args(["-c", PYTHON, &port, &count]));
    let node = || elsewhere(Command::new("node").args(["-e", NODE, &port, &count]).current_dir(peers.join("node")));
    type Cycles<'a> = &'a dyn Fn() -> Option<f64>;
    let contestants: [(&str, Cycles<'_>); 6] = [
        ("unfenced by hand: SET NX PX, compare and delete", &|| by_hand(Way::Unfenced)),
        ("least fenced by hand", &|| by_hand(Way::Fenced)),
        ("lockkeeper: fenced, fair, renewed", &ours),
        ("rslock: unfenced", &rslock),
        ("redis-py Lock: unfenced", &python),
        ("node-redlock: unfenced", &node),
    ];
    let mut times: Vec<Vec<Option<f64>>> = vec![Vec::new(); contestants.len()];
    for round in 0..=ROUNDS {
        for ((_, cycles), times) in contestants.iter().zip(&mut times) {
            let time = cycles();
            if round > 0 {
                times.push(time.map(|seconds| seconds * 1e6 / f64::from(CYCLES)));
            }
        }
    }
    println!("\n### Redis, other clients, one task, acquire + release\n");
    println!("| | µs | x floor |\n|---|---|---|");
    for ((name, _), own) in contestants.iter().zip(&times) {
        let Some(own): Option<Vec<f64>> = own.iter().copied().collect() else {
            println!("| {name} | not measured: scripts/peers installs it | |");
            continue;
        };
        let ratios: Vec<f64> = own.iter().zip(&times[0]).filter_map(|(own, floor)| Some(own / (*floor)?)).collect();
        println!("| {name} | {:.1} | {:.2} |", quantile(&own, 0.5), quantile(&ratios, 0.5));
    }
}
