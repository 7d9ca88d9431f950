//! What a gateway costs: cycles and hand-overs through it beside direct ones on the same Redis; and `gateway load`, many
//! clients at once for minutes.

mod client;
mod load;
mod relay;

use self::relay::Relay;
use crate::measure::{Contestant, median_ratio, quantile, rounds_on, table};
use crate::redis::{pin, runtime};
use lockkeeper::Keeper;
use lockkeeper::clock::system_now;
use lockkeeper_server::auth::Tokens;
use lockkeeper_server::{Accept, Audit, Gateway, Settings};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use testkit::RedisServer;
use tokio::runtime::Runtime;

/// Hand-overs of each kind.
const HAND_OVERS: usize = 300;
/// Tasks that ask at the same time.
const TASKS: u32 = 64;

/// Each in a process of its own, as the parts of Redis: serial work shares one core with its servers.
pub(crate) fn run() {
    for name in ["serial", "many", "hand-over"] {
        let child = Command::new(std::env::current_exe().unwrap()).args(["gateway", name]).status();
        assert!(child.unwrap().success());
    }
}

pub(crate) fn part(name: &str) {
    if name != "many" {
        pin(0);
    }
    let redis = RedisServer::new();
    let gateway = Process::start(&redis.url(), None);
    let runtime = runtime();
    let connect = |url: &str| runtime.block_on(Keeper::connect(url)).unwrap();
    let direct = [connect(&redis.url()), connect(&redis.url())];
    let through = [connect(&gateway.url()), connect(&gateway.url())];
    let servers = [redis.pid(), gateway.pid()];
    let (runtime, direct, through) = (&runtime, &direct, &through);
    let contestants = |cycles: fn(&Runtime, &Keeper, u32)| -> Vec<Contestant<'_>> {
        vec![
            ("direct", Box::new(move |n| cycles(runtime, &direct[0], n))),
            ("through a gateway", Box::new(move |n| cycles(runtime, &through[0], n))),
        ]
    };
    match name {
        "serial" => {
            let title = "A gateway before Redis: acquire + release, one task, everything on one core";
            let mut relay = Relay::start(&redis.url());
            let servers = [&servers[..], &[relay.pid()]].concat();
            let mut all = contestants(serial);
            all.push(("SET NX and DEL through a bare HTTP relay", Box::new(move |n| relay.cycles(runtime, n))));
            table(title, &rounds_on(&servers, 20, 200, all));
        }
        "many" => {
            let title = format!("A gateway before Redis: acquire + release, {TASKS} tasks");
            table(&title, &rounds_on(&servers, 20, 40 * TASKS, contestants(many)));
        }
        "hand-over" => hand_overs(runtime, direct, through),
        _ => println!("usage: bench gateway [serial|many|hand-over|load [MINUTES]]"),
    }
}

fn hand_overs(runtime: &Runtime, direct: &[Keeper; 2], through: &[Keeper; 2]) {
    let (mut straight, mut around) = (Vec::new(), Vec::new());
    for _ in 0..HAND_OVERS {
        straight.push(hand_over(runtime, direct));
        around.push(hand_over(runtime, through));
    }
    println!(
        "\n### A gateway before Redis: from a release to the next keeper's grant, {HAND_OVERS} times, on one core\n"
    );
    println!("| | p50 µs | p99 µs | x direct |\n|---|---|---|---|");
    for (name, sample) in [("direct", &straight), ("through a gateway", &around)] {
        let (p50, p99) = (quantile(sample, 0.5), quantile(sample, 0.99));
        println!("| {name} | {p50:.0} | {p99:.0} | {:.2} |", median_ratio(sample, &straight));
    }
}

/// `bench gateway load`.
pub(crate) fn load(args: &[&str]) {
    load::run(args);
}

fn serial(runtime: &Runtime, keeper: &Keeper, count: u32) {
    runtime.block_on(cycles(keeper.clone(), "one".to_owned(), count));
}

fn many(runtime: &Runtime, keeper: &Keeper, count: u32) {
    let tasks: Vec<_> =
        (0..TASKS).map(|task| runtime.spawn(cycles(keeper.clone(), format!("many/{task}"), count / TASKS))).collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
}

async fn cycles(keeper: Keeper, name: String, count: u32) {
    for _ in 0..count {
        keeper.lock(&name).acquire().await.unwrap().release().await.unwrap();
    }
}

/// In µs.
fn hand_over(runtime: &Runtime, [holder, waiter]: &[Keeper; 2]) -> f64 {
    let guard = runtime.block_on(holder.lock("baton").acquire()).unwrap();
    let lock = waiter.lock("baton");
    let granted = runtime.spawn(async move {
        let guard = lock.acquire().await.unwrap();
        (system_now(), guard)
    });
    // In line for sure: the record says so.
    while runtime.block_on(holder.inspect("baton")).unwrap().is_none_or(|record| record.waiting == 0) {
        std::thread::sleep(Duration::from_micros(200));
    }
    let released = system_now();
    runtime.block_on(guard.release()).unwrap();
    let (at, guard) = runtime.block_on(granted).unwrap();
    runtime.block_on(guard.release()).unwrap();
    at.since(released).as_secs_f64() * 1e6
}

/// The other process: a gateway of a store, until its input ends. Says its port.
pub(crate) fn serve(store: &str, tokens: Option<&str>) {
    servers_runtime().block_on(async {
        let store = lockkeeper::store::open(store).await.unwrap();
        let tokens = tokens.map_or_else(Tokens::open, |file| Tokens::read(Path::new(file)).unwrap());
        let gateway = Gateway::new(store, Settings::default(), tokens, Audit::none()).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap().port());
        Accept { gateway, listener, tls: None }.serve(input_ended()).await;
    });
}

/// `bench gateway-relay`.
pub(crate) fn relay(redis: &str) {
    relay::serve(redis);
}

/// As that of `lockkeeper serve`: a thread for each core that the process may use.
fn servers_runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

async fn input_ended() {
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    drop(ended.await);
}

/// This program in another process, and the port that it says.
fn said(args: &[&str]) -> (Child, u16) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().parse().unwrap())
}

/// A gateway in a process of its own, so that its CPU and memory can be told from the client's.
struct Process {
    child: Child,
    port: u16,
}

impl Process {
    fn start(store: &str, tokens: Option<&Path>) -> Self {
        let tokens = tokens.map(|file| file.to_str().unwrap());
        let (child, port) = said(&[&["gateway-serve", store], tokens.as_slice()].concat());
        Self { child, port }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
