//! The ZooKeeper store beside the lock clients that people use already, each in its real version (`scripts/peers`).
#![allow(clippy::print_stdout, reason = "measured times are for people")]

use crate::keepers::taken;
use crate::peers::{Peer, Section, installed, section};
use lockkeeper::Keeper;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testkit::{TempDir, ZooKeeperServer};
use tokio::task::JoinSet;

/// Our keepers and their processes in the mix, and how many critical sections each of them has.
const OURS: usize = 4;
const OUR_SECTIONS: usize = 100;
const THEIRS: usize = 2;
const THEIR_SECTIONS: usize = 150;
const TOTAL: usize = OURS * OUR_SECTIONS + THEIRS * THEIR_SECTIONS;

/// The tests start processes that need a core each: one at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// kazoo or Curator in a process of its own.
fn peer(kind: &str, server: &ZooKeeperServer) -> Peer {
    if let Some(kind) = kind.strip_prefix("curator's ") {
        let place = installed("curator", &["pom.xml", "src/main/java/Peer.java"]).join("target");
        let mut command = Command::new("java");
        command.args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp"]);
        command.arg(format!("{0}/classes:{0}/lib/*", place.display())).args(["Peer", kind, &server.port().to_string()]);
        return Peer::run(command);
    }
    let mut command = Command::new(installed("kazoo", &["requirements.txt"]).join("bin/python"));
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/kazoo/peer.py"));
    command.args([kind, &server.port().to_string()]);
    Peer::run(command)
}

async fn keeper(server: &ZooKeeperServer, layout: &str) -> Keeper {
    let url = format!("{}/shared?follower_lag=1s&session_timeout=20s&layout={layout}", server.url());
    Keeper::builder().ttl(Duration::from_secs(10)).label("Gerät").connect(url).await.expect("connected")
}

/// Each side, while it holds, keeps the other out, and comes in when the other leaves.
async fn exclude(kind: &str, layout: &str) {
    let _alone = ALONE.lock().await;
    let server = ZooKeeperServer::new();
    let (keeper, mut peer) = (keeper(&server, layout).await, peer(kind, &server));
    let lock = keeper.lock("job");
    for round in 0..10 {
        assert!(peer.ask("take /shared/job 0").0, "free");
        assert!(lock.try_acquire().await.expect("answered").is_none(), "theirs");
        let record = keeper.inspect("job").await.expect("answered").expect("held");
        assert!(record.holders.len() == 1 && record.holders[0].note.is_none(), "{record:?}");
        let waiting = tokio::spawn({
            let keeper = keeper.clone();
            async move { taken(&keeper, "job").await }
        });
        while keeper.inspect("job").await.expect("answered").is_none_or(|record| record.waiting == 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(peer.ask("free").0, "still theirs");
        let guard = waiting.await.expect("granted");
        assert!(!peer.ask("take /shared/job 0").0, "ours, round {round}");
        peer.order("wait /shared/job 0");
        while keeper.inspect("job").await.expect("answered").is_none_or(|record| record.waiting == 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        guard.check().expect("still ours");
        guard.release().await.expect("released");
        assert!(peer.yes().0, "free");
        assert!(peer.ask("free").0, "still theirs");
    }
}

/// Our keepers and their processes at the same work.
async fn mix(kind: &str, layout: &str) -> (Vec<Section>, u64, usize) {
    let server = ZooKeeperServer::new();
    let dir = TempDir::new();
    dir.write("count", "0");
    let mut peers: Vec<Peer> = (0..THEIRS).map(|_| peer(kind, &server)).collect();
    for peer in &mut peers {
        assert!(peer.ask("wait /shared/ready 0").0 && peer.ask("free").0, "it runs");
        peer.order(&format!("storm /shared/mix 0 {THEIR_SECTIONS} {}", dir.path().display()));
    }
    let mut tasks = JoinSet::new();
    for _ in 0..OURS {
        let (keeper, place) = (keeper(&server, layout).await, dir.path().to_owned());
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
    let mut seen = sections.iter().map(|section| section.overlaps).sum();
    for peer in &peers {
        let numbers: Vec<i64> = peer.answer().iter().map(|word| word.parse().expect("a number")).collect();
        seen += numbers[0].unsigned_abs();
        let theirs = numbers[1..].chunks_exact(2);
        sections.extend(theirs.map(|s| Section { begin: s[0], end: s[1], ..Section::default() }));
    }
    sections.sort_by_key(|section| section.begin);
    let counted = dir.read("count").and_then(|text| text.parse().ok()).expect("a number");
    (sections, seen, counted)
}

async fn mixed(kind: &str, layout: &str) {
    let _alone = ALONE.lock().await;
    let (sections, seen, counted) = mix(kind, layout).await;
    let crossed = sections.windows(2).filter(|pair| pair[1].begin < pair[0].end).count();
    let turns = sections.windows(2).filter(|pair| pair[0].ours != pair[1].ours).count();
    println!("{kind}, layout={layout}: {TOTAL} sections, {turns} turns between sides, {seen} + {crossed} overlaps");
    assert_eq!((sections.len(), seen, crossed, counted), (TOTAL, 0, 0, TOTAL), "no overlap, and no write was lost");
    // How often depends on the machine; a few show that both sides were there at the same time.
    assert!(turns >= 4, "{turns}");
    let tokens: Vec<u64> = sections.iter().map(|section| section.token).filter(|token| *token > 0).collect();
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens rise in the order of the sections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kazoo_and_we_keep_each_other_out_in_its_layout() {
    exclude("kazoo", "kazoo").await;
    exclude("kazoo's write", "kazoo").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kazoo_that_looks_for_curator_and_we_keep_each_other_out() {
    exclude("kazoo for curator", "curator").await;
    exclude("kazoo for curator", "bare").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seven_hundred_sections_mixed_with_kazoo_never_overlap() {
    mixed("kazoo", "kazoo").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seven_hundred_sections_mixed_with_kazoo_that_looks_for_curator_never_overlap() {
    mixed("kazoo for curator", "curator").await;
}

/// kazoo as it comes does not look for Curator's nodes: sections under it and the default layout must be seen to overlap,
/// or the tests above would show nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kazoo_as_it_comes_does_not_see_the_default_layout() {
    let _alone = ALONE.lock().await;
    let (sections, seen, counted) = mix("kazoo", "curator").await;
    let crossed = sections.windows(2).filter(|pair| pair[1].begin < pair[0].end).count();
    println!("kazoo as it comes, layout=curator: {seen} + {crossed} overlaps, {} lost writes", TOTAL - counted);
    assert!(seen > 0 && crossed > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_kazoo_and_ours_share_and_keep_writers_out() {
    readers("kazoo's", "kazoo").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Maven: scripts/test-extended"]
async fn readers_of_curator_and_ours_share_and_keep_writers_out() {
    readers("curator's", "curator-rw").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Maven: scripts/test-extended"]
async fn curator_and_we_keep_each_other_out() {
    exclude("curator's mutex", "curator").await;
    exclude("curator's mutex", "bare").await;
    exclude("curator's write", "curator-rw").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Maven: scripts/test-extended"]
async fn seven_hundred_sections_mixed_with_curator_never_overlap() {
    mixed("curator's mutex", "curator").await;
    mixed("curator's write", "curator-rw").await;
}

async fn readers(whose: &str, layout: &str) {
    let _alone = ALONE.lock().await;
    let server = ZooKeeperServer::new();
    let (keeper, mut reader, mut writer) = (
        keeper(&server, layout).await,
        peer(&format!("{whose} read"), &server),
        peer(&format!("{whose} write"), &server),
    );
    assert!(reader.ask("take /shared/rw 0").0, "free");
    let ours = keeper.lock("rw").shared().try_acquire().await.expect("answered").expect("readers share");
    assert!(keeper.lock("rw").try_acquire().await.expect("answered").is_none(), "theirs and ours");
    assert!(!writer.ask("take /shared/rw 0").0, "theirs and ours");
    assert!(reader.ask("free").0, "still theirs");
    assert!(!writer.ask("take /shared/rw 0").0, "ours");
    ours.release().await.expect("released");
    assert!(writer.ask("take /shared/rw 0").0, "free");
    assert!(keeper.lock("rw").shared().try_acquire().await.expect("answered").is_none(), "theirs");
    assert!(writer.ask("free").0, "still theirs");
}
