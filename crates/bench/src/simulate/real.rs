//! One point of the simulation beside the same load on a real Redis: 200 keepers with 50 locks each, in one process.

use super::load::{Load, Service};
use super::model::simulate;
use crate::measure::{Spent, quantile, server_cpu};
use crate::redis::pin;
use lockkeeper::{Guard, Keeper};
use std::time::{Duration, Instant};
use testkit::RedisServer;
use tokio::task::JoinSet;

const LOAD: Load = Load { keepers: 200, locks: 50, ttl: 6.0, acquires: 10.0 };
const TIME: Duration = Duration::from_secs(12);

pub(super) fn run() {
    pin(0);
    let server = RedisServer::new();
    pin(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (service, real) = runtime.block_on(async { (calibrate(&server).await, measure(&server).await) });
    let simulated = simulate(&LOAD, &service, TIME.as_secs_f64());
    println!(
        "\n### Redis: {} keepers with {} locks each, TTL {:.0} s, {:.0} acquires/s in all: simulated and real\n",
        LOAD.keepers,
        LOAD.locks,
        LOAD.ttl,
        LOAD.acquires * LOAD.keepers as f64
    );
    println!(
        "Measured first with one keeper: {:.1} µs of server CPU and {:.1} µs of client CPU for a cycle, {:.1} µs for 50 \
         renewals, {:.0} µs on the way.\n",
        service.acquire + service.release,
        service.client_call * 2.0,
        service.renew_call,
        service.round_trip
    );
    println!("| | simulated | real | real / simulated |\n|---|---|---|---|");
    let row = |name: &str, simulated: f64, real: f64| {
        println!("| {name} | {simulated:.3} | {real:.3} | {:.2} |", real / simulated);
    };
    row("utilisation of the server's core", simulated.utilisation, real.utilisation);
    row("acquire p50, ms", simulated.p50 / 1e3, real.p50 / 1e3);
    row("acquire p99, ms", simulated.p99 / 1e3, real.p99 / 1e3);
    println!("| renewals missed | {} | {} locks lost | |", simulated.missed, real.lost);
    println!("\nReal acquires a second: {:.0}; client CPU: {:.2} of a core.", real.rate, real.client);
}

/// What one keeper alone costs, a moment before.
async fn calibrate(server: &RedisServer) -> Service {
    const CYCLES: u32 = 3_000;
    let ttl = Duration::from_secs_f64(LOAD.ttl);
    let keeper = Keeper::builder().ttl(ttl).connect(server.url()).await.unwrap();
    let cycles = async |count: u32| {
        let lock = keeper.lock("serial");
        let task = tokio::spawn(async move {
            for _ in 0..count {
                lock.acquire().await.unwrap().release().await.unwrap();
            }
        });
        task.await.unwrap();
    };
    cycles(CYCLES / 10).await;
    let spent = Spent::begin(&[server.pid()]);
    cycles(CYCLES).await;
    let cycle = spent.end(f64::from(CYCLES));
    let period = ttl / 3;
    let watch = async || {
        let spent = Spent::begin(&[server.pid()]);
        tokio::time::sleep(period * 2).await;
        spent.end(2.0)
    };
    let idle = watch().await;
    let guards = hold(&keeper, 0).await;
    let renewing = watch().await;
    let lost = guards.iter().filter(|guard| guard.check().is_err()).count();
    if lost > 0 {
        println!("{lost} locks were lost while one keeper was measured: this machine is too busy.");
    }
    drop(guards);
    Service {
        acquire: cycle.server / 2.0,
        release: cycle.server / 2.0,
        // All locks of a keeper go in one call.
        renew_call: (renewing.server - idle.server).max(0.0),
        renew_lock: 0.0,
        cores: 1,
        round_trip: ((cycle.wall - cycle.server - cycle.client) / 2.0).max(0.0),
        client_call: cycle.client / 2.0,
        client_renewal: (renewing.client - idle.client).max(0.0) / LOAD.locks as f64,
        client_cores: Some(1),
        // As tokio's timers do.
        tick: 1_000.0,
    }
}

async fn hold(keeper: &Keeper, number: usize) -> Vec<Guard> {
    let mut guards = Vec::new();
    for lock in 0..LOAD.locks {
        guards.push(keeper.lock(format!("held/{number}/{lock}")).acquire().await.unwrap());
    }
    guards
}

struct Real {
    utilisation: f64,
    p50: f64,
    p99: f64,
    lost: usize,
    rate: f64,
    client: f64,
}

async fn measure(server: &RedisServer) -> Real {
    let mut keepers: Vec<(Keeper, Vec<Guard>)> = Vec::new();
    for number in 0..LOAD.keepers {
        let ttl = Duration::from_secs_f64(LOAD.ttl);
        let keeper = Keeper::builder().ttl(ttl).connect(server.url()).await.unwrap();
        let guards = hold(&keeper, number).await;
        keepers.push((keeper, guards));
    }
    let served = server_cpu(&[server.pid()]);
    let (spent, began) = (Spent::begin(&[]), Instant::now());
    let mut tasks = JoinSet::new();
    for (number, (keeper, _)) in keepers.iter().enumerate() {
        let lock = keeper.lock(format!("own/{number}"));
        tasks.spawn(async move {
            let mut took = Vec::new();
            while began.elapsed() < TIME {
                let pause = -(1.0 - fastrand::f64()).ln() / LOAD.acquires;
                tokio::time::sleep(Duration::from_secs_f64(pause)).await;
                let asked = Instant::now();
                let guard = lock.acquire().await.unwrap();
                took.push(asked.elapsed().as_secs_f64() * 1e6);
                guard.release().await.unwrap();
            }
            took
        });
    }
    let took = tasks.join_all().await.concat();
    let seconds = began.elapsed().as_secs_f64();
    let client = spent.end(1.0).client / 1e6 / seconds;
    let served = (server_cpu(&[server.pid()]) - served).as_secs_f64();
    let lost = keepers.iter().flat_map(|(_, guards)| guards).filter(|guard| guard.check().is_err()).count();
    let [p50, p99] = [0.5, 0.99].map(|q| quantile(&took, q));
    Real { utilisation: served / seconds, p50, p99, lost, rate: took.len() as f64 / seconds, client }
}
