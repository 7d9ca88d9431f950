//! The etcd store beside the lock clients that people use already: `etcdctl lock`, `etcdctl elect`, and Go's own
//! `concurrency` package (`scripts/peers --extended`).
#![allow(clippy::print_stdout, reason = "what was counted is for people")]

use crate::keepers::taken;
use lockkeeper::Keeper;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testkit::{EtcdServer, Proc, SOON, Signal, TempDir, eventually, signal};

const TTL: Duration = Duration::from_secs(10);
const OURS: usize = 4;
const OUR_SECTIONS: usize = 90;
const THEIRS: usize = 3;
const THEIR_SECTIONS: usize = 60;

/// How long an `etcdctl` that was killed keeps its lock: its session's TTL, and what the server takes to notice.
const THEIR_TTL: Duration = Duration::from_secs(10);

async fn keeper(server: &EtcdServer) -> Keeper {
    keeper_with(server, "").await
}

/// What claims hang on: a lease of their keeper, or one of their own.
const LEASES: [&str; 2] = ["", "?lease=claim"];

async fn keeper_with(server: &EtcdServer, options: &str) -> Keeper {
    Keeper::builder().ttl(TTL).label("Gerät").connect(server.url() + options).await.expect("connected")
}

/// What only one at a time may do: the peers do the same. The log has the tokens in the order of the sections.
fn section(dir: &Path, token: u64) {
    let inside = dir.join("inside");
    let overlap = std::fs::File::create_new(&inside).is_err();
    let count: u64 = std::fs::read_to_string(dir.join("count")).expect("made first").trim().parse().expect("a number");
    std::thread::sleep(Duration::from_micros(200));
    std::fs::write(dir.join("count"), (count + 1).to_string()).expect("the directory is ours");
    let mut log = std::fs::OpenOptions::new().append(true).create(true).open(dir.join("log")).expect("a log");
    let text = format!("{}{token} ours\n", if overlap { "overlap\n" } else { "" });
    log.write_all(text.as_bytes()).expect("written");
    let _ = std::fs::remove_file(&inside);
}

/// The critical section for a shell under `etcdctl lock`.
const SECTION: &str = r#"
cd "$1"
(set -C; : > inside) 2>/dev/null || echo overlap >> log
count=$(cat count)
echo $((count + 1)) > count
echo "$ETCD_LOCK_REV etcdctl" >> log
rm -f inside
"#;

fn fresh() -> TempDir {
    let dir = TempDir::new();
    dir.write("count", "0");
    dir
}

/// Checks the log of a mix: no two holders met inside, nothing was counted twice, and tokens rise over both sides.
fn judge(dir: &TempDir, ours: usize, theirs: usize) {
    let log = dir.read("log").expect("a log");
    let overlaps = log.lines().filter(|line| *line == "overlap").count();
    let number = |line: &str| line.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    let tokens: Vec<u64> = log.lines().filter(|line| *line != "overlap").filter_map(number).collect();
    let mine = log.lines().filter(|line| line.ends_with(" ours")).count();
    assert_eq!((mine, tokens.len()), (ours, ours + theirs), "sections");
    assert_eq!(overlaps, 0, "overlaps");
    assert_eq!(dir.read("count").as_deref(), Some((ours + theirs).to_string().as_str()), "what was counted together");
    let falls = tokens.windows(2).filter(|pair| pair[0] >= pair[1]).count();
    assert_eq!(falls, 0, "tokens that do not rise over ETCD_LOCK_REV and ours");
    let changes = log.lines().zip(log.lines().skip(1)).filter(|(a, b)| a.ends_with("ours") != b.ends_with("ours"));
    let changes = changes.count();
    println!("{} sections, {changes} changes of side: 0 overlaps, 0 tokens that fell", tokens.len());
    assert!(changes > 20, "they were hardly mixed: {changes} changes of side");
}

async fn our_storm(server: &EtcdServer, name: &'static str, dir: &TempDir) -> tokio::task::JoinSet<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..OURS {
        let (keeper, dir) = (keeper_with(server, LEASES[number % 2]).await, dir.path().to_owned());
        tasks.spawn(async move {
            for _ in 0..OUR_SECTIONS {
                let guard = keeper.lock(name).wait(SOON * 4).acquire().await.expect("granted");
                section(&dir, guard.token().get());
                guard.release().await.expect("released");
                tokio::time::sleep(Duration::from_millis(fastrand::u64(0..50))).await;
            }
        });
    }
    tasks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_sections_mixed_with_etcdctl_lock_never_overlap() {
    let (server, dir) = (EtcdServer::new(), fresh());
    let mut tasks = our_storm(&server, "mixed", &dir).await;
    let peers: Vec<Proc> = (0..THEIRS)
        .map(|_| {
            // One etcdctl after another; each takes the lock once.
            let ctl = "n=0; while [ $n -lt $1 ]; do etcdctl --endpoints $2 lock mixed -- sh -c \"$3\" sh $4 || exit 1; n=$((n+1)); done";
            let mut command = Command::new("sh");
            command.env("ETCDCTL_API", "3").args(["-c", ctl, "sh", &THEIR_SECTIONS.to_string()]);
            command.arg(format!("127.0.0.1:{}", server.port())).arg(SECTION).arg(dir.path());
            Proc::start(&mut command)
        })
        .collect();
    while let Some(done) = tasks.join_next().await {
        done.expect("ours");
    }
    tokio::task::spawn_blocking(move || {
        for peer in peers {
            let ended = peer.wait_for(SOON * 8);
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        }
    })
    .await
    .expect("theirs");
    judge(&dir, OURS * OUR_SECTIONS, THEIRS * THEIR_SECTIONS);
}

/// Starts `etcdctl lock NAME` or `etcdctl elect NAME …`, which says its key once it holds.
fn holding(server: &EtcdServer, args: &[&str]) -> Proc {
    Proc::start(server.etcdctl().args(args))
}

fn holds(peer: &Proc, name: &str) -> bool {
    peer.stdout().contains(&format!("{name}/"))
}

async fn waiting(keeper: &Keeper, name: &str, count: u32) {
    let end = tokio::time::Instant::now() + SOON;
    while keeper.inspect(name).await.expect("inspected").is_none_or(|record| record.waiting != count) {
        assert!(tokio::time::Instant::now() < end, "{count} wait for {name}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn both_ways(args: &'static [&'static str]) {
    let server = EtcdServer::new();
    for options in LEASES {
        both_ways_with(&server, &keeper_with(&server, options).await, args).await;
    }
}

async fn both_ways_with(server: &EtcdServer, keeper: &Keeper, args: &'static [&'static str]) {
    let name = args[1];
    for lock in [keeper.lock(name), keeper.lock(name).shared(), keeper.lock(name).permits(3)] {
        // Ours keeps theirs out, until it is released.
        let guard = lock.clone().wait(SOON).acquire().await.expect("granted");
        let peer = holding(server, args);
        waiting(keeper, name, 1).await;
        assert!(!holds(&peer, name), "ours is held");
        guard.release().await.expect("released");
        eventually(SOON, "theirs comes in", || holds(&peer, name));
        // Theirs keeps ours out, until it lets go; its holder is not known.
        assert!(lock.clone().try_acquire().await.expect("answered").is_none());
        let record = keeper.inspect(name).await.expect("inspected").expect("held");
        assert_eq!((record.holders.len(), record.holders[0].note.clone()), (1, None));
        let next = lock.clone().wait(SOON);
        let next = tokio::spawn(async move { next.acquire().await });
        waiting(keeper, name, 1).await;
        peer.signal(Signal::INT);
        let guard = next.await.expect("a task").expect("granted");
        assert!(Some(guard.token()) > record.holders[0].token);
        guard.release().await.expect("released");
        peer.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_lock_keeps_us_out_and_is_kept_out() {
    both_ways(&["lock", "turns"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_elect_keeps_us_out_and_is_kept_out() {
    both_ways(&["elect", "turns", "value"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_of_both_are_one_line_and_the_dead_are_skipped() {
    let server = EtcdServer::new();
    let keeper = keeper(&server).await;
    let guard = taken(&keeper, "line").await;
    let [first, dead] = [1, 2].map(|place| {
        let peer = holding(&server, &["lock", "line"]);
        (place, peer)
    });
    waiting(&keeper, "line", 2).await;
    let lock = self::keeper(&server).await;
    let ours = tokio::spawn(async move { taken(&lock, "line").await });
    waiting(&keeper, "line", 3).await;
    signal(dead.1.pid(), Signal::KILL);
    guard.release().await.expect("released");
    // Either of the two may have been first in line.
    eventually(SOON + THEIR_TTL, "theirs is next", || holds(&first.1, "line"));
    assert!(!ours.is_finished());
    first.1.signal(Signal::INT);
    let guard = tokio::time::timeout(SOON + THEIR_TTL, ours).await.expect("the dead are skipped").expect("granted");
    guard.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_with_a_slash_meets_etcdctl_when_names_are_native() {
    let server = EtcdServer::new();
    let native = Keeper::builder().ttl(TTL).connect(format!("{}?names=native", server.url())).await.expect("connected");
    let peer = holding(&server, &["lock", "orders/42"]);
    eventually(SOON, "theirs holds", || holds(&peer, "orders/42"));
    assert!(native.lock("orders/42").try_acquire().await.expect("answered").is_none());
    // The default keeps names apart, at the price of another key.
    let encoded = keeper(&server).await;
    taken(&encoded, "orders/42").await.release().await.expect("released");
    peer.signal(Signal::INT);
    taken(&native, "orders/42").await.release().await.expect("released");
}

/// Go's `concurrency` package, built by `scripts/peers --extended`.
fn go_peer(server: &EtcdServer, args: &[&str]) -> Command {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Path::new(&std::env::var_os("HOME").expect("HOME or XDG_CACHE_HOME is set")).join(".cache");
    let peer = cache.unwrap_or_else(home).join("lockkeeper/peers/concurrency/peer");
    assert!(peer.exists(), "{} is not there: run scripts/peers --extended", peer.display());
    let mut command = Command::new(peer);
    command.arg(format!("127.0.0.1:{}", server.port())).args(args);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go: scripts/test-extended"]
async fn a_thousand_sections_mixed_with_gos_mutex_never_overlap() {
    let (server, dir) = (EtcdServer::new(), fresh());
    let mut tasks = our_storm(&server, "mixed", &dir).await;
    let place = dir.path().display().to_string();
    let peers = [(); THEIRS].map(|()| Proc::start(&mut go_peer(&server, &["mixed", "240", &place])));
    while let Some(done) = tasks.join_next().await {
        done.expect("ours");
    }
    tokio::task::spawn_blocking(move || {
        for peer in peers {
            let ended = peer.wait_for(SOON * 8);
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        }
    })
    .await
    .expect("theirs");
    judge(&dir, OURS * OUR_SECTIONS, THEIRS * 240);
}
