//! Other clients in the same run: the same cycle, each with its own driver or in its own language, on the same servers.
//! One task, 64 tasks on their own names, and Redlock on five servers where the peer has it.

mod programs;

use super::{Floor, Way, pin, rates, redlock, runtime};
use crate::measure::{Cost, Spent, median_ratio, medians, quantile};
use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_redis::RedisLockProvider;
use lockkeeper::Keeper;
use programs::Program;
use rslock::LockManager;
use std::sync::Arc;
use std::time::Duration;
use testkit::RedisServer;
use tokio::runtime::Runtime;

const ROUNDS: usize = 7;
const TASKS: usize = 64;
const TTL: Duration = Duration::from_secs(30);

/// Who takes part.
#[derive(Clone)]
enum Peer {
    Hand(Floor, Way),
    Five(redlock::Floor, bool),
    Ours(Keeper),
    Rslock(LockManager),
    DistributedLock(Arc<RedisLockProvider>),
    Elsewhere(Program),
}

impl Peer {
    async fn cycles(self, name: String, count: usize) {
        match self {
            Self::Hand(mut floor, way) => {
                for _ in 0..count {
                    floor.cycle(way, &name).await;
                }
            }
            Self::Five(mut floor, fenced) => {
                for _ in 0..count {
                    floor.cycle(fenced).await;
                }
            }
            Self::Ours(keeper) => {
                let lock = keeper.lock(name);
                for _ in 0..count {
                    lock.acquire().await.unwrap().release().await.unwrap();
                }
            }
            Self::Rslock(manager) => {
                for _ in 0..count {
                    let lock = manager.lock(name.as_str(), TTL).await.unwrap();
                    manager.unlock(&lock).await;
                }
            }
            Self::DistributedLock(provider) => {
                let lock = provider.create_lock(&name);
                for _ in 0..count {
                    lock.acquire(None).await.unwrap().release().await.unwrap();
                }
            }
            Self::Elsewhere(_) => unreachable!("a program of its own"),
        }
    }

    /// What a cycle costs; `None` where the peer is not installed.
    fn measure(&self, runtime: &Runtime, servers: &[&RedisServer], tasks: usize, each: usize) -> Option<Cost> {
        let pids: Vec<i32> = servers.iter().map(|server| server.pid()).collect();
        let count = (tasks * each) as f64;
        if let Self::Elsewhere(program) = self {
            let ports: Vec<u16> = servers.iter().map(|server| server.port()).collect();
            let warm = each / 10;
            // The server works for the warm-up too.
            let spent = Spent::begin(&pids);
            let (wall, client) = program.run(&ports, tasks, each, warm)?;
            let server = spent.end((tasks * (each + warm)) as f64).server;
            return Some(Cost { wall: wall * 1e6 / count, client: client * 1e6 / count, server });
        }
        let spent = Spent::begin(&pids);
        let spawn = |task| runtime.spawn(self.clone().cycles(format!("peers/{task}"), each));
        for task in (0..tasks).map(spawn).collect::<Vec<_>>() {
            runtime.block_on(task).unwrap();
        }
        Some(spent.end(count))
    }
}

type Named = (&'static str, Peer);

/// All peers in turn, round by round; the first round only warms up.
fn compete(peers: &[Named], runtime: &Runtime, servers: &[&RedisServer], tasks: usize, each: usize) -> Vec<Vec<Cost>> {
    let mut costs = vec![Vec::new(); peers.len()];
    for round in 0..=ROUNDS {
        for ((_, peer), costs) in peers.iter().zip(&mut costs) {
            let cost = peer.measure(runtime, servers, tasks, each);
            costs.extend(cost.filter(|_| round > 0));
        }
    }
    for ((name, peer), costs) in peers.iter().zip(&costs) {
        if let (Peer::Elsewhere(program), []) = (peer, &costs[..]) {
            println!("\n{name} is not measured: {}.", program.how());
        }
    }
    costs
}

/// µs for each cycle, with each row's ratio to the first.
fn table(title: &str, peers: &[Named], costs: &[Vec<Cost>]) {
    println!("\n### {title}\n");
    println!("| | µs | x floor | client CPU µs | server CPU µs |\n|---|---|---|---|---|");
    let walls = |costs: &[Cost]| costs.iter().map(|cost| cost.wall).collect::<Vec<_>>();
    for ((name, _), own) in peers.iter().zip(costs).filter(|(_, own)| !own.is_empty()) {
        let (wall, ratio) = (quantile(&walls(own), 0.5), median_ratio(&walls(own), &walls(&costs[0])));
        let Cost { client, server, .. } = medians(own);
        println!("| {name} | {wall:.1} | {ratio:.2} | {client:.1} | {server:.1} |");
    }
}

/// One task; everything on one core.
pub(super) fn run() {
    one_server(1, 1_000);
}

/// The peers with 64 tasks; the server has a core of its own.
pub(super) fn many() {
    one_server(TASKS, 60);
}

/// The same with redsync, which is built first.
pub(super) fn redsync() {
    programs::build_redsync();
    for part in ["peers", "peers64", "peers5"] {
        super::apart(part);
    }
}

fn one_server(tasks: usize, each: usize) {
    pin(usize::from(tasks == 1));
    let server = RedisServer::new();
    pin(1);
    let runtime = runtime();
    let (keeper, floor, provider) = runtime.block_on(async {
        let provider = RedisLockProvider::new(server.url()).await.unwrap();
        (Keeper::connect(server.url()).await.unwrap(), Floor::new(&server).await, provider)
    });
    let peers: Vec<Named> = vec![
        ("unfenced by hand: SET NX PX, compare and delete", Peer::Hand(floor.clone(), Way::Unfenced)),
        ("least fenced by hand", Peer::Hand(floor, Way::Fenced)),
        ("lockkeeper: fenced, fair, renewed", Peer::Ours(keeper)),
        ("rslock: unfenced", Peer::Rslock(LockManager::new(vec![server.url()]))),
        ("distributed-lock-redis: unfenced, renewed", Peer::DistributedLock(Arc::new(provider))),
        ("redis-py Lock: unfenced", Peer::Elsewhere(Program::RedisPy)),
        ("node-redlock: unfenced", Peer::Elsewhere(Program::NodeRedlock)),
        ("redsync: unfenced", Peer::Elsewhere(Program::Redsync)),
    ];
    let costs = compete(&peers, &runtime, &[&server], tasks, each);
    if tasks == 1 {
        return table("Redis, other clients, one task, acquire + release", &peers, &costs);
    }
    println!("\n### Redis, other clients, {tasks} tasks on distinct names\n");
    let (names, costs): (Vec<&str>, Vec<Vec<Cost>>) =
        peers.iter().zip(costs).filter(|(_, costs)| !costs.is_empty()).map(|((name, _), costs)| (*name, costs)).unzip();
    rates(&names, &costs);
}

/// Redlock on five servers, all on one core with the client.
pub(super) fn five() {
    pin(1);
    let servers: Vec<RedisServer> = (0..redlock::NODES).map(|_| RedisServer::new()).collect();
    let runtime = runtime();
    let keeper = redlock::connect(&runtime, &servers);
    let floor = runtime.block_on(redlock::Floor::new(&servers));
    let urls = servers.iter().map(RedisServer::url).collect();
    let peers: Vec<Named> = vec![
        ("unfenced by hand, on all five", Peer::Five(floor.clone(), false)),
        ("least fenced by hand, on all five", Peer::Five(floor, true)),
        ("lockkeeper: fenced, fair, renewed", Peer::Ours(keeper)),
        ("rslock: unfenced", Peer::Rslock(LockManager::new(urls))),
        ("node-redlock: unfenced", Peer::Elsewhere(Program::NodeRedlock)),
        ("redsync: unfenced", Peer::Elsewhere(Program::Redsync)),
    ];
    let costs = compete(&peers, &runtime, &servers.iter().collect::<Vec<_>>(), 1, 200);
    table("Redlock over 5 servers, other clients, one task, everything on one core", &peers, &costs);
    println!(
        "\ndistributed-lock-redis is left out: it releases only the servers that it counted, so that its next cycle \
         finds its own keys on the others."
    );
}
