//! Many waiters of one lock, against a baton of BLPOP and RPUSH with one blocking connection per waiter: first come,
//! first served by the server itself, but no lock (it has no lease, no owner, no token).

use super::{client, pin, runtime, wire};
use crate::measure::quantile;
use lockkeeper::Keeper;
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

    /// Everybody waits: off they go.
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

/// One connection per waiter, and one to start and end.
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
            let everybody = format!("blocked_clients:{waiters}\r");
            testkit::eventually(testkit::SOON, "all wait for the baton", || {
                let clients: String = redis::cmd("INFO").arg("clients").query(&mut self.1).unwrap();
                clients.lines().any(|line| line.trim_end() == everybody.trim_end())
            });
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
    let _: (String, String) = redis::cmd("BLPOP").arg(NAME).arg(0).query(connection).unwrap();
}

fn give(connection: &mut redis::Connection) {
    let _: u64 = redis::cmd("RPUSH").arg(NAME).arg("1").query(connection).unwrap();
}

/// Waiters spread over some keepers, and a keeper to start with.
struct Locks(Vec<Keeper>, Keeper);

impl Locks {
    fn new(runtime: &Runtime, server: &RedisServer, keepers: usize) -> Self {
        let connect = || runtime.block_on(Keeper::connect(server.url())).unwrap();
        Self((0..keepers).map(|_| connect()).collect(), connect())
    }

    /// What each waiter saw, and how many commands were sent beside theirs.
    async fn run(&self, waiters: usize, time: Duration) -> (Vec<Seen>, u64) {
        let course = Course::new(time);
        let guard = self.1.lock(NAME).acquire().await.unwrap();
        let spawn = |i: usize| tokio::spawn(waiter(self.0[i % self.0.len()].clone(), course.clone()));
        let tasks: Vec<_> = (0..waiters).map(spawn).collect();
        let mut beside = 2;
        let end = Instant::now() + testkit::SOON;
        // Waiters of one keeper share its place in line.
        loop {
            beside += 1;
            let waiting = self.1.inspect(NAME).await.unwrap().map_or(0, |record| record.waiting);
            tokio::time::sleep(Duration::from_millis(5)).await;
            if waiting as usize == self.0.len() {
                break;
            }
            assert!(Instant::now() < end, "{waiting} wait");
        }
        course.start();
        guard.release().await.unwrap();
        let mut seen = Vec::new();
        for task in tasks {
            seen.push(task.await.unwrap());
        }
        (seen, beside)
    }
}

async fn waiter(keeper: Keeper, course: Arc<Course>) -> Seen {
    let mut seen = Seen::default();
    loop {
        let asked = course.now();
        let guard = keeper.lock(NAME).acquire().await.unwrap();
        let more = course.acquired(asked, &mut seen);
        // A timer of Tokio's would round up to whole milliseconds.
        tokio::task::spawn_blocking(|| std::thread::sleep(hold())).await.unwrap();
        course.releasing();
        guard.release().await.unwrap();
        if !more {
            return seen;
        }
    }
}

/// All wait for a held lock, it is released, each takes it once.
pub(super) fn drain() {
    pin(1);
    println!("\n### Redis, hand-over: all wait, the lock is released, each holds it once for 0–1 ms\n");
    println!("| waiters | | p50 µs | p99 µs | x floor (p50) | x floor (p99) | wire commands per grant |");
    println!("|---|---|---|---|---|---|---|");
    for (waiters, rounds) in [(8, 80), (64, 20)] {
        let server = RedisServer::new();
        let runtime = runtime();
        let mut batons = Batons::new(&server, waiters);
        let groups = [waiters, 4, 1].map(|keepers| Locks::new(&runtime, &server, keepers));
        let mut handed: [Vec<f64>; 4] = Default::default();
        // Counted for the locks only: the baton's commands in this part are not told apart from its set-up.
        let mut sent = [0; 4];
        for round in 0..=rounds {
            let mut all = vec![batons.run(Duration::ZERO)];
            for (group, sent) in groups.iter().zip(&mut sent[1..]) {
                let before = wire(&server);
                let (seen, beside) = runtime.block_on(group.run(waiters, Duration::ZERO));
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
        let floor = [0.5, 0.99].map(|q| quantile(&handed[0], q));
        for ((name, handed), sent) in NAMES.iter().zip(&handed).zip(sent) {
            let [p50, p99] = [0.5, 0.99].map(|q| quantile(handed, q));
            let [r50, r99] = [p50 / floor[0], p99 / floor[1]];
            let each = match sent {
                0 => "not counted".to_owned(),
                sent => format!("{:.2}", sent as f64 / handed.len() as f64),
            };
            println!("| {waiters} | {name} | {p50:.0} | {p99:.0} | {r50:.2} | {r99:.2} | {each} |");
        }
    }
}

const NAMES: [&str; 4] =
    ["BLPOP/RPUSH baton", "lockkeeper, a keeper each", "lockkeeper, 4 keepers", "lockkeeper, one keeper"];

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
        let runtime = runtime();
        let before = wire(&server);
        let baton = Batons::new(&server, waiters).run(TIME);
        let mut rows = vec![(baton, wire(&server) - before)];
        let locks = Locks::new(&runtime, &server, waiters);
        let before = wire(&server);
        let (seen, beside) = runtime.block_on(locks.run(waiters, TIME));
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
