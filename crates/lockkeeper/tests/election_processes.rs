//! Candidates in processes of their own, whose leaders are killed, stopped and cut off from the store: this program starts
//! itself again as a candidate.
//!
//! Each candidate notes in a file, per term, the first and the last moment at which it believed to lead: read from the
//! clock before it asked its lease. So a process that is stopped between the two notes nothing that was not so.
#![cfg(any(feature = "sqlite", feature = "redis", feature = "postgres", feature = "etcd"))]
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "how long it took is for people")]

use lockkeeper::blocking;
use lockkeeper::clock::system_now;
use lockkeeper::recipes::election::After;
use lockkeeper::{ErrorKind, Keeper};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::{Gate, Proc, Signal, TempDir, eventually, found};

const URL: &str = "LOCKKEEPER_TEST_URL";
const PLACE: &str = "LOCKKEEPER_TEST_PLACE";
const ELECTION: &str = "scheduler";
const CANDIDATES: usize = 5;
/// Short, so that many leaders can fail; every store allows it.
const TTL: Duration = Duration::from_secs(2);
/// Far beyond any fail-over; reached only when none comes.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a stopped process may keep a store to itself, as one inside a transaction of SQLite does.
const STOPPED_INSIDE: Duration = Duration::from_secs(15);
/// In the normal run, and when asked for by `--ignored`.
const FEW: usize = 6;
const MANY: usize = 50;

/// What happens to a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Killed,
    Stopped,
    CutOff,
}

/// Not a test: the `main` of a candidate, when there is a place for it.
#[test]
fn act() {
    let (Ok(url), Ok(place)) = (std::env::var(URL), std::env::var(PLACE)) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(candidate(&url, Path::new(&place)));
}

async fn candidate(url: &str, place: &Path) {
    let keeper = Keeper::builder().ttl(TTL).connect(url).await.expect("connected");
    let election = keeper.election(ELECTION).look_every(Duration::from_millis(100));
    let me = std::process::id();
    let (saw, mut observer) = (File::create(place.join(format!("saw-{me}"))).unwrap(), election.observe());
    tokio::spawn(async move {
        let mut last = None;
        while let Some(leader) = observer.next().await {
            let leader = leader.expect("outages are ridden out");
            assert!(last < Some((leader.term, leader.sequence)), "{leader:?} after {last:?}");
            last = Some((leader.term, leader.sequence));
            saw.write_all_at(format!("{:020}\n", leader.term.get()).as_bytes(), 0).unwrap();
        }
    });
    let lead = election.lead(|term| async move {
        let notes = File::create_new(place.join(format!("term-{}-{me}", term.number()))).expect("a new term");
        let mut first = None;
        loop {
            let now = system_now().as_micros();
            if term.check().is_err() {
                return After::Again;
            }
            let first = *first.get_or_insert(now);
            notes.write_all_at(format!("{first:020} {now:020}\n").as_bytes(), 0).unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    lead.await.expect("outages are ridden out");
}

/// A term as its leader believed it.
#[derive(Clone, Copy, Debug)]
struct Belief {
    term: u64,
    process: i32,
    first: u64,
    last: u64,
}

/// All terms so far, in order.
fn beliefs(place: &TempDir) -> Vec<Belief> {
    let mut all: Vec<Belief> =
        std::fs::read_dir(place.path()).unwrap().filter_map(|file| belief(&file.unwrap().path())).collect();
    all.sort_by_key(|belief| belief.term);
    all
}

fn belief(path: &Path) -> Option<Belief> {
    let (term, process) = path.file_name()?.to_str()?.strip_prefix("term-")?.split_once('-')?;
    let text = std::fs::read_to_string(path).ok()?;
    // A leader that was killed at once has noted nothing.
    let (first, last) = text.trim_end().split_once(' ')?;
    let number = |text: &str| text.parse().expect("a number");
    Some(Belief { term: number(term), process: process.parse().ok()?, first: number(first), last: number(last) })
}

/// A candidate's process, and its way to the server.
struct Candidate {
    process: Proc,
    gate: Option<Gate>,
}

impl Candidate {
    fn start(store: &Store, place: &TempDir) -> Self {
        let gate = store.port.map(Gate::new);
        let url = match (&gate, store.port) {
            (Some(gate), Some(port)) => store.url.replace(&format!(":{port}"), &format!(":{}", gate.port())),
            _ => store.url.clone(),
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "act", "--nocapture"]).env(URL, url).env(PLACE, place.path());
        Self { process: Proc::start(&mut command), gate }
    }
}

/// Where an election is held.
struct Store {
    url: String,
    /// Of its server, if there is a way to it that can be cut.
    port: Option<u16>,
}

fn trial(store: &Store, rounds: usize) {
    let place = TempDir::new();
    let faults = match store.port {
        Some(_) => &[Fault::Killed, Fault::Stopped, Fault::CutOff][..],
        None => &[Fault::Killed, Fault::Stopped],
    };
    let follower = Follower::start(&store.url);
    let mut candidates: Vec<Candidate> = (0..CANDIDATES).map(|_| Candidate::start(store, &place)).collect();
    let mut took: BTreeMap<Fault, Vec<f64>> = BTreeMap::new();
    let newest = || beliefs(&place).pop();
    let mut leader = found(PATIENCE, "a first leader", newest);
    for fault in faults.iter().cycle().take(rounds) {
        // At any moment of a term: it is renewed every third of a TTL.
        std::thread::sleep(TTL.mul_f64(fastrand::f64() / 2.0));
        // It may have changed by itself on a busy machine.
        leader = newest().unwrap_or(leader);
        let struck = candidates.iter().position(|candidate| candidate.process.pid() == leader.process);
        let struck = struck.expect("a leader that was replaced leads no more");
        let at = system_now().as_micros();
        match fault {
            Fault::Killed => candidates[struck].process.signal(Signal::KILL),
            Fault::Stopped => candidates[struck].process.signal(Signal::STOP),
            Fault::CutOff => candidates[struck].gate.as_ref().unwrap().hold(),
        }
        let next = || newest().filter(|newest| newest.term > leader.term);
        if *fault == Fault::Stopped {
            let end = system_now().after(STOPPED_INSIDE);
            while next().is_none() && system_now() < end {
                std::thread::sleep(Duration::from_millis(20));
            }
            if next().is_none() {
                println!("a leader was stopped with the store to itself; it is continued before another one leads");
                candidates[struck].process.signal(Signal::CONT);
            }
        }
        leader = found(PATIENCE, "another leader", next);
        took.entry(*fault).or_default().push(Duration::from_micros(leader.first.saturating_sub(at)).as_secs_f64());
        match fault {
            Fault::Killed => candidates[struck] = Candidate::start(store, &place),
            Fault::Stopped => candidates[struck].process.signal(Signal::CONT),
            Fault::CutOff => {
                let gate = candidates[struck].gate.as_ref().unwrap();
                gate.pass();
                // What the leader of before had sent arrives now, its renewals and its values among it.
                gate.deliver();
            }
        }
    }
    let scheme = store.url.split(':').next().unwrap_or_default();
    println!("{scheme}: seconds from the fault to the next leader, TTL {TTL:?}: {took:.2?}");
    settle(&candidates, &place, &follower);
    for candidate in &mut candidates {
        assert!(candidate.process.is_running(), "a candidate ended: {}", candidate.process.stderr());
    }
    drop(candidates);
    judge(&beliefs(&place), rounds);
    follower.end();
}

/// Waits until every observer has seen the last leader.
fn settle(candidates: &[Candidate], place: &TempDir, follower: &Follower) {
    let final_term = || beliefs(place).pop().expect("there was one").term;
    eventually(PATIENCE, "every observer ends with the final leader", || {
        let term = final_term();
        let told = |candidate: &Candidate| place.read(&format!("saw-{}", candidate.process.pid()));
        let all = candidates.iter().all(|candidate| told(candidate) == Some(format!("{term:020}")));
        all && follower.last() == Some(term)
    });
}

fn judge(beliefs: &[Belief], rounds: usize) {
    assert!(beliefs.len() > rounds, "{beliefs:?}");
    for pair in beliefs.windows(2) {
        let [before, after] = pair else { unreachable!() };
        assert!(before.term < after.term, "one term, two leaders: {pair:?}");
        assert!(before.last < after.first, "two leaders at once: {pair:?}");
    }
}

/// An observer without a fault.
struct Follower {
    keeper: blocking::Keeper,
    told: Arc<Mutex<Vec<(u64, u64)>>>,
    thread: std::thread::JoinHandle<()>,
}

impl Follower {
    fn start(url: &str) -> Self {
        let keeper = blocking::Keeper::connect(url).unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let (observer, telling) =
            (keeper.election(ELECTION).look_every(Duration::from_millis(50)).observe(), told.clone());
        let thread = std::thread::spawn(move || {
            for leader in observer {
                match leader {
                    Ok(leader) => telling.lock().unwrap().push((leader.term.get(), leader.sequence)),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Closed, "{error}"),
                }
            }
        });
        Self { keeper, told, thread }
    }

    fn last(&self) -> Option<u64> {
        self.told.lock().unwrap().last().map(|told| told.0)
    }

    fn end(self) {
        self.keeper.close(Duration::ZERO).unwrap();
        self.thread.join().expect("only rising terms, and no error");
        let told = self.told.lock().unwrap();
        assert!(told.is_sorted_by(|a, b| a < b), "{told:?}");
    }
}

/// A trial with few faults, and one with many that runs when asked for.
macro_rules! trials {
    ($few:ident, $many:ident, $store:expr) => {
        #[test]
        fn $few() {
            let (_server, store) = $store;
            trial(&store, FEW);
        }

        #[test]
        #[ignore = "takes minutes: scripts/test-extended"]
        fn $many() {
            let (_server, store) = $store;
            trial(&store, MANY);
        }
    };
}

#[cfg(feature = "sqlite")]
trials!(sqlite, sqlite_many, {
    let dir = TempDir::new();
    let url = format!("sqlite:{}", dir.join("locks.db").display());
    (dir, Store { url, port: None })
});

#[cfg(feature = "redis")]
trials!(redis, redis_many, {
    let server = testkit::RedisServer::new();
    let store = Store { url: server.url(), port: Some(server.port()) };
    (server, store)
});

#[cfg(feature = "postgres")]
trials!(postgres, postgres_many, {
    let server = testkit::PostgresServer::new();
    let store = Store { url: server.url(), port: Some(server.port()) };
    (server, store)
});

#[cfg(feature = "etcd")]
trials!(etcd, etcd_many, {
    let server = testkit::EtcdServer::new();
    let store = Store { url: server.url(), port: Some(server.port()) };
    (server, store)
});
