//! Ten thousand held locks, against the same renewals sent by hand in pipelines.

use super::{KEEP, KEEP_MANY, Loaded, claim, client, connect, pin};
use crate::measure::{cpu_time, quantile, resident};
use lockkeeper::{Guard, Keeper};
use std::time::{Duration, Instant};
use testkit::RedisServer;

const LOCKS: usize = 10_000;
const TTL: Duration = Duration::from_secs(6);
const WATCH: Duration = Duration::from_secs(8);
const DEEP: usize = 500;

pub(super) fn run() {
    pin(0);
    let server = RedisServer::new();
    pin(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let names: Vec<String> = (0..LOCKS).map(|i| format!("orders/{i:06}")).collect();
    println!("\n### Redis, {LOCKS} locks held, TTL {TTL:?}\n");
    println!(
        "| | client CPU µs per renewal | x floor | server CPU µs | x floor | client bytes per lock | still held |"
    );
    println!("|---|---|---|---|---|---|---|");
    let (ours, served, bytes, alive) = runtime.block_on(hold(&server, &names));
    let floors = [Floor::Ours, Floor::Least, Floor::Many].map(|floor| by_hand(&server, &runtime, &names, floor));
    let row = |name: &str, (client, served): (f64, f64), rest: &str| {
        let floor = floors[0];
        println!("| {name} | {client:.2} | {:.2} | {served:.2} | {:.2} | {rest} |", client / floor.0, served / floor.1);
    };
    row("the store's EVALSHA by hand, 500 deep", floors[0], "– | –");
    row("least EVALSHA by hand, 500 deep", floors[1], "– | –");
    row("least EVALSHA by hand, one for 500 locks", floors[2], "– | –");
    row("lockkeeper", (ours, served), &format!("{bytes} | {alive} of {LOCKS}"));
}

/// What the server has used so far, in µs.
fn server_cpu(server: &RedisServer) -> f64 {
    crate::measure::server_cpu(&[server.pid()]).as_secs_f64() * 1e6
}

async fn hold(server: &RedisServer, names: &[String]) -> (f64, f64, u64, usize) {
    let keeper = Keeper::builder().ttl(TTL).connect(server.url()).await.unwrap();
    let before = resident();
    let mut guards: Vec<Guard> = Vec::with_capacity(LOCKS);
    for name in names {
        guards.push(keeper.lock(name).acquire().await.unwrap());
    }
    let bytes = resident().saturating_sub(before) / LOCKS as u64;
    // One for each renewal, however many share a script.
    let (calls, served) = (server.calls("pexpire"), server_cpu(server));
    let cpu = cpu_time();
    tokio::time::sleep(WATCH).await;
    let cpu = cpu_time() - cpu;
    let renewed = (server.calls("pexpire") - calls) as f64;
    let served = server_cpu(server) - served;
    let alive = guards.iter().filter(|guard| guard.check().is_ok()).count();
    for guard in guards {
        guard.release().await.unwrap();
    }
    (cpu.as_secs_f64() * 1e6 / renewed, served / renewed, bytes, alive)
}

#[derive(Clone, Copy, Debug)]
enum Floor {
    Ours,
    Least,
    Many,
}

/// Ten rounds over all locks, on one blocking connection.
fn by_hand(server: &RedisServer, runtime: &tokio::runtime::Runtime, names: &[String], floor: Floor) -> (f64, f64) {
    let holder = "fedcba9876543210fedcba9876543210";
    let [_, renew, _] = lockkeeper::stores::redis::texts();
    let script = runtime.block_on(async {
        let text = match floor {
            Floor::Ours => renew,
            Floor::Least => KEEP,
            Floor::Many => KEEP_MANY,
        };
        Loaded::new(&mut connect(server).await, text).await
    });
    let value = match floor {
        Floor::Ours => format!("lk2:{holder}-:30000:bench-host:12345::1794624000000000"),
        Floor::Least | Floor::Many => holder.to_owned(),
    };
    let mut connection = client(server).get_connection().unwrap();
    for name in names {
        let _: () = redis::cmd("SET").arg(name).arg(&value).arg("PX").arg(60_000).query(&mut connection).unwrap();
    }
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        let began = Instant::now();
        let (served, cpu) = (server_cpu(server), cpu_time());
        for names in names.chunks(DEEP) {
            let mut pipeline = redis::Pipeline::with_capacity(DEEP);
            if matches!(floor, Floor::Many) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let kept: Vec<usize> =
                    pipeline.add_command(script.call(&names, &[holder, "30000"])).query(&mut connection).unwrap();
                assert_eq!(kept, [names.len()]);
                continue;
            }
            for name in names {
                pipeline.add_command(match floor {
                    Floor::Ours => script.call(&[name], &claim(holder).each_ref().map(String::as_str)),
                    Floor::Least | Floor::Many => script.call(&[name], &[holder, "30000"]),
                });
            }
            let answers: Vec<redis::Value> = pipeline.query(&mut connection).unwrap();
            assert_eq!(answers.len(), names.len());
        }
        clients.push((cpu_time() - cpu).as_secs_f64() * 1e6 / LOCKS as f64);
        servers.push((server_cpu(server) - served) / LOCKS as f64);
        std::thread::sleep(Duration::from_millis(100).saturating_sub(began.elapsed()));
    }
    let _: () = redis::cmd("DEL").arg(names).query(&mut connection).unwrap();
    (quantile(&clients, 0.5), quantile(&servers, 0.5))
}
