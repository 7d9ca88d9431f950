//! The PostgreSQL stores beside those who use the server's advisory locks and ShedLock's table already, each in a process
//! of its own (`scripts/peers`, `tests/peers/postgres.py`, `tests/peers/sqlx`).

#[path = "../peers/installed.rs"]
mod installed;

use crate::keepers::taken;
use lockkeeper::transaction::postgres::KeyRule;
use lockkeeper::{Keeper, LossReason};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use testkit::{PostgresServer, SOON, TempDir};
use tokio::task::JoinSet;

static SERVER: LazyLock<&'static PostgresServer> = LazyLock::new(|| PostgresServer::new().share());

/// Our keepers and their processes in a mix, and how many critical sections each of them has.
const OURS: usize = 3;
const THEIRS: usize = 2;
const EACH: usize = 120;
const TOTAL: usize = (OURS + THEIRS) * EACH;

/// How we and they name the same lock.
struct Names {
    kind: &'static str,
    options: &'static str,
    ours: String,
    theirs: String,
}

fn advisory(kind: &'static str, rule: KeyRule, options: &'static str, ours: String) -> Names {
    let theirs = rule.key(&ours).expect("a key").to_string().replace(' ', "");
    Names { kind, options, ours, theirs }
}

fn sqlx(ours: String) -> Names {
    Names { kind: "sqlx", options: "mode=advisory&key=sqlx", theirs: ours.clone(), ours }
}

fn shedlock(ours: String) -> Names {
    Names { kind: "shedlock", options: "layout=shedlock", theirs: ours.clone(), ours }
}

/// A process with another user of the locks; killed when dropped.
struct Peer {
    process: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Peer {
    fn start(kind: &str) -> Self {
        let mut command;
        if kind == "sqlx" {
            let files = ["Cargo.toml", "Cargo.lock", "src/main.rs"];
            command = Command::new(installed::installed("sqlx", &files).join("peer"));
        } else {
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/postgres.py");
            command = Command::new(installed::installed("python", &["requirements.txt"]).join("bin/python"));
            command.arg(script).arg(kind);
        }
        command.arg(SERVER.port().to_string());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("run scripts/peers");
        let orders = process.stdin.take().expect("piped");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = sender.send(line.trim_start_matches("@ ").to_owned());
            }
        });
        Self { process, orders, answers }
    }

    fn order(&mut self, order: &str) {
        self.orders.write_all(format!("{order}\n").as_bytes()).expect("it listens");
    }

    fn answer(&self) -> String {
        self.answers.recv_timeout(SOON * 2).expect("it answers; if it has no psycopg, run scripts/peers")
    }

    fn ask(&mut self, order: &str) -> bool {
        self.order(order);
        self.answer() == "yes"
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn keeper(options: &str) -> Keeper {
    Keeper::builder()
        .ttl(Duration::from_secs(10))
        .connect(format!("{}?{options}", SERVER.url()))
        .await
        .expect("connected")
}

/// What a lock is there for: only one at a time may do it. The peers do the same.
fn section(place: &Path) -> u64 {
    let (inside, count) = (place.join("inside"), place.join("count"));
    let mut overlaps = u64::from(std::fs::File::create_new(&inside).is_err());
    let n: u64 = std::fs::read_to_string(&count).expect("it was made first").parse().unwrap_or(0);
    std::thread::sleep(Duration::from_micros(200));
    std::fs::write(&count, (n + 1).to_string()).expect("the directory is ours");
    overlaps += u64::from(std::fs::remove_file(&inside).is_err());
    overlaps
}

/// Either side keeps the other out, and lets it in when it leaves.
async fn keep_out(names: &Names) {
    let (keeper, mut peer) = (keeper(names.options).await, Peer::start(names.kind));
    let take = format!("take {}", names.theirs);
    for _ in 0..3 {
        assert!(peer.ask(&take), "free");
        assert!(keeper.lock(&names.ours).try_acquire().await.expect("answered").is_none(), "theirs");
        let record = keeper.inspect(&names.ours).await.expect("inspected").expect("held");
        assert_eq!((record.holders.len(), &record.holders[0].note), (1, &None), "{record:?}");
        let remark = record.remark.unwrap_or_default();
        assert!(remark.contains("peer") || remark.contains("host-"), "{remark}");
        let waiting = tokio::spawn({
            let (keeper, name) = (keeper.clone(), names.ours.clone());
            async move { taken(&keeper, &name).await }
        });
        assert!(peer.ask("free"), "still theirs");
        let guard = waiting.await.expect("granted");
        assert!(!peer.ask(&take), "ours");
        guard.check().expect("still ours");
        peer.order(&format!("wait {}", names.theirs));
        guard.release().await.expect("released");
        assert_eq!(peer.answer(), "yes");
        assert!(peer.ask("free"), "still theirs");
    }
}

async fn mixed(names: &Names) {
    let dir = TempDir::new();
    dir.write("count", "0");
    let mut peers: Vec<Peer> = (0..THEIRS).map(|_| Peer::start(names.kind)).collect();
    // The first of both sides makes the table.
    drop(keeper(names.options).await);
    for peer in &mut peers {
        peer.order(&format!("storm {} {EACH} {}", names.theirs, dir.path().display()));
    }
    let mut tasks = JoinSet::new();
    for _ in 0..OURS {
        let (keeper, name, place) = (keeper(names.options).await, names.ours.clone(), dir.path().to_owned());
        tasks.spawn(async move {
            let (mut overlaps, mut tokens) = (0, Vec::new());
            for _ in 0..EACH {
                let guard = taken(&keeper, &name).await;
                overlaps += section(&place);
                tokens.push(guard.token());
                guard.release().await.expect("released");
                tokio::time::sleep(Duration::from_micros(fastrand::u64(0..4000))).await;
            }
            assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
            overlaps
        });
    }
    let ours: u64 = tasks.join_all().await.into_iter().sum();
    let theirs: u64 = peers.iter().map(|peer| peer.answer().parse::<u64>().expect("a number")).sum();
    let counted: usize = std::fs::read_to_string(dir.join("count")).expect("a file").parse().expect("a number");
    assert_eq!((ours, theirs, counted), (0, 0, TOTAL), "overlaps seen by us and by them, sections counted");
}

macro_rules! beside {
    ($($name:ident: $names:expr;)*) => {$(
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn each_keeps_the_other_out() {
                keep_out(&($names)("1".into())).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn six_hundred_mixed_sections_never_overlap() {
                mixed(&($names)("2".into())).await;
            }
        }
    )*};
}

// A lock of each test's own; a short name for the rule that keeps short names as they are.
beside! {
    psycopg_session: |tag: String| advisory("session", KeyRule::Native, "mode=advisory", "native job" .to_owned() + &tag);
    psycopg_pair: |tag: String| advisory("session", KeyRule::Madelson, "mode=advisory&key=madelson", "pair-".to_owned() + &tag);
    psycopg_transaction: |tag: String| advisory("transaction", KeyRule::Sqlx, "mode=advisory&key=sqlx", "sqlx job".to_owned() + &tag);
    sqlx_advisory_lock: |tag: String| sqlx("orders/settle-".to_owned() + &tag);
    shedlock_statements: |tag: String| shedlock("reportJob".to_owned() + &tag);
}

/// The detector is not blind: with different locks the same sections do overlap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sections_under_different_locks_are_seen_to_overlap() {
    let dir = TempDir::new();
    dir.write("count", "0");
    let mut peer = Peer::start("session");
    assert!(peer.ask("take 99") && peer.ask("free"), "it runs");
    let (keeper, mut seen) = (keeper("mode=advisory&key=raw").await, 0);
    for _ in 0..20 {
        peer.order(&format!("storm 1001 {EACH} {}", dir.path().display()));
        for _ in 0..EACH {
            let guard = taken(&keeper, "1002").await;
            seen += section(dir.path());
            guard.release().await.expect("released");
        }
        seen += peer.answer().parse::<u64>().expect("a number");
        if seen > 0 {
            return;
        }
    }
    panic!("no overlap in {} sections under two locks", 20 * 2 * EACH);
}

/// A job that overstays: ShedLock's row is free when `lock_until` has passed, for both sides, and the side that is late is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_a_peer_took_over_is_lost() {
    let (keeper, mut peer) = (keeper("layout=shedlock").await, Peer::start("shedlock"));
    let guard = keeper.lock("late").ttl(Duration::from_secs(1)).acquire().await.expect("granted");
    let row = || {
        SERVER
            .sql("SELECT locked_by, lock_until > timezone('utc', clock_timestamp()) FROM shedlock WHERE name = 'late'")
    };
    assert!(row().ends_with(&format!("lockkeeper:{}|t", guard.token())), "{}", row());
    // An operator ends it, and an application takes it.
    SERVER.sql("UPDATE shedlock SET lock_until = timezone('utc', now()) - interval '1 second' WHERE name = 'late'");
    assert!(peer.ask("take late"), "free");
    assert_eq!(guard.lost().await, LossReason::Gone);
    drop(guard);
    assert!(keeper.lock("late").try_acquire().await.expect("answered").is_none(), "theirs");
    assert!(peer.ask("free"), "our late release took nothing from them");
    assert!(row().starts_with("host-") && row().ends_with("|f"), "{}", row());
}
