//! Other lock clients in processes of their own, and the critical section that they and we share.
//!
//! A peer reads one order a line and answers each with one line, `@ …`; times are nanoseconds of the monotonic clock:
//! - `take KEY TTL` (one try) and `wait KEY TTL` (polls every few ms, or as its library waits), TTL in ms, 0 for none: `yes|no WHEN`
//! - `free`: `yes|no WHEN`, the time just before it was asked for; `no` when the lock is not theirs (any more)
//! - `extend TTL`: `yes|no`
//! - `storm KEY TTL COUNT DIR`: COUNT critical sections with pauses between them; `OVERLAPS BEGIN END BEGIN END …`, with a token
//!   after each END where the library has them
#![allow(dead_code, unreachable_pub, unused_imports, unused_macros, reason = "each test program uses its own part")]
#![allow(clippy::print_stdout, reason = "measured times are for people, and a peer answers there")]

mod checks;
mod installed;
mod kind;
pub(crate) mod rust;

pub(crate) use checks::*;
pub(crate) use installed::installed;
pub(crate) use kind::Kind;

use rustix::time::{ClockId, clock_gettime};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use testkit::{RedisCluster, RedisServer, SOON};

/// The servers that both sides use.
pub(crate) struct Place {
    pub(crate) servers: Vec<RedisServer>,
    /// Ours.
    pub(crate) url: String,
}

impl Place {
    /// One server.
    pub(crate) fn of(kind: Kind) -> Self {
        let server = RedisServer::new();
        Self { url: format!("{}?layout={}", server.url(), kind.layout()), servers: vec![server] }
    }

    /// Three that are independent, of which two decide. They have everything on disk before they answer, so that they
    /// count although they have just started.
    pub(crate) fn majority() -> Self {
        let server = || RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"]);
        let mut place = Self { servers: vec![server(), server(), server()], url: String::new() };
        let hosts: Vec<_> = place.servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        place.url = format!("redlock://{}", hosts.join(","));
        place
    }

    /// A Cluster of three.
    pub(crate) fn cluster(kind: Kind) -> Self {
        let cluster = RedisCluster::new(0);
        Self { url: format!("{}?layout={}", cluster.url(), kind.layout()), servers: cluster.nodes }
    }

    /// The only server, or the first.
    pub(crate) fn server(&self) -> &RedisServer {
        &self.servers[0]
    }

    fn ports(&self) -> String {
        self.servers.iter().map(|server| server.port().to_string()).collect::<Vec<_>>().join(",")
    }
}

/// A process with another lock client in it; killed when dropped.
pub(crate) struct Peer {
    process: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Peer {
    pub(crate) fn start(kind: Kind, place: &Place) -> Self {
        Self::run(kind.command(&place.ports()))
    }

    /// Starts any program that answers orders.
    pub(crate) fn run(mut command: Command) -> Self {
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = spawned.unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let orders = process.stdin.take().expect("piped");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // A test program says other things as well.
                if let Some((_, answer)) = line.split_once("@ ") {
                    let _ = sender.send(answer.to_owned());
                }
            }
        });
        Self { process, orders, answers }
    }

    /// Gives an order, whose answer is asked for later.
    pub(crate) fn order(&mut self, order: &str) {
        self.orders.write_all(format!("{order}\n").as_bytes()).expect("it listens");
    }

    /// The words of its next answer.
    pub(crate) fn answer(&self) -> Vec<String> {
        let answer = self.answers.recv_timeout(SOON * 2).expect("it answers");
        answer.split(' ').map(str::to_owned).collect()
    }

    /// Whether an order was carried out, and when, if it says so.
    pub(crate) fn ask(&mut self, order: &str) -> (bool, i64) {
        self.order(order);
        self.yes()
    }

    /// Reads `yes|no [WHEN]`.
    pub(crate) fn yes(&self) -> (bool, i64) {
        let words = self.answer();
        assert!(words[0] == "yes" || words[0] == "no", "{words:?}");
        (words[0] == "yes", words.get(1).map_or(0, |when| when.parse().expect("a time")))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What all processes of this machine agree on.
pub(crate) fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// One critical section.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Section {
    pub(crate) begin: i64,
    pub(crate) end: i64,
    /// How often another client was seen inside.
    pub(crate) overlaps: u64,
    /// 0 for one of theirs, unless they have tokens too.
    pub(crate) token: u64,
    pub(crate) ours: bool,
}

/// The critical section: only one client at a time may run it. The peers run it too.
pub(crate) fn section(place: &Path, token: u64) -> Section {
    let begin = now();
    let inside = place.join("inside");
    let mut overlaps = 0;
    if std::fs::File::create_new(&inside).is_err() {
        overlaps += 1;
    }
    let text = std::fs::read_to_string(place.join("count")).expect("it was made first");
    let count: u64 = text.parse().unwrap_or(0);
    std::thread::sleep(Duration::from_micros(200));
    std::fs::write(place.join("count"), (count + 1).to_string()).expect("the directory is ours");
    if std::fs::remove_file(&inside).is_err() {
        overlaps += 1;
    }
    Section { begin, end: now(), overlaps, token, ours: true }
}
