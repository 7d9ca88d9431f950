//! The MySQL store beside plain users of `GET_LOCK` and beside ShedLock's statements, over PyMySQL (`scripts/peers`).
#![allow(clippy::print_stdout, reason = "what came of a mix is for people")]

#[path = "../peers/peer.rs"]
mod peer;

use crate::keepers::taken;
use lockkeeper::{Keeper, LossReason};
use peer::{Peer, Section, installed, section};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testkit::{MysqlServer, TempDir};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(10);

/// Our keepers and their processes in the mix, and how many critical sections each of them has.
const OURS: usize = 3;
const OUR_SECTIONS: usize = 120;
const THEIRS: usize = 2;
const THEIR_SECTIONS: usize = 180;
const TOTAL: usize = OURS * OUR_SECTIONS + THEIRS * THEIR_SECTIONS;

/// Which client, and the options of ours that go with it.
#[derive(Clone, Copy, Debug)]
struct Kind {
    peer: &'static str,
    options: &'static str,
    /// Of the server; ShedLock's columns are converted by it.
    zone: &'static str,
}

const GET_LOCK: Kind = Kind { peer: "get_lock", options: "mode=get_lock", zone: "+00:00" };
const SHEDLOCK: Kind = Kind { peer: "shedlock", options: "layout=shedlock", zone: "+00:00" };
const SHEDLOCK_ELSEWHERE: Kind = Kind { peer: "shedlock", options: "layout=shedlock", zone: "-07:00" };

fn server(kind: Kind) -> MysqlServer {
    let server = MysqlServer::with(&[&format!("--default-time-zone={}", kind.zone)]);
    if kind.zone != "+00:00" {
        // The application's own, made before we came, which compares names as the server does by default.
        server.sql(
            "CREATE TABLE shedlock (name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL, locked_at TIMESTAMP(3) \
             NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))",
        );
    }
    server
}

fn start(kind: Kind, server: &MysqlServer) -> Peer {
    let python = installed("python-mysql", "requirements-mysql.txt").join("bin/python");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/mysql.py");
    let mut command = Command::new(python);
    Peer::start(command.arg(script).args([kind.peer, &server.port().to_string(), ""]))
}

async fn keeper(kind: Kind, server: &MysqlServer) -> Keeper {
    let url = format!("{}?{}", server.url(), kind.options);
    Keeper::builder().ttl(TTL).connect(url).await.expect("connected")
}

macro_rules! beside {
    ($($name:ident: $kind:ident;)*) => {$(
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn hundreds_of_mixed_sections_never_overlap() {
                mixed($kind).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn each_keeps_the_other_out_and_comes_in_when_it_leaves() {
                take_turns($kind).await;
            }
        }
    )*};
}

beside! {
    get_lock: GET_LOCK;
    shedlock: SHEDLOCK;
    shedlock_in_another_zone: SHEDLOCK_ELSEWHERE;
}

async fn mixed(kind: Kind) {
    let server = server(kind);
    let first = keeper(kind, &server).await;
    let dir = TempDir::new();
    dir.write("count", "0");
    let order = format!("storm mix {} {THEIR_SECTIONS} {}", TTL.as_millis(), dir.path().display());
    let mut peers: Vec<Peer> = (0..THEIRS).map(|_| start(kind, &server)).collect();
    for peer in &mut peers {
        assert!(peer.ask("wait ready 1000") && peer.ask("free"), "it runs");
        peer.order(&order);
    }
    let mut tasks = JoinSet::new();
    for _ in 0..OURS {
        let (keeper, place) = (keeper(kind, &server).await, dir.path().to_owned());
        tasks.spawn(async move {
            let mut sections = Vec::new();
            for _ in 0..OUR_SECTIONS {
                let guard = taken(&keeper, "mix").await;
                sections.push(section(&place, guard.token().get()));
                guard.release().await.expect("released");
                tokio::time::sleep(Duration::from_millis(fastrand::u64(0..10))).await;
            }
            sections
        });
    }
    let mut sections: Vec<Section> = tasks.join_all().await.into_iter().flatten().collect();
    let mut seen: u64 = sections.iter().map(|section| section.overlaps).sum();
    for peer in &peers {
        let numbers: Vec<i64> = peer.answer().iter().map(|word| word.parse().expect("a number")).collect();
        seen += numbers[0].unsigned_abs();
        let theirs = numbers[1..].chunks_exact(2);
        sections.extend(theirs.map(|pair| Section { begin: pair[0], end: pair[1], ..Section::default() }));
    }
    sections.sort_by_key(|section| section.begin);
    let crossed = sections.windows(2).filter(|pair| pair[1].begin < pair[0].end).count();
    let turns = sections.windows(2).filter(|pair| (pair[0].token == 0) != (pair[1].token == 0)).count();
    let counted: usize = dir.read("count").and_then(|text| text.parse().ok()).expect("a number");
    println!("{kind:?}: {TOTAL} sections, {turns} turns between sides, {seen} + {crossed} overlaps");
    assert_eq!(sections.len(), TOTAL);
    assert_eq!((seen, crossed, counted), (0, 0, TOTAL), "no overlap, and no section's write was lost");
    // How often depends on the machine; a few show that both sides were there at the same time.
    assert!(turns >= 4, "{turns}");
    let tokens: Vec<u64> = sections.iter().map(|section| section.token).filter(|token| *token > 0).collect();
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens rise in the order of the sections");
    drop(first);
}

async fn take_turns(kind: Kind) {
    let server = server(kind);
    let keeper = keeper(kind, &server).await;
    let mut peer = start(kind, &server);
    for name in ["job", "reports/daily-42"] {
        for _ in 0..3 {
            assert!(peer.ask(&format!("take {name} 20000")), "free");
            let lock = keeper.lock(name);
            // Not a short wait: on a busy machine that ends without an answer, which is an outage and not a holder.
            let held = lock.try_acquire_or_held().await.expect("answered").map(drop).expect_err("theirs");
            assert!(held.holder.is_none() && held.token.is_none(), "{held:?}");
            if kind.peer == "shedlock" {
                let left = held.remaining.expect("their lease is in the row");
                assert!(left <= Duration::from_secs(20) && left > Duration::from_secs(5), "{left:?}");
            }
            let record = keeper.inspect(name).await.expect("answered").expect("held");
            assert!(record.holders[0].note.is_none() && record.remark.is_some(), "{record:?}");
            let waiting = tokio::spawn({
                let keeper = keeper.clone();
                async move { taken(&keeper, name).await }
            });
            assert!(peer.ask("extend 20000"), "still theirs");
            assert!(peer.ask("free"), "still theirs");
            let guard = waiting.await.expect("granted");
            assert!(!peer.ask(&format!("take {name} 20000")), "ours");
            assert!(!peer.ask("free"), "not theirs");
            guard.check().expect("still ours");
            guard.release().await.expect("released");
        }
    }
    if kind.peer == "shedlock" {
        overstay(kind, &server, &mut peer).await;
    }
}

/// Leases that no client ends, on both sides.
async fn overstay(kind: Kind, server: &MysqlServer, peer: &mut Peer) {
    let hasty = format!("{}?{}", server.url(), kind.options);
    let hasty = Keeper::builder().ttl(Duration::from_secs(2)).connect(hasty).await.expect("connected");
    assert!(peer.ask("take late 500"), "free");
    let guard = taken(&hasty, "late").await;
    // Theirs is over: what they do now is in vain.
    assert!(!peer.ask("extend 20000") && !peer.ask("free"), "ours");
    guard.check().expect("still ours");
    // An operator frees the row under us and they take it: we are told, and prolong nothing.
    server.sql("UPDATE shedlock SET lock_until = TIMESTAMP'2020-01-01 00:00:00' WHERE name = 'late'");
    assert!(peer.ask("take late 20000"), "free");
    assert_eq!(guard.lost().await, LossReason::Gone);
    drop(guard);
    assert!(hasty.lock("late").try_acquire().await.expect("answered").is_none(), "theirs");
    assert!(peer.ask("free"), "still theirs");
    drop(taken(&hasty, "late").await);
}
