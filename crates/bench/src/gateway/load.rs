//! `bench gateway load [MINUTES]`: 1,000 clients that hold 10,000 locks through one gateway of Redis and renew each of them,
//! and 5,000 requests that wait in line at any time. What the gateway's memory and answers do over time.

use super::Process;
use super::client::Client;
use crate::measure::quantile;
use crate::redis::runtime;
use hyper::StatusCode;
use lockkeeper::HolderId;
use lockkeeper::clock::system_now;
use lockkeeper_server::auth::{Made, make};
use serde_json::json;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::{RedisServer, TempDir};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

const CLIENTS: usize = 1_000;
const LOCKS_EACH: usize = 10;
const WAITS: usize = 5_000;
/// Tokens of the clients: one may have 1,000 waits at once.
const TOKENS: usize = 10;
const TTL_MS: u64 = 30_000;
/// One lock of a client is seen to in each; so each is renewed three times in its TTL.
const TICK: Duration = Duration::from_secs(1);
/// A client gives a lock up in one of so many ticks, for a request that waits or for itself.
const GIVES_UP: u32 = 20;

/// What happened since the last row, in ms.
#[derive(Default)]
struct Seen {
    renewals: Vec<f64>,
    hand_overs: Vec<f64>,
    /// Requests without an answer, and answers that do not fit.
    failures: Vec<String>,
}

struct Load {
    port: u16,
    secrets: Vec<String>,
    /// When each lock was given up last, in µs.
    given_up: Vec<AtomicU64>,
    seen: Mutex<Seen>,
}

pub(super) fn run(args: &[&str]) {
    let minutes: u64 = args.first().map_or(10, |minutes| minutes.parse().unwrap());
    let redis = RedisServer::with(&["--maxclients", "20000"]);
    let (dir, secrets) = tokens();
    let gateway = Process::start(&redis.url(), Some(&dir.join("tokens.toml")));
    let given_up = (0..CLIENTS * LOCKS_EACH).map(|_| AtomicU64::new(0)).collect();
    let load = Arc::new(Load { port: gateway.port, secrets, given_up, seen: Mutex::default() });
    let runtime = runtime();
    println!("\n### One gateway of Redis: {CLIENTS} clients, {} locks, {WAITS} waits\n", CLIENTS * LOCKS_EACH);
    println!(
        "| minute | memory MiB | descriptors | renewals | p50 ms | p99 ms | hand-overs | p50 ms | p99 ms | failures |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for client in 0..CLIENTS {
        runtime.spawn(hold(load.clone(), client));
    }
    for number in 0..WAITS {
        runtime.spawn(wait(load.clone(), number));
    }
    for minute in 0..=minutes {
        std::thread::sleep(Duration::from_secs(60));
        let seen = std::mem::take(&mut *load.seen.lock().unwrap());
        // The first minute takes the locks.
        let minute = if minute == 0 { "warm-up".to_owned() } else { minute.to_string() };
        let figure = |of: &[f64], q| quantile(of, q);
        println!(
            "| {minute} | {:.0} | {} | {} | {:.1} | {:.1} | {} | {:.1} | {:.1} | {} |",
            memory(gateway.pid()),
            std::fs::read_dir(format!("/proc/{}/fd", gateway.pid())).unwrap().count(),
            seen.renewals.len(),
            figure(&seen.renewals, 0.5),
            figure(&seen.renewals, 0.99),
            seen.hand_overs.len(),
            figure(&seen.hand_overs, 0.5),
            figure(&seen.hand_overs, 0.99),
            seen.failures.len(),
        );
        if let Some(failure) = seen.failures.first() {
            println!("\nfirst failure: {failure}\n");
        }
    }
    runtime.shutdown_background();
}

/// A tokens file, and the secrets of its tokens.
fn tokens() -> (TempDir, Vec<String>) {
    let dir = TempDir::new();
    let rule = "*=acquire".parse().unwrap();
    let made: Vec<Made> =
        (0..TOKENS).map(|n| make(&format!("load-{n}"), slice::from_ref(&rule), None).unwrap()).collect();
    let text: String = made.iter().map(|made| made.toml.as_str()).collect();
    let file = dir.write("tokens.toml", &text);
    std::fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
    (dir, made.into_iter().map(|made| made.secret).collect())
}

/// In MiB.
fn memory(pid: i32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}

fn name(lock: usize) -> String {
    format!("load/{lock}")
}

impl Load {
    fn client(&self, number: usize) -> Client {
        Client::new(self.port, &self.secrets[number % TOKENS])
    }

    fn fail(&self, what: &str, status: Option<StatusCode>) {
        self.seen.lock().unwrap().failures.push(format!("{what}: {status:?}"));
    }

    /// Gives a lock up.
    async fn release(&self, client: &mut Client, lock: usize, holder: HolderId) {
        self.given_up[lock].store(system_now().as_micros(), Ordering::Relaxed);
        let body = json!({ "name": name(lock), "holder": holder.to_hex() });
        let status = client.post("/v1/release", &body).await;
        if status != Some(StatusCode::OK) {
            self.fail("release", status);
        }
    }
}

/// A client: sees to one of its locks at each tick.
async fn hold(load: Arc<Load>, number: usize) {
    let mut client = load.client(number);
    let mut held = [None::<HolderId>; LOCKS_EACH];
    // Spread over the tick.
    let begin = Instant::now() + TICK.mul_f64(fastrand::f64());
    let mut ticks = interval_at(begin, TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for turn in 0usize.. {
        ticks.tick().await;
        let (at, lock) = (turn % LOCKS_EACH, number * LOCKS_EACH + turn % LOCKS_EACH);
        let Some(holder) = held[at] else {
            let holder = HolderId::random().unwrap();
            let body = json!({ "name": name(lock), "holder": holder.to_hex(), "ttl_ms": TTL_MS });
            match client.post("/v1/acquire", &body).await {
                Some(StatusCode::OK) => held[at] = Some(holder),
                // A request that waits is before us.
                Some(StatusCode::CONFLICT) => {}
                status => load.fail("acquire", status),
            }
            continue;
        };
        if fastrand::u32(..GIVES_UP) == 0 {
            held[at] = None;
            load.release(&mut client, lock, holder).await;
            continue;
        }
        let (sent, body) = (system_now(), json!({ "name": name(lock), "holder": holder.to_hex(), "ttl_ms": TTL_MS }));
        match client.post("/v1/renew", &body).await {
            Some(StatusCode::OK) => {
                load.seen.lock().unwrap().renewals.push(system_now().since(sent).as_secs_f64() * 1e3);
            }
            status => {
                held[at] = None;
                load.fail("renew", status);
            }
        }
    }
}

/// Requests that wait, one after the other, each for any of the locks.
async fn wait(load: Arc<Load>, number: usize) {
    let mut client = load.client(number);
    tokio::time::sleep(Duration::from_secs(30).mul_f64(fastrand::f64())).await;
    loop {
        let (lock, holder) = (fastrand::usize(..load.given_up.len()), HolderId::random().unwrap());
        let body = json!({ "name": name(lock), "holder": holder.to_hex(), "ttl_ms": TTL_MS, "wait_ms": 25_000 });
        let sent = system_now().as_micros();
        match client.post("/v1/acquire", &body).await {
            Some(StatusCode::OK) => {
                let given_up = load.given_up[lock].load(Ordering::Relaxed);
                // Otherwise the lock was free, and was not waited for.
                if given_up > sent {
                    let took = system_now().as_micros().saturating_sub(given_up);
                    load.seen.lock().unwrap().hand_overs.push(took as f64 / 1e3);
                }
                load.release(&mut client, lock, holder).await;
            }
            Some(StatusCode::CONFLICT) => {}
            status => {
                load.fail("wait", status);
                tokio::time::sleep(TICK).await;
            }
        }
    }
}
