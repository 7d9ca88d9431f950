//! The Consul store beside the command `consul lock`, which is Go's `api.Lock`. `scripts/test-extended` builds it and runs this.
#![allow(clippy::print_stdout, reason = "measured times are for people")]

use crate::keepers::taken;
use lockkeeper::{Keeper, LossReason};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::{ConsulServer, Proc, TempDir, eventually, found};

const TTL: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(60);

/// Our keepers and their loops in the mix, and how many critical sections each of them has.
const OURS: usize = 3;
const OUR_SECTIONS: usize = 110;
const THEIRS: usize = 3;
const THEIR_SECTIONS: usize = 60;

async fn keeper(server: &ConsulServer) -> Keeper {
    Keeper::builder().ttl(TTL).connect(server.url()).await.expect("connected")
}

/// `consul lock NAME` around a shell script.
fn theirs(server: &ConsulServer, name: &str, script: &str) -> Command {
    let mut command = server.command();
    command.args(["lock", "-shell=false", "-child-exit-code", name, "sh", "-c", script]);
    command
}

/// One of our sections: alone, it makes a directory, counts, and removes it.
fn inside(dir: &Path) -> bool {
    let alone = std::fs::create_dir(dir.join("inside")).is_ok();
    let count: usize = std::fs::read_to_string(dir.join("count")).expect("written").trim().parse().expect("a number");
    std::thread::sleep(Duration::from_millis(1));
    std::fs::write(dir.join("count"), (count + 1).to_string()).expect("written");
    alone && std::fs::remove_dir(dir.join("inside")).is_ok()
}

/// The critical section in their shell.
const INSIDE: &str = "mkdir inside || echo overlap >> overlaps; n=$(cat count); echo $((n + 1)) > count; \
    rmdir inside || echo overlap >> overlaps";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Consul: scripts/test-extended builds it"]
async fn five_hundred_mixed_sections_never_overlap() {
    let (server, dir) = (ConsulServer::new(), TempDir::new());
    dir.write("count", "0");
    dir.write("overlaps", "");
    let began = Instant::now();
    let their_loops: Vec<Proc> = (0..THEIRS)
        .map(|_| {
            let mut command = Command::new("sh");
            let consul = server.command();
            let script = format!(
                "i=0; while [ $i -lt {THEIR_SECTIONS} ]; do {:?} lock -shell=false -child-exit-code mix sh -c '{INSIDE}' || exit 1; i=$((i + 1)); done",
                consul.get_program()
            );
            command.args(["-c", &script]).current_dir(dir.path());
            command.envs(consul.get_envs().filter_map(|(key, value)| Some((key, value?))));
            Proc::start(&mut command)
        })
        .collect();
    let mut ours = tokio::task::JoinSet::new();
    for _ in 0..OURS {
        let (keeper, dir) = (keeper(&server).await, dir.path().to_owned());
        ours.spawn(async move {
            let (mut tokens, mut overlaps) = (Vec::new(), 0);
            for _ in 0..OUR_SECTIONS {
                let guard = keeper.lock("mix").acquire().await.expect("granted");
                overlaps += usize::from(!inside(&dir));
                tokens.push(guard.token());
                guard.release().await.expect("released");
                // Room for the others, who are slower to come back.
                tokio::time::sleep(Duration::from_millis(fastrand::u64(50..250))).await;
            }
            (tokens, overlaps)
        });
    }
    let mut overlaps = 0;
    for (tokens, seen) in ours.join_all().await {
        assert!(tokens.is_sorted_by(|a, b| a < b), "tokens rise");
        overlaps += seen;
    }
    for their in their_loops {
        let ended = their.wait_for(SOON * 10);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    let total = OURS * OUR_SECTIONS + THEIRS * THEIR_SECTIONS;
    let count = std::fs::read_to_string(dir.join("count")).expect("written");
    assert_eq!(std::fs::read_to_string(dir.join("overlaps")).expect("written"), "");
    assert_eq!((count.trim(), overlaps), (total.to_string().as_str(), 0));
    println!("{total} mixed sections, 0 overlaps, in {:.1} s", began.elapsed().as_secs_f64());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Consul: scripts/test-extended builds it"]
async fn each_keeps_the_other_out_and_comes_in_when_it_leaves() {
    let (server, dir) = (ConsulServer::new(), TempDir::new());
    let keeper = keeper(&server).await;
    // Ours keeps theirs out, and theirs comes in after.
    let guard = taken(&keeper, "service/web").await;
    let mut once = server.command();
    once.args(["lock", "-timeout=1s", "-shell=false", "service/web", "true"]);
    assert_eq!(Proc::start(&mut once).wait().code, Some(1), "held");
    let script = "touch in; while [ ! -e leave ]; do sleep 0.02; done";
    let their = Proc::start(theirs(&server, "service/web", script).current_dir(dir.path()));
    std::thread::sleep(Duration::from_millis(500));
    assert!(!dir.join("in").exists());
    guard.release().await.expect("released");
    eventually(SOON, "they come in", || dir.join("in").exists());
    // Theirs keeps ours out, is seen, and ours comes in after.
    assert!(keeper.lock("service/web").try_acquire().await.expect("answered").is_none());
    let record = keeper.inspect("service/web").await.expect("inspected").expect("held");
    assert_eq!((record.holders.len(), &record.holders[0].note), (1, &None));
    assert!(record.remark.as_ref().is_some_and(|remark| remark.contains("Consul lock for")), "{record:?}");
    dir.write("leave", "");
    taken(&keeper, "service/web").await.release().await.expect("released");
    assert_eq!(their.wait().code, Some(0));
    // They find what we leave behind, and we what they leave behind.
    let after = Proc::start(theirs(&server, "service/web", "true").current_dir(dir.path())).wait();
    assert_eq!(after.code, Some(0), "{}", after.stderr);
    taken(&keeper, "service/web").await.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Consul: scripts/test-extended builds it"]
async fn a_holder_of_either_kind_can_be_broken() {
    let (server, dir) = (ConsulServer::new(), TempDir::new());
    let keeper = keeper(&server).await;
    let their = Proc::start(theirs(&server, "x", "touch in; sleep 60").current_dir(dir.path()));
    eventually(SOON, "they come in", || dir.join("in").exists());
    let record = keeper.inspect("x").await.expect("inspected").expect("held");
    let token = record.holders[0].token.expect("a token");
    keeper.break_lock("x", token).await.expect("answered").expect("broken");
    let guard = taken(&keeper, "x").await;
    assert!(guard.token() > token);
    // Their command notices, and ends its child.
    let ended = their.wait();
    assert!(ended.stderr.contains("terminated"), "{ended:?}");
    // Their tool deletes our key: the guard is told with its next renewal.
    assert_eq!(server.cli(&["kv", "delete", "x/.lock"]).code, Some(0));
    assert_eq!(tokio::time::timeout(SOON, guard.lost()).await.expect("told"), LossReason::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Consul: scripts/test-extended builds it"]
async fn a_semaphore_on_the_same_prefix_is_refused_on_both_sides() {
    let (server, dir) = (ConsulServer::new(), TempDir::new());
    let keeper = keeper(&server).await;
    let mut semaphore = server.command();
    semaphore.args(["lock", "-n=2", "-shell=false", "x", "sh", "-c", "touch in; sleep 60"]).current_dir(dir.path());
    let _theirs = Proc::start(&mut semaphore);
    eventually(SOON, "they come in", || dir.join("in").exists());
    let error = found(SOON, "refused", || {
        let lock = keeper.lock("x");
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(lock.try_acquire())).err()
    });
    assert_eq!(error.kind(), lockkeeper::ErrorKind::Foreign, "{error}");
}
