//! Redlock over five servers, all on one core with the client, against the same fan-out by hand; then with servers that
//! are frozen.

use super::{END, Loaded, TAKE, pin, runtime};
use crate::measure::{Cost, Spent, medians, quantile};
use lockkeeper::{HolderId, Keeper};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use std::time::{Duration, Instant};
use testkit::RedisServer;
use tokio::runtime::Runtime;

const ROUNDS: usize = 13;
const CYCLES: usize = 300;
pub(super) const NODES: usize = 5;

/// Takes the lock on all, then compares and deletes on all; each step waits for every answer.
#[derive(Clone)]
pub(super) struct Floor {
    nodes: [MultiplexedConnection; NODES],
    take: Loaded,
    end: Loaded,
}

impl Floor {
    pub(super) async fn new(servers: &[RedisServer]) -> Self {
        let mut nodes = Vec::new();
        let mut scripts = None;
        for server in servers {
            let mut node = super::connect(server).await;
            scripts = Some((Loaded::new(&mut node, TAKE).await, Loaded::new(&mut node, END).await));
            nodes.push(node);
        }
        let (take, end) = scripts.unwrap();
        Self { nodes: nodes.try_into().unwrap_or_else(|_| unreachable!("five servers")), take, end }
    }

    async fn all(&mut self, cmd: &Cmd) {
        let [a, b, c, d, e] = &mut self.nodes;
        let ask = async |node: &mut MultiplexedConnection| node.send_packed_command(cmd).await.unwrap();
        let (a, b, c, d, e) = tokio::join!(ask(a), ask(b), ask(c), ask(d), ask(e));
        assert!([a, b, c, d, e].iter().all(|answer| !matches!(answer, Value::Nil | Value::ServerError(_))));
    }

    pub(super) async fn cycle(&mut self, fenced: bool) {
        let holder = HolderId::random().unwrap().to_hex();
        let take = if fenced {
            self.take.call(&["orders/43", "fence/43"], &[&holder, "30000"])
        } else {
            let mut take = redis::cmd("SET");
            take.arg("orders/43").arg(&holder).arg("NX").arg("PX").arg(30_000);
            take
        };
        self.all(&take).await;
        self.all(&self.end.call(&["orders/43"], &[&holder])).await;
    }
}

fn ours(runtime: &Runtime, keeper: &Keeper, times: &mut Vec<f64>) {
    let lock = keeper.lock("orders/42");
    let cycles = runtime.spawn(async move {
        let mut times = Vec::with_capacity(CYCLES);
        for _ in 0..CYCLES {
            let began = Instant::now();
            lock.acquire().await.unwrap().release().await.unwrap();
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        times
    });
    times.extend(runtime.block_on(cycles).unwrap());
}

fn by_hand(runtime: &Runtime, floor: &Floor, fenced: bool, times: &mut Vec<f64>) {
    let mut floor = floor.clone();
    let cycles = runtime.spawn(async move {
        let mut times = Vec::with_capacity(CYCLES);
        for _ in 0..CYCLES {
            let began = Instant::now();
            floor.cycle(fenced).await;
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        times
    });
    times.extend(runtime.block_on(cycles).unwrap());
}

/// A keeper of all servers.
pub(super) fn connect(runtime: &Runtime, servers: &[RedisServer]) -> Keeper {
    let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let url = format!("redlock://{}?max_ttl=5s", hosts.join(","));
    let keeper = runtime.block_on(Keeper::builder().ttl(Duration::from_secs(5)).connect(&url)).unwrap();
    // Servers that have just started do not count yet: they may have forgotten a lock.
    testkit::eventually(testkit::SOON, "the servers count", || {
        runtime.block_on(keeper.lock("first").try_acquire()).is_ok()
    });
    keeper
}

pub(super) fn run() {
    pin(1);
    let servers: Vec<RedisServer> = (0..NODES).map(|_| RedisServer::new()).collect();
    let runtime = runtime();
    let keeper = connect(&runtime, &servers);
    let floor = runtime.block_on(Floor::new(&servers));
    let pids: Vec<i32> = servers.iter().map(RedisServer::pid).collect();
    let mut all: [Vec<f64>; 3] = Default::default();
    let mut costs: [Vec<Cost>; 3] = Default::default();
    for round in 0..=ROUNDS {
        for (contestant, (all, costs)) in all.iter_mut().zip(&mut costs).enumerate() {
            let (mut times, spent) = (Vec::new(), Spent::begin(&pids));
            match contestant {
                2 => ours(&runtime, &keeper, &mut times),
                fenced => by_hand(&runtime, &floor, fenced == 1, &mut times),
            }
            // The first one only warms up.
            if round > 0 {
                costs.push(spent.end(CYCLES as f64));
                all.extend(times);
            }
        }
    }
    let [hand, fenced, healthy] = all;
    println!("\n### Redlock over {NODES} servers, one task, acquire + release, everything on one core\n");
    println!(
        "| | p50 µs | p99 µs | x floor (p50) | x healthy (p50) | x healthy (p99) | client CPU µs | CPU µs of all servers |\n\
         |---|---|---|---|---|---|---|---|"
    );
    let row = |name: &str, times: &[f64], all: bool, costs: &[Cost]| {
        let Cost { client, server, .. } = medians(costs);
        let [p50, p99] = [0.5, 0.99].map(|q| quantile(times, q));
        let to_floor = if all { format!("{:.2}", p50 / quantile(&hand, 0.5)) } else { "–".into() };
        let [r50, r99] = [p50 / quantile(&healthy, 0.5), p99 / quantile(&healthy, 0.99)];
        println!("| {name} | {p50:.0} | {p99:.0} | {to_floor} | {r50:.2} | {r99:.2} | {client:.0} | {server:.0} |");
    };
    row("SET NX PX, compare and delete on all by hand, unfenced", &hand, true, &costs[0]);
    row("least fenced: SET NX PX + INCR, compare and delete on all by hand", &fenced, true, &costs[1]);
    row("lockkeeper, fenced", &healthy, true, &costs[2]);
    for frozen in 1..=2 {
        servers[frozen - 1].pause();
        let mut times = Vec::new();
        // In the first cycles the keeper finds out which servers are frozen.
        ours(&runtime, &keeper, &mut times);
        times.clear();
        let mut costs = Vec::new();
        for _ in 0..3 {
            let spent = Spent::begin(&pids);
            ours(&runtime, &keeper, &mut times);
            costs.push(spent.end(CYCLES as f64));
        }
        row(&format!("lockkeeper, fenced, {frozen} of {NODES} frozen"), &times, false, &costs);
    }
    servers.iter().for_each(RedisServer::resume);
    let ratio = quantile(&healthy, 0.5) / quantile(&fenced, 0.5);
    println!("\nlockkeeper against the least fenced floor: {ratio:.2}x");
}
