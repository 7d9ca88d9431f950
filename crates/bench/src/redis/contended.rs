//! Many waiters of one lock, against a baton of BLPOP and RPUSH with one connection per waiter. The server passes the
//! baton in order of arrival, but it is no lock: it has no lease, no owner, no token. Once with a thread for every
//! waiter, the least there is; once with tasks on the runtime and the driver that the locks use.
//!
//! Every keeper has a runtime of its own, as in a process of its own. Waiters with a keeper each have a thread each.

use super::{client, connect, pin, wire};
use crate::measure::{Cost, Spent, medians, quantile};
use lockkeeper::Keeper;
use redis::Cmd;
use redis::aio::MultiplexedConnection;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use testkit::RedisServer;
use tokio::runtime::Runtime;

const NAME: &str = "contended";

/// When the last release was called; until when waiters ask again.
struct Course {
    began: Instant,
    released: AtomicU64,
    until: AtomicU64,
    /// Zero: each waiter has its turn once.
    time: Duration,
}

/// What one waiter saw.
#[derive(Default)]
struct Seen {
    /// From each release to the grant that followed it, in µs.
    handed: Vec<f64>,
    /// The longest wait for a grant, in µs.
    longest: f64,
}

impl Course {
    fn new(time: Duration) -> Arc<Self> {
        let (released, until) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        Arc::new(Self { began: Instant::now(), released, until, time })
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// All waiters wait: lets them begin.
    fn start(&self) {
        self.until.store(self.now() + self.time.as_nanos() as u64, Ordering::SeqCst);
        self.releasing();
    }

    fn releasing(&self) {
        self.released.store(self.now(), Ordering::SeqCst);
    }

    /// Notes a grant; whether there is time for another one.
    fn acquired(&self, asked: u64, seen: &mut Seen) -> bool {
        let now = self.now();
        let over = now >= self.until.load(Ordering::SeqCst);
        if !over || self.time.is_zero() {
            let released = self.released.load(Ordering::SeqCst);
            seen.handed.push(now.saturating_sub(released) as f64 / 1e3);
            seen.longest = seen.longest.max(now.saturating_sub(asked) as f64 / 1e3);
        }
        !over && !self.time.is_zero()
    }
}

/// Up to 1 ms.
fn hold() -> Duration {
    Duration::from_micros(lockkeeper::HolderId::random().unwrap().to_u128() as u64 % 1000)
}

/// A thread and a connection per waiter, and a connection to start and end.
struct Batons(Vec<redis::Connection>, redis::Connection);

impl Batons {
    fn new(server: &RedisServer, waiters: usize) -> Self {
        let connection = || client(server).get_connection().unwrap();
        Self((0..waiters).map(|_| connection()).collect(), connection())
    }

    fn run(&mut self, time: Duration) -> Vec<Seen> {
        let course = Course::new(time);
        let waiters = self.0.len();
        let seen = std::thread::scope(|scope| {
            let spawn = |connection| {
                let course = course.clone();
                scope.spawn(move || baton(connection, &course))
            };
            let threads: Vec<_> = self.0.iter_mut().map(spawn).collect();
            all_wait(&mut self.1, waiters);
            course.start();
            give(&mut self.1);
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        take(&mut self.1);
        seen
    }
}

fn baton(connection: &mut redis::Connection, course: &Course) -> Seen {
    let mut seen = Seen::default();
    loop {
        let asked = course.now();
        take(connection);
        let more = course.acquired(asked, &mut seen);
        std::thread::sleep(hold());
        course.releasing();
        give(connection);
        if !more {
            return seen;
        }
    }
}

fn take(connection: &mut redis::Connection) {
    let _: (String, String) = blpop().query(connection).unwrap();
}

fn give(connection: &mut redis::Connection) {
    let _: u64 = rpush().query(connection).unwrap();
}

fn blpop() -> Cmd {
    let mut cmd = redis::cmd("BLPOP");
    cmd.arg(NAME).arg(0);
    cmd
}

fn rpush() -> Cmd {
    let mut cmd = redis::cmd("RPUSH");
    cmd.arg(NAME).arg("1");
    cmd
}

fn all_wait(connection: &mut redis::Connection, waiters: usize) {
    let blocked = format!("blocked_clients:{waiters}");
    testkit::eventually(testkit::SOON, "all wait for the baton", || {
        let clients: String = redis::cmd("INFO").arg("clients").query(connection).unwrap();
        clients.lines().any(|line| line.trim_end() == blocked)
    });
}

/// A task and a connection per waiter.
struct TaskBatons(Vec<MultiplexedConnection>, redis::Connection);

impl TaskBatons {
    fn new(runtime: &Runtime, server: &RedisServer, waiters: usize) -> Self {
        let connections = (0..waiters).map(|_| runtime.block_on(connect(server))).collect();
        Self(connections, client(server).get_connection().unwrap())
    }

    fn run(&mut self, runtime: &Runtime) -> Vec<Seen> {
        let course = Course::new(Duration::ZERO);
        let spawn = |connection: &MultiplexedConnection| runtime.spawn(task_baton(connection.clone(), course.clone()));
        let tasks: Vec<_> = self.0.iter().map(spawn).collect();
        all_wait(&mut self.1, self.0.len());
        course.start();
        give(&mut self.1);
        let seen = tasks.into_iter().map(|task| runtime.block_on(task).unwrap()).collect();
        take(&mut self.1);
        seen
    }
}

async fn task_baton(mut connection: MultiplexedConnection, course: Arc<Course>) -> Seen {
    let mut seen = Seen::default();
    let asked = course.now();
    let _: (String, String) = blpop().query_async(&mut connection).await.unwrap();
    course.acquired(asked, &mut seen);
    pause().await;
    course.releasing();
    let _: u64 = rpush().query_async(&mut connection).await.unwrap();
    seen
}

/// Holds for a while: a timer of Tokio's would round up to whole milliseconds.
async fn pause() {
    tokio::task::spawn_blocking(|| std::thread::sleep(hold())).await.unwrap();
}

/// Keepers of waiters, each with a runtime of its own, and a keeper to start with.
struct Locks(Vec<(Runtime, Keeper)>, Keeper);

impl Locks {
    fn new(runtime: &Runtime, server: &RedisServer, keepers: usize, own: fn() -> Runtime) -> Self {
        let connect = |runtime: &Runtime| runtime.block_on(Keeper::connect(server.url())).unwrap();
        let apart = || {
            let runtime = own();
            let keeper = connect(&runtime);
            (runtime, keeper)
        };
        Self((0..keepers).map(|_| apart()).collect(), connect(runtime))
    }

    /// One waiter for each keeper, with a thread of its own: what each saw, and how many commands were sent beside theirs.
    fn threads(&self, runtime: &Runtime, time: Duration) -> (Vec<Seen>, u64) {
        let course = Course::new(time);
        let guard = runtime.block_on(self.1.lock(NAME).acquire()).unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.0.len())
                .map(|i| {
                    let (own, keeper) = &self.0[i];
                    // Its thread has nothing else to do, so the hold blocks it.
                    let waiting = waiter(keeper.clone(), course.clone(), async || std::thread::sleep(hold()));
                    scope.spawn(move || own.block_on(own.spawn(waiting)).unwrap())
                })
                .collect();
            let beside = runtime.block_on(begin(&self.1, guard, self.0.len(), &course));
            (threads.into_iter().map(|thread| thread.join().unwrap()).collect(), beside)
        })
    }

    /// Waiters spread over the keepers as tasks: what each saw, and how many commands were sent beside theirs.
    async fn tasks(&self, waiters: usize) -> (Vec<Seen>, u64) {
        let course = Course::new(Duration::ZERO);
        let guard = self.1.lock(NAME).acquire().await.unwrap();
        let spawn = |i: usize| {
            let (runtime, keeper) = &self.0[i % self.0.len()];
            runtime.spawn(waiter(keeper.clone(), course.clone(), pause))
        };
        let tasks: Vec<_> = (0..waiters).map(spawn).collect();
        let beside = begin(&self.1, guard, self.0.len(), &course).await;
        let mut seen = Vec::new();
        for task in tasks {
            seen.push(task.await.unwrap());
        }
        (seen, beside)
    }
}

/// Waits until all keepers are in line, and releases; how many commands that took.
async fn begin(keeper: &Keeper, guard: lockkeeper::Guard, keepers: usize, course: &Course) -> u64 {
    let mut beside = 2;
    let end = Instant::now() + testkit::SOON;
    // Waiters of one keeper share its place in line.
    loop {
        beside += 1;
        let waiting = keeper.inspect(NAME).await.unwrap().map_or(0, |record| record.waiting);
        tokio::time::sleep(Duration::from_millis(5)).await;
        if waiting as usize == keepers {
            break;
        }
        assert!(Instant::now() < end, "{waiting} wait");
    }
    course.start();
    guard.release().await.unwrap();
    beside
}

/// With as many workers as there are cores: one.
fn single() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Driven by one thread.
fn thread() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn waiter(keeper: Keeper, course: Arc<Course>, pause: impl AsyncFn() + Send + 'static) -> Seen {
    let mut seen = Seen::default();
    loop {
        let asked = course.now();
        let guard = keeper.lock(NAME).acquire().await.unwrap();
        let more = course.acquired(asked, &mut seen);
        pause().await;
        course.releasing();
        guard.release().await.unwrap();
        if !more {
            return seen;
        }
    }
}

/// All wait for a held lock, it is released, each takes it once.
pub(super) fn drain() {
    const SUBJECTS: usize = 5;
    pin(1);
    println!("\n### Redis, hand-over: all wait, the lock is released, each holds it once for 0–1 ms\n");
    println!(
        "| waiters | | p50 µs | p99 µs | x floor (p50) | x floor (p99) | x tasks (p50) | x tasks (p99) | wire commands per grant \
         | client CPU µs per grant | server CPU µs per grant |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for (waiters, rounds) in [(8, 80), (64, 20)] {
        let server = RedisServer::new();
        let runtime = single();
        let mut batons = Batons::new(&server, waiters);
        let mut task_batons = TaskBatons::new(&runtime, &server, waiters);
        let apart = Locks::new(&runtime, &server, waiters, thread);
        let groups = [4, 1].map(|keepers| Locks::new(&runtime, &server, keepers, single));
        let mut handed: [Vec<f64>; SUBJECTS] = Default::default();
        // Counted for the locks only: the batons' commands in this part are not told apart from their set-up.
        let mut sent = [0; SUBJECTS];
        // From the first call to the last release: to get in line is part of it.
        let mut costs: [Vec<Cost>; SUBJECTS] = Default::default();
        let (pids, each) = ([server.pid()], waiters as f64);
        for round in 0..=rounds {
            let spent = Spent::begin(&pids);
            let mut all = vec![batons.run(Duration::ZERO)];
            costs[0].push(spent.end(each));
            let spent = Spent::begin(&pids);
            all.push(task_batons.run(&runtime));
            costs[1].push(spent.end(each));
            for (i, (sent, costs)) in sent[2..].iter_mut().zip(&mut costs[2..]).enumerate() {
                let before = wire(&server);
                let spent = Spent::begin(&pids);
                let (seen, beside) = match i.checked_sub(1) {
                    None => apart.threads(&runtime, Duration::ZERO),
                    Some(group) => runtime.block_on(groups[group].tasks(waiters)),
                };
                costs.push(spent.end(each));
                *sent += if round > 0 { wire(&server) - before - beside } else { 0 };
                all.push(seen);
            }
            // The first one only warms up.
            if round > 0 {
                for (handed, seen) in handed.iter_mut().zip(all) {
                    handed.extend(seen.iter().flat_map(|seen| &seen.handed));
                }
            }
        }
        let [threads, tasks] = [0, 1].map(|floor: usize| [0.5, 0.99].map(|q| quantile(&handed[floor], q)));
        let names = [NAMES[0], "the same with tasks", NAMES[1], "lockkeeper, 4 keepers", "lockkeeper, one keeper"];
        for (((name, handed), sent), costs) in names.iter().zip(&handed).zip(sent).zip(&costs) {
            let Cost { client, server, .. } = medians(&costs[1..]);
            let [p50, p99] = [0.5, 0.99].map(|q| quantile(handed, q));
            let [a50, a99, b50, b99] = [p50 / threads[0], p99 / threads[1], p50 / tasks[0], p99 / tasks[1]];
            let each = match sent {
                0 => "not counted".to_owned(),
                sent => format!("{:.2}", sent as f64 / handed.len() as f64),
            };
            println!(
                "| {waiters} | {name} | {p50:.0} | {p99:.0} | {a50:.2} | {a99:.2} | {b50:.2} | {b99:.2} | {each} \
                 | {client:.0} | {server:.0} |"
            );
        }
    }
}

const NAMES: [&str; 2] = ["BLPOP/RPUSH baton, a thread each", "lockkeeper, a keeper each"];

/// Release, then ask again at once.
pub(super) fn steady() {
    const TIME: Duration = Duration::from_secs(5);
    pin(1);
    println!("\n### Redis, steady: release, then ask again at once, for {TIME:?}, held 0–1 ms\n");
    println!(
        "| waiters | | grants/s | x floor | grants of a waiter | max/min | longest wait ms | x floor | wire commands per grant |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for waiters in [8, 64] {
        let server = RedisServer::new();
        let runtime = single();
        let before = wire(&server);
        let baton = Batons::new(&server, waiters).run(TIME);
        let mut rows = vec![(baton, wire(&server) - before)];
        let locks = Locks::new(&runtime, &server, waiters, thread);
        let before = wire(&server);
        let (seen, beside) = locks.threads(&runtime, TIME);
        rows.push((seen, wire(&server) - before - beside));
        let speed = |seen: &[Seen]| seen.iter().map(|s| s.handed.len()).sum::<usize>() as f64 / TIME.as_secs_f64();
        let longest = |seen: &[Seen]| seen.iter().map(|s| s.longest).fold(0.0, f64::max) / 1e3;
        for (name, (seen, sent)) in NAMES.iter().zip(&rows) {
            let counts = seen.iter().map(|s| s.handed.len());
            let (least, most) = (counts.clone().min().unwrap_or(0), counts.clone().max().unwrap_or(0));
            println!(
                "| {waiters} | {name} | {:.0} | {:.2} | {least}–{most} | {:.3} | {:.1} | {:.2} | {:.2} |",
                speed(seen),
                speed(seen) / speed(&rows[0].0),
                most as f64 / least as f64,
                longest(seen),
                longest(seen) / longest(&rows[0].0),
                // Each waiter has one grant more after the end.
                *sent as f64 / (counts.sum::<usize>() + waiters) as f64,
            );
        }
    }
}
