//! Other lock clients in processes of their own, and the critical section that they and we share.
//!
//! A peer reads one order a line and answers each with one line, `@ …`; times are nanoseconds of the monotonic clock:
//! - `take KEY TTL` (one try) and `wait KEY TTL` (polls every few ms), TTL in ms, 0 for none: `yes|no WHEN`
//! - `free`: `yes|no WHEN`, the time just before it was asked for; `no` when the lock is not theirs (any more)
//! - `extend TTL`: `yes|no`
//! - `storm KEY TTL COUNT DIR`: COUNT critical sections with pauses between them; `OVERLAPS BEGIN END BEGIN END …`

mod rust;

pub(crate) use rust::serve;

use rustix::time::{ClockId, clock_gettime};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use testkit::{RedisServer, SOON};

/// Which library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    RedisPy,
    PythonRedisLock,
    NodeRedlock,
    Rslock,
}

impl Kind {
    /// The key of a name of theirs, which is the name of our lock.
    pub(crate) fn key(self, name: &str) -> String {
        if self == Self::PythonRedisLock { format!("lock:{name}") } else { name.to_owned() }
    }

    /// Whether it can hold without a TTL.
    pub(crate) fn endless(self) -> bool {
        matches!(self, Self::RedisPy | Self::PythonRedisLock)
    }

    /// The shortest TTL it can ask for.
    pub(crate) fn short(self) -> Duration {
        Duration::from_millis(if self == Self::PythonRedisLock { 1000 } else { 300 })
    }

    /// The command that each of its tries is.
    pub(crate) fn attempt(self) -> &'static str {
        if self == Self::NodeRedlock { "evalsha" } else { "set" }
    }

    fn command(self, port: u16) -> Command {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers");
        let port = port.to_string();
        let python = |kind: &str| {
            let mut command = Command::new(installed("python", "requirements.txt").join("bin/python"));
            command.arg(here.join("peer.py")).args([kind, &port]);
            command
        };
        match self {
            Self::RedisPy => python("redis-py"),
            Self::PythonRedisLock => python("python-redis-lock"),
            Self::NodeRedlock => {
                let mut command = Command::new("node");
                let place = installed("node", "package.json");
                command.arg(here.join("peer.mjs")).arg(&port).env("PEERS", place.parent().expect("below the cache"));
                command
            }
            Self::Rslock => {
                let mut command = Command::new(std::env::current_exe().expect("this program has a file"));
                command.args(["--exact", "rslock_in_a_process_of_its_own", "--nocapture"]).env(rust::PORT, port);
                command
            }
        }
    }
}

/// Where `scripts/peers` has put what a list of packages asks for.
fn installed(what: &str, list: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Path::new(&std::env::var_os("HOME").expect("HOME or XDG_CACHE_HOME is set")).join(".cache");
    let place = cache.unwrap_or_else(home).join("lockkeeper/peers").join(what);
    let wanted = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(list)).expect("ours");
    let found = std::fs::read(place.join(list)).ok();
    assert!(
        found == Some(wanted),
        "the packages of tests/peers/{list} are not in {}: run scripts/peers",
        place.display()
    );
    place
}

/// A process with another lock client in it; killed when dropped.
pub(crate) struct Peer {
    process: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Peer {
    pub(crate) fn start(kind: Kind, server: &RedisServer) -> Self {
        let mut command = kind.command(server.port());
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = spawned.unwrap_or_else(|e| panic!("{kind:?}: {command:?}: {e}; run scripts/peers"));
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
    /// How often somebody else was seen inside.
    pub(crate) overlaps: u64,
    /// 0 for one of theirs.
    pub(crate) token: u64,
}

/// What a lock is there for: only one at a time may do it. The peers do the same.
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
    Section { begin, end: now(), overlaps, token }
}
