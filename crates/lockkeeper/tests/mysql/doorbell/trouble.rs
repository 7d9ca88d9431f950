//! What ends a doorbell before its time, or keeps it away: waiters are let in all the same, and nothing is left behind.

use super::{Place, SHARED, TTL, handed, has_owner, is_free, owner, taken, takes};
use lockkeeper::Keeper;
use std::process::Command;
use testkit::{MysqlServer, Proc, SOON, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doorbell_whose_connection_is_killed_is_replaced() {
    let place = Place::new("killed");
    let [a, b] = [place.keeper("doorbells=2").await, place.keeper("doorbells=2").await];
    let (_, plain) = place.keeper("").await;
    let guard = handed(&plain, &a, "x").await;
    let waiting = takes(&b.1, "x");
    place.sleepers(1);
    // Asleep: it comes back.
    let before = place.connections(true);
    SHARED.sql(&format!("KILL {}", before[0]));
    eventually(SOON, "it sleeps again", || place.connections(true).iter().any(|id| !before.contains(id)));
    // The holder's: the waiter has it then, and the lock when it is free.
    let held = owner(&a.0, "x").expect("the holder has it");
    SHARED.sql(&format!("KILL {held}"));
    eventually(SOON, "the waiter has it", || owner(&a.0, "x").is_some_and(|id| id != held));
    assert!(!waiting.is_finished());
    let token = guard.token();
    guard.release().await.expect("released");
    let guard = waiting.await.expect("granted");
    assert!(guard.token() > token);
    guard.release().await.expect("released");
    is_free(&a.0, "x");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_give_up_leave_nothing_behind() {
    let place = Place::new("give_up");
    let [a, b] = [place.keeper("doorbells=2").await, place.keeper("doorbells=2").await];
    let (_, plain) = place.keeper("").await;
    let guard = taken(&plain, "x").await;
    let first = takes(&a.1, "x");
    has_owner(&a.0, "x");
    let second = takes(&b.1, "x");
    place.sleepers(1);
    // Far below the limit of the sleep itself.
    second.abort();
    place.sleepers(0);
    assert!(owner(&a.0, "x").is_some());
    let third = takes(&b.1, "x");
    place.sleepers(1);
    // The one with the doorbell: it goes to whoever is asleep.
    let held = owner(&a.0, "x");
    first.abort();
    eventually(SOON, "the next has it", || owner(&a.0, "x").is_some_and(|id| Some(id) != held));
    third.abort();
    is_free(&a.0, "x");
    guard.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_closes_while_it_sleeps_is_gone_from_the_door() {
    let place = Place::new("closes");
    let [a, b] = [place.keeper("doorbells=2").await, place.keeper("doorbells=2").await];
    let (_, plain) = place.keeper("").await;
    let _guard = handed(&plain, &a, "x").await;
    let waiting = takes(&b.1, "x");
    place.sleepers(1);
    waiting.abort();
    b.1.close(SOON).await.expect("closed");
    drop(b);
    place.sleepers(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_room_for_doorbells_waiters_ask() {
    let place = Place::new("room");
    SHARED.sql("ALTER USER room WITH MAX_USER_CONNECTIONS 4");
    let [a, b] = [place.keeper("connections=1&doorbells=4").await, place.keeper("connections=1&doorbells=4").await];
    for keeper in [&a.1, &b.1] {
        drop(taken(keeper, "y").await);
    }
    eventually(SOON, "all are connected", || place.connections(false).len() == 4);
    let mut guard = taken(&a.1, "x").await;
    for next in [&b.1, &a.1, &b.1] {
        let waiting = takes(next, "x");
        eventually(SOON, "it is in line", || {
            SHARED.sql("SELECT COUNT(*) FROM room.lockkeeper_claim WHERE kind = 1") == "1"
        });
        guard.release().await.expect("released");
        guard = waiting.await.expect("granted");
    }
    assert_eq!((place.connections(false).len(), a.0.rung() + b.0.rung()), (4, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sleep_that_the_server_cuts_short_is_begun_anew() {
    let server = MysqlServer::new();
    let mariadb = server.sql("SELECT VERSION()").contains("MariaDB");
    server.sql(if mariadb { "SET GLOBAL max_statement_time = 2.5" } else { "SET GLOBAL max_execution_time = 2500" });
    let url = format!("{}?doorbells=1", server.url());
    let connect = async || Keeper::builder().ttl(TTL).connect(&url).await.expect("connected");
    let [holder, a, b] = [connect().await, connect().await, connect().await];
    let guard = taken(&holder, "x").await;
    let mut waiting = tokio::task::JoinSet::new();
    for keeper in [a, b] {
        waiting.spawn(async move { taken(&keeper, "x").await.release().await.expect("released") });
    }
    // One of them has the doorbell. The other sleeps for a while, and then on the same connection anew.
    let mut slept: Vec<(String, u64)> = Vec::new();
    eventually(SOON, "it sleeps again", || {
        let text = "SELECT ID, TIME FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'";
        if let Some((id, time)) = server.sql(text).split_once('\t') {
            slept.push((id.to_owned(), time.parse().expect("a number")));
        }
        !slept.is_sorted_by_key(|(_, time)| *time)
    });
    assert!(slept.iter().all(|(id, _)| *id == slept[0].0), "{slept:?}");
    guard.release().await.expect("released");
    waiting.join_all().await;
}

const ROLE: &str = "LOCKKEEPER_TEST_DOORBELL";

/// Not a test: the other process's `main`, when it is told where.
#[test]
fn act() {
    let Ok(url) = std::env::var(ROLE) else { return };
    let keeper = lockkeeper::blocking::Keeper::builder().ttl(TTL / 3).connect(url).expect("connected");
    let _guard = keeper.lock("x").acquire().expect("granted");
    // Until it is killed.
    std::thread::sleep(SOON * 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doorbell_of_a_holder_that_dies_goes_to_the_next() {
    let place = Place::new("dies");
    let waiter = place.keeper("doorbells=1").await;
    let (_, plain) = place.keeper("").await;
    let guard = taken(&plain, "x").await;
    let mut command = Command::new(std::env::current_exe().expect("this program has a file"));
    let holder = Proc::start(
        command.args(["--exact", "doorbell::trouble::act", "--nocapture"]).env(ROLE, place.url("doorbells=1")),
    );
    has_owner(&waiter.0, "x");
    guard.release().await.expect("released");
    eventually(SOON, "the other process has the lock", || {
        SHARED.sql("SELECT pid FROM dies.lockkeeper_lock") == holder.pid().to_string()
    });
    let waiting = takes(&waiter.1, "x");
    place.sleepers(1);
    let held = owner(&waiter.0, "x");
    drop(holder);
    eventually(SOON, "the waiter has its doorbell", || owner(&waiter.0, "x").is_some_and(|id| Some(id) != held));
    waiting.await.expect("granted").release().await.expect("released");
    is_free(&waiter.0, "x");
}
