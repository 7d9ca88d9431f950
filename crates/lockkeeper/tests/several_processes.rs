//! Several names at once and any free one, in processes of their own: this program starts itself again as a worker.
//!
//! A worker that is inside a name makes a file of that name, which no other worker may have made.
#![cfg(any(feature = "sqlite", feature = "redis"))]
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "how much was done is for people")]

use lockkeeper::Keeper;
use lockkeeper::clock::system_now;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testkit::{Proc, TempDir};

const ROLE: &str = "LOCKKEEPER_TEST_ROLE";
const URL: &str = "LOCKKEEPER_TEST_URL";
const PLACE: &str = "LOCKKEEPER_TEST_PLACE";
const TIME: &str = "LOCKKEEPER_TEST_MILLISECONDS";
const TTL: Duration = Duration::from_secs(10);
/// Far beyond any hand-over; reached only when callers wait for each other.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the workers work in the normal run, and when asked for by `--ignored`.
const SHORT: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(60);

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("name-{n}")).collect()
}

/// Not a test: the `main` of a worker, when there is a role for it.
#[test]
fn act() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [url, place, time] = [URL, PLACE, TIME].map(|name| std::env::var(name).expect("a role comes with its place"));
    let time = Duration::from_millis(time.parse().expect("milliseconds"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let rounds = runtime.block_on(async {
        let keeper = Keeper::builder().ttl(TTL).wait(PATIENCE).connect(&url).await.expect("connected");
        let mut rounds = 0;
        let end = system_now().after(time);
        while system_now() < end {
            match role.as_str() {
                "all" => take_all(&keeper, Path::new(&place)).await,
                _ => take_any(&keeper, Path::new(&place)).await,
            }
            rounds += 1;
        }
        // A drop waits only briefly for the releases of names that were not needed.
        keeper.close(PATIENCE).await.expect("closed");
        rounds
    });
    println!("rounds={rounds}");
}

async fn take_all(keeper: &Keeper, place: &Path) {
    let wanted = fastrand::choose_multiple(names(20), 5);
    let all = keeper.lock_all(&wanted).acquire().await.expect("all of them");
    let inside: Vec<Inside> = wanted.iter().map(|name| Inside::new(place, name)).collect();
    assert!(all.check().is_ok());
    drop(inside);
    all.release().await.expect("released");
}

async fn take_any(keeper: &Keeper, place: &Path) {
    let one = keeper.lock_any(names(10)).acquire().await.expect("one of them");
    let inside = Inside::new(place, &one.name().to_string());
    assert!(one.check().is_ok());
    drop(inside);
    one.release().await.expect("released");
}

/// The file of a name that a worker is inside of, and a file that says that the name was used.
struct Inside(PathBuf);

impl Inside {
    fn new(place: &Path, name: &str) -> Self {
        let path = place.join(format!("inside-{name}"));
        File::create_new(&path).unwrap_or_else(|e| panic!("two inside {name}: {e}"));
        File::create(place.join(format!("used-{name}"))).unwrap();
        Self(path)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

fn trial(role: &str, workers: usize, count: usize, url: &str, time: Duration) {
    let place = TempDir::new();
    let start = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "act", "--nocapture"]).env(ROLE, role).env(URL, url).env(PLACE, place.path());
        Proc::start(command.env(TIME, time.as_millis().to_string()))
    };
    let running: Vec<Proc> = (0..workers).map(|_| start()).collect();
    let mut rounds = 0;
    for worker in running {
        let ended = worker.wait_for(time + 2 * PATIENCE);
        assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
        let said = ended.stdout.lines().find_map(|line| line.split_once("rounds=")).expect("a count");
        rounds += said.1.parse::<u32>().expect("a count");
    }
    let unused: Vec<String> =
        names(count).into_iter().filter(|name| !place.path().join(format!("used-{name}")).exists()).collect();
    assert!(unused.is_empty(), "never served: {unused:?}");
    // Nothing is left behind: all of them are free at once.
    let keeper = lockkeeper::blocking::Keeper::builder().ttl(TTL).connect(url).unwrap();
    let all = keeper.lock_all(names(count)).wait(TTL / 2).acquire().expect("all are free");
    all.release().unwrap();
    println!("{role}: {workers} processes, {count} names, {rounds} rounds in {time:?}, never two inside a name");
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use super::*;

    fn url(dir: &TempDir) -> String {
        format!("sqlite:{}", dir.path().join("locks.db").display())
    }

    #[test]
    fn overlapping_sets_of_eight_processes() {
        trial("all", 8, 20, &url(&TempDir::new()), SHORT);
    }

    #[test]
    fn any_free_one_of_ten_processes() {
        trial("any", 10, 10, &url(&TempDir::new()), SHORT);
    }

    #[test]
    #[ignore = "two minutes: scripts/test-extended runs it"]
    fn for_a_minute_each() {
        trial("all", 8, 20, &url(&TempDir::new()), LONG);
        trial("any", 30, 10, &url(&TempDir::new()), LONG);
    }
}

#[cfg(feature = "redis")]
mod redis {
    use super::*;
    use testkit::RedisServer;

    #[test]
    fn overlapping_sets_of_eight_processes() {
        trial("all", 8, 20, &RedisServer::new().url(), SHORT);
    }

    #[test]
    fn any_free_one_of_ten_processes() {
        trial("any", 10, 10, &RedisServer::new().url(), SHORT);
    }

    #[test]
    #[ignore = "two minutes: scripts/test-extended runs it"]
    fn for_a_minute_each() {
        trial("all", 8, 20, &RedisServer::new().url(), LONG);
        trial("any", 30, 10, &RedisServer::new().url(), LONG);
    }
}
