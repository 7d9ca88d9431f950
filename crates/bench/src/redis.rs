//! The Redis store against the same commands sent by hand, on a server of its own.
//!
//! Serial and contended cases share one core with the server, because a halted core takes longer to wake than a round
//! trip. Throughput cases get one core each. Run it with `nice -n -20` on a busy machine.

mod contended;
mod held;
mod peers;
mod redlock;

use crate::measure::{Cost, Spent, median_ratio, medians, quantile, rounds_on, table};
use lockkeeper::{HolderId, Keeper};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use rustix::thread::{CpuSet, sched_setaffinity};
use testkit::RedisServer;
use tokio::runtime::Runtime;

/// Each in a process of its own, so that none inherits another's connections, memory and cores.
pub(crate) fn run() {
    for part in ["serial", "many", "drain", "steady", "held", "redlock", "peers", "peers64", "peers5"] {
        apart(part);
    }
}

fn apart(part: &str) {
    let child = std::process::Command::new(std::env::current_exe().unwrap()).args(["redis", part]).status();
    assert!(child.unwrap().success());
}

pub(crate) fn part(name: &str) {
    match name {
        "serial" => serial(),
        "many" => many(),
        "drain" => contended::drain(),
        "steady" => contended::steady(),
        "held" => held::run(),
        "redlock" => redlock::run(),
        "peers" => peers::run(),
        "peers64" => peers::many(),
        "peers5" => peers::five(),
        "redsync" => peers::redsync(),
        _ => println!("usage: bench redis [serial|many|drain|steady|held|redlock|peers|peers64|peers5|redsync]"),
    }
}

/// Pins this thread, and all it starts from here on, to one core; does nothing where that is not allowed.
pub(crate) fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core % std::thread::available_parallelism().map_or(1, usize::from));
    let _ = sched_setaffinity(None, &set);
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn client(server: &RedisServer) -> redis::Client {
    // As the store itself: RESP3.
    redis::Client::open(format!("{}/?protocol=resp3", server.url())).unwrap()
}

async fn connect(server: &RedisServer) -> MultiplexedConnection {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    client(server).get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

/// What our scripts call: everything else in the statistics was sent by a client.
const INSIDE: [&str; 15] = [
    "get",
    "set",
    "exists",
    "del",
    "time",
    "pexpire",
    "pttl",
    "zadd",
    "zrange",
    "zrevrange",
    "zrem",
    "zpopmin",
    "zcard",
    "publish",
    "incr",
];

/// Commands that clients have sent so far; hashes are only touched by scripts.
fn wire(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls = stats.lines().filter_map(|line| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let inside = INSIDE.contains(&command) || command.starts_with('h') && command != "hello";
        let own = ["info", "command|docs"].contains(&command) || command.starts_with('z');
        let count = rest.split(',').next()?.parse::<u64>().ok()?;
        (!inside && !own).then_some(count)
    });
    calls.sum()
}

/// A script on the server, by its digest.
#[derive(Clone, Debug)]
struct Loaded(String);

impl Loaded {
    async fn new(connection: &mut MultiplexedConnection, text: &str) -> Self {
        Self(redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(connection).await.unwrap())
    }

    fn call(&self, keys: &[&str], args: &[&str]) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.0).arg(keys.len()).arg(keys).arg(args);
        cmd
    }
}

/// The least that takes a lock with a token.
const TAKE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return redis.call('INCR', KEYS[2]) end return false";
/// The least that gives it back.
const END: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
/// The least that prolongs it.
const KEEP: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
  return 0";

/// The same for many, all of one holder.
const KEEP_MANY: &str = "local kept = 0 for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then redis.call('PEXPIRE', key, ARGV[2]) kept = kept + 1 end end return kept";

/// Two commands by hand on one multiplexed connection.
#[derive(Clone)]
pub(crate) struct Floor {
    connection: MultiplexedConnection,
    ours: [Loaded; 3],
    take: Loaded,
    end: Loaded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The store's own scripts.
    Ours,
    /// The least with a token.
    Fenced,
    /// `SET NX PX`, then compare and delete.
    Unfenced,
}

impl Floor {
    pub(crate) async fn new(server: &RedisServer) -> Self {
        let mut connection = connect(server).await;
        let [acquire, renew, release] = lockkeeper::stores::redis::texts();
        let acquire = Loaded::new(&mut connection, acquire).await;
        let ours = [acquire, Loaded::new(&mut connection, renew).await, Loaded::new(&mut connection, release).await];
        let take = Loaded::new(&mut connection, TAKE).await;
        let end = Loaded::new(&mut connection, END).await;
        Self { connection, ours, take, end }
    }

    async fn send(&mut self, cmd: Cmd) -> Value {
        self.connection.send_packed_command(&cmd).await.unwrap()
    }

    pub(crate) async fn cycle(&mut self, way: Way, name: &str) {
        // A random holder id, as every real client makes one.
        let holder = HolderId::random().unwrap().to_hex();
        let fence = format!("lk:f:{{{name}}}");
        let taking = match way {
            Way::Ours => self.ours[0].call(&[name], &claim(&holder).each_ref().map(String::as_str)),
            Way::Fenced => self.take.call(&[name, &fence], &[&holder, "30000"]),
            Way::Unfenced => {
                let mut cmd = redis::cmd("SET");
                cmd.arg(name).arg(&holder).arg("NX").arg("PX").arg(30_000);
                cmd
            }
        };
        assert!(!matches!(self.send(taking).await, Value::Nil | Value::ServerError(_)));
        let ending = match way {
            Way::Ours => self.ours[2].call(&[name], &[&format!("lk2:{holder}-"), ""]),
            _ => self.end.call(&[name], &[&holder]),
        };
        let ended = self.send(ending).await;
        assert_eq!(ended, Value::Int(1));
    }
}

/// The arguments of an acquire or a renewal, as long as the store's own.
fn claim(holder: &str) -> [String; 3] {
    let waiter = "x:30000:1234567890:z0123456789abcdef0123456789abcdef";
    [format!("lk2:{holder}-:30000:bench-host:12345::"), "30000".to_owned(), waiter.to_owned()]
}

/// One task, acquire then release.
fn serial() {
    pin(1);
    let server = RedisServer::new();
    let runtime = runtime();
    let keeper = runtime.block_on(Keeper::connect(server.url())).unwrap();
    let floor = runtime.block_on(Floor::new(&server));
    let by_hand = |way: Way| {
        let (floor, runtime) = (floor.clone(), &runtime);
        Box::new(move |n| {
            let mut floor = floor.clone();
            // Spawned: the main thread is no worker, and each wake-up of it would be counted.
            runtime
                .block_on(runtime.spawn(async move {
                    for _ in 0..n {
                        floor.cycle(way, "orders/42").await;
                    }
                }))
                .unwrap();
        })
    };
    let ours = |n| {
        let lock = keeper.lock("orders/42");
        runtime
            .block_on(runtime.spawn(async move {
                for _ in 0..n {
                    lock.acquire().await.unwrap().release().await.unwrap();
                }
            }))
            .unwrap();
    };
    let samples = rounds_on(
        &[server.pid()],
        24,
        2_000,
        vec![
            ("the store's two EVALSHA by hand", by_hand(Way::Ours)),
            ("least fenced: SET NX PX + INCR, compare and delete", by_hand(Way::Fenced)),
            ("unfenced: SET NX PX, compare and delete", by_hand(Way::Unfenced)),
            ("lockkeeper: acquire + release, fenced", Box::new(ours)),
        ],
    );
    table("Redis, one task, acquire + release", &samples);
    println!("\nlockkeeper against the least fenced floor: {:.2}x", samples[3].ratio(&samples[1]));
    let before = wire(&server);
    ours(2_000);
    println!("Wire commands per cycle: {:.2}", (wire(&server) - before) as f64 / 2_000.0);
}

/// Many tasks, each on a name of its own.
fn many() {
    const TASKS: usize = 64;
    const EACH: usize = 250;
    pin(0);
    let server = RedisServer::new();
    pin(1);
    let runtime = runtime();
    let keeper = runtime.block_on(Keeper::connect(server.url())).unwrap();
    let floor = runtime.block_on(Floor::new(&server));
    let by_hand = |way: Way| {
        let tasks = (0..TASKS).map(|task| {
            let mut floor = floor.clone();
            runtime.spawn(async move {
                let name = format!("task/{task}");
                for _ in 0..EACH {
                    floor.cycle(way, &name).await;
                }
            })
        });
        tasks.collect::<Vec<_>>()
    };
    let ours = || {
        let tasks = (0..TASKS).map(|task| {
            let lock = keeper.lock(format!("task/{task}"));
            runtime.spawn(async move {
                for _ in 0..EACH {
                    lock.acquire().await.unwrap().release().await.unwrap();
                }
            })
        });
        tasks.collect::<Vec<_>>()
    };
    let names = ["the store's two EVALSHA by hand", "least fenced by hand", "unfenced by hand", "lockkeeper, fenced"];
    let mut costs: [Vec<Cost>; 4] = Default::default();
    for round in 0..=15 {
        for (contestant, costs) in costs.iter_mut().enumerate() {
            let spent = Spent::begin(&[server.pid()]);
            let tasks = match contestant {
                0 => by_hand(Way::Ours),
                1 => by_hand(Way::Fenced),
                2 => by_hand(Way::Unfenced),
                _ => ours(),
            };
            runtime.block_on(async {
                for task in tasks {
                    task.await.unwrap();
                }
            });
            if round > 0 {
                costs.push(spent.end((TASKS * EACH) as f64));
            }
        }
    }
    println!("\n### Redis, {TASKS} tasks on distinct names, one connection\n");
    rates(&names, &costs);
    let speeds = [1, 3].map(|row: usize| costs[row].iter().map(|cost| 1e6 / cost.wall).collect::<Vec<_>>());
    println!("\nlockkeeper against the least fenced floor: {:.2}x", median_ratio(&speeds[1], &speeds[0]));
}

/// A table of locks a second, with each row's ratio to the first, and the CPU of both sides for each lock.
fn rates(names: &[&str], costs: &[Vec<Cost>]) {
    println!("| | locks/s (quartiles) | x floor | client CPU µs | server CPU µs |\n|---|---|---|---|---|");
    let speeds = |costs: &[Cost]| costs.iter().map(|cost| 1e6 / cost.wall).collect::<Vec<_>>();
    let floor = speeds(&costs[0]);
    for (name, costs) in names.iter().zip(costs) {
        let speed = speeds(costs);
        let [low, mid, high] = [0.25, 0.5, 0.75].map(|q| quantile(&speed, q));
        let Cost { client, server, .. } = medians(costs);
        let ratio = median_ratio(&speed, &floor);
        println!("| {name} | {mid:.0} ({low:.0}–{high:.0}) | {ratio:.2} | {client:.1} | {server:.1} |");
    }
}
