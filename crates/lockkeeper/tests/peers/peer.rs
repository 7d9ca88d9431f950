//! A process that takes orders as `mod.rs` describes them, and the critical section that it and we share.

use rustix::time::{ClockId, clock_gettime};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use testkit::SOON;

/// Where `scripts/peers` has put what a list of packages asks for.
pub(crate) fn installed(what: &str, list: &str) -> PathBuf {
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

/// Killed when dropped.
pub(crate) struct Peer {
    process: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Peer {
    pub(crate) fn start(command: &mut Command) -> Self {
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = spawned.unwrap_or_else(|e| panic!("{command:?}: {e}; run scripts/peers"));
        let orders = process.stdin.take().expect("piped");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
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

    /// Whether an order was carried out.
    pub(crate) fn ask(&mut self, order: &str) -> bool {
        self.order(order);
        let words = self.answer();
        assert!(words[0] == "yes" || words[0] == "no", "{words:?}");
        words[0] == "yes"
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What all processes of this machine agree on.
fn now() -> i64 {
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
    /// 0 for one of theirs.
    pub(crate) token: u64,
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
    Section { begin, end: now(), overlaps, token }
}
