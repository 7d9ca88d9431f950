//! Guards in processes that end or fork: this program starts itself again in a role.
#![cfg(feature = "sqlite")]

use lockkeeper::blocking::{Guard, Keeper};
use lockkeeper::{LossReason, Phase};
use std::future::Future;
use std::process::Command;
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use testkit::{Proc, SOON, Signal, TempDir, eventually, found};

const ROLE: &str = "LOCKKEEPER_TEST_ROLE";
const PLACE: &str = "LOCKKEEPER_TEST_PLACE";

fn connect(dir: &std::path::Path) -> Keeper {
    Keeper::connect(format!("sqlite:{}", dir.join("locks.db").display())).expect("a new file can be opened")
}

fn role(role: &str, dir: &TempDir) -> Proc {
    let this = std::env::current_exe().expect("this program has a file");
    let mut command = Command::new(this);
    Proc::start(command.args(["--exact", "act", "--nocapture"]).env(ROLE, role).env(PLACE, dir.path()))
}

fn nanos() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    since.as_nanos().try_into().expect("a clock before 2262")
}

/// Not a test: the other process's `main`, when there is a role to play.
#[test]
fn act() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let dir = std::path::PathBuf::from(std::env::var_os(PLACE).expect("a role comes with its place"));
    let write = |name: &str, text: String| {
        let unfinished = dir.join(format!("{name}.tmp"));
        std::fs::write(&unfinished, text).expect("the directory is ours");
        std::fs::rename(&unfinished, dir.join(name)).expect("the directory is ours");
    };
    match role.as_str() {
        "drops its guard" => {
            let keeper = connect(&dir);
            let _guard = hold(&keeper);
            write("held", "yes".into());
            until(&dir, "go");
            write("end", nanos().to_string());
        }
        "waits" => {
            let keeper = connect(&dir);
            write("waiting", "yes".into());
            let _guard = hold(&keeper);
            write("start", nanos().to_string());
        }
        "forks" => {
            let keeper = connect(&dir);
            let guard = hold(&keeper);
            match fork::fork().unwrap() {
                fork::Fork::Child => {
                    let lost = guard.lost();
                    let lease = guard.lease().clone();
                    let mut ends = std::pin::pin!(lease.ends_within(Duration::ZERO));
                    let ended = ends.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
                    let states =
                        format!("{lost:?} {ended} {:?} {:?}", guard.phase(), keeper.lock("other").try_acquire().err());
                    drop(guard);
                    drop(keeper);
                    write("child", states);
                    // Not through the harness, whose other threads do not exist here.
                    testkit::signal(std::process::id().cast_signed(), Signal::KILL);
                }
                fork::Fork::Parent(_) => {
                    until(&dir, "go");
                    let state = if guard.phase() == Phase::Held { "held" } else { "not held" };
                    guard.release().unwrap();
                    write("parent", state.into());
                }
            }
        }
        "forks many" => {
            let keeper = connect(&dir);
            let named = Keeper::connect("memory:forked").unwrap();
            for n in 0..CHILDREN {
                // Right behind an acquire, while the keeper's threads are still at work.
                let guards = (hold(&keeper), named.lock("x").acquire().unwrap());
                if let fork::Fork::Child = fork::fork().unwrap() {
                    let sqlite = Keeper::connect(format!("sqlite:{}", dir.join("locks.db").display()));
                    let memory = Keeper::connect("memory:forked").and_then(|keeper| keeper.lock("x").try_acquire());
                    let memory = memory.map(|guard| guard.is_some());
                    write(&format!("child {n}"), format!("{:?}\n{memory:?}", sqlite.map(|_| ())));
                    testkit::signal(std::process::id().cast_signed(), Signal::KILL);
                }
                drop(guards);
            }
            until(&dir, "go");
        }
        "forks first" => match fork::fork().unwrap() {
            fork::Fork::Child => {
                let guard = connect(&dir).lock("x").try_acquire();
                write("child", format!("{:?}", guard.map(|guard| guard.is_some())));
                testkit::signal(std::process::id().cast_signed(), Signal::KILL);
            }
            fork::Fork::Parent(_) => {
                until(&dir, "child");
                drop(hold(&connect(&dir)));
            }
        },
        other => panic!("no such role: {other}"),
    }
}

/// How many children are forked, each at a moment of its own.
const CHILDREN: usize = 12;

fn hold(keeper: &Keeper) -> Guard {
    keeper.lock("x").ttl(Duration::from_secs(20)).acquire().expect("the lock is granted in time")
}

fn until(dir: &std::path::Path, file: &str) {
    eventually(SOON, file, || dir.join(file).exists());
}

fn gap() -> Duration {
    let dir = TempDir::new();
    let first = role("drops its guard", &dir);
    until(dir.path(), "held");
    let second = role("waits", &dir);
    until(dir.path(), "waiting");
    // In line by now, or it will find the lock free: either way what is measured is the release.
    std::thread::sleep(Duration::from_millis(100));
    dir.write("go", "");
    assert_eq!(first.wait().code, Some(0));
    let number = |name: &str| found(SOON, name, || dir.read(name)).parse::<i64>().expect("nanoseconds");
    let (start, end) = (number("start"), number("end"));
    assert_eq!(second.wait().code, Some(0));
    Duration::from_nanos((start - end).max(0).unsigned_abs())
}

#[test]
fn a_guard_dropped_at_the_end_of_main_lets_the_next_process_start() {
    let mut gaps: Vec<_> = (0..5).map(|_| gap()).collect();
    gaps.sort_unstable();
    println!("end of main to the next process's grant: {gaps:?}");
    assert!(gaps[2] < Duration::from_millis(250), "{gaps:?}");
}

#[test]
fn a_forked_child_has_no_lock_and_does_not_release_its_parents() {
    let dir = TempDir::new();
    let process = role("forks", &dir);
    let child = found(SOON, "the child's words", || dir.read("child"));
    assert!(child.starts_with(&format!("Forked true {:?}", Phase::Lost(LossReason::Forked))), "{child}");
    assert!(child.contains("forked after the keeper was made"), "{child}");
    let keeper = connect(dir.path());
    assert!(keeper.lock("x").try_acquire().unwrap().is_none(), "the parent still holds it");
    dir.write("go", "");
    assert_eq!(process.wait().code, Some(0));
    assert_eq!(dir.read("parent").as_deref(), Some("held"));
    assert!(keeper.lock("x").try_acquire().unwrap().is_some());
}

#[test]
fn a_child_of_a_process_that_uses_sqlite_is_refused_it_at_once() {
    let dir = TempDir::new();
    let process = role("forks many", &dir);
    for n in 0..CHILDREN {
        let said = found(SOON, "the child's words", || dir.read(&format!("child {n}")));
        let (sqlite, memory) = said.split_once('\n').unwrap();
        assert!(sqlite.starts_with("Err(Error(Closed: sqlite: open: "), "{said}");
        assert!(sqlite.contains("forked") && sqlite.contains("exec") && sqlite.contains("after the fork"), "{said}");
        assert_eq!(memory, "Ok(true)", "a child's memory is its own");
    }
    dir.write("go", "");
    assert_eq!(process.wait().code, Some(0));
}

#[test]
fn a_process_that_forks_before_it_opens_sqlite_may_use_it_on_both_sides() {
    let dir = TempDir::new();
    assert_eq!(role("forks first", &dir).wait().code, Some(0));
    assert_eq!(dir.read("child").as_deref(), Some("Ok(true)"));
}
