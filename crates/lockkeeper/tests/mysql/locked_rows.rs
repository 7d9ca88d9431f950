//! Rows that another client's transaction keeps locked: the MySQL store says so, and the locks of other names go on meanwhile.

use lockkeeper::clock::system_now;
use lockkeeper::store::{Attempt, Claim};
use lockkeeper::stores::mysql::MysqlStore;
use lockkeeper::{Error, ErrorKind, Guard, HolderId, Keeper, LockName, LossReason, Phase, Store as _};
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;
use testkit::{MysqlServer, SOON, eventually};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(30);

/// Both layouts: the options, and the table whose row another client locks.
const LAYOUTS: [(&str, &str); 2] = [("", "lockkeeper_lock"), ("layout=shedlock&", "shedlock")];

/// Sessions of ours that wait for a row.
const WAITING: &str = "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'";

async fn keeper(server: &MysqlServer, options: &str, ttl: Duration) -> Keeper {
    Keeper::builder().ttl(ttl).connect(format!("{}?{options}", server.url())).await.expect("connected")
}

async fn taken(keeper: &Keeper, name: &str) -> Guard {
    keeper.lock(name).wait(SOON).acquire().await.expect("granted")
}

async fn refusal(keeper: &Keeper, name: &str) -> Error {
    keeper.lock(name).try_acquire().await.map(|guard| guard.is_some()).expect_err("an error")
}

/// Another client, whose open transaction has locked the row of `x`.
async fn another_client(server: &MysqlServer, table: &str) -> Conn {
    let mut conn = Conn::from_url(server.url()).await.expect("connected");
    conn.query_drop("START TRANSACTION").await.expect("begun");
    let locked: Option<u8> =
        conn.query_first(format!("SELECT 1 FROM {table} WHERE name = 'x' FOR UPDATE")).await.expect("locked");
    assert_eq!(locked, Some(1), "there is a row");
    conn
}

async fn with_locked_row(server: &MysqlServer, (options, table): (&str, &str), ttl: Duration) -> (Keeper, Conn) {
    let keeper = keeper(server, options, ttl).await;
    taken(&keeper, "x").await.release().await.expect("released");
    (keeper, another_client(server, table).await)
}

/// The error names the table and the lock.
fn is_told_why(error: &Error, table: &str, name: &str) -> bool {
    let (kind, text) = (error.kind(), error.to_string());
    let says = |word: &str| text.contains(word);
    kind == ErrorKind::Unavailable && says("locked by another transaction") && says(table) && says(&format!("'{name}'"))
}

async fn let_go(mut other: Conn) {
    other.query_drop("COMMIT").await.expect("ended");
}

/// Keepers that know nothing of each other, with twenty tasks each: every task is told why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_tasks_of_all_keepers_are_told_why() {
    let server = MysqlServer::new();
    let (first, other) = with_locked_row(&server, LAYOUTS[0], TTL).await;
    let (second, mut tasks) = (keeper(&server, "", TTL).await, JoinSet::new());
    for i in 0..40 {
        let keeper = if i % 2 == 0 { first.clone() } else { second.clone() };
        tasks.spawn(async move { refusal(&keeper, "x").await });
    }
    for error in tasks.join_all().await {
        assert!(is_told_why(&error, "lockkeeper_lock", "x"), "{error}");
    }
    let_go(other).await;
    for keeper in [first, second] {
        taken(&keeper, "x").await.release().await.expect("released");
    }
}

/// Claims of many other names, so many that they share connections and calls with those that wait for the row.
async fn others_go_on(layout: (&str, &str)) {
    let server = MysqlServer::new();
    let (options, table) = layout;
    let (keeper, other) = with_locked_row(&server, (&format!("{options}connections=2"), table), TTL).await;
    let mut stuck = JoinSet::new();
    for _ in 0..3 {
        let keeper = keeper.clone();
        stuck.spawn(async move { refusal(&keeper, "x").await });
    }
    eventually(SOON, "one waits for the row", || server.sql(WAITING) != "0");
    let mut others = JoinSet::new();
    for i in 0..16 {
        let keeper = keeper.clone();
        others.spawn(async move {
            for _ in 0..5 {
                let guard = keeper.lock(format!("y {i}")).try_acquire().await.expect("no error").expect("free");
                guard.release().await.expect("released");
            }
        });
    }
    others.join_all().await;
    for error in stuck.join_all().await {
        assert!(is_told_why(&error, table, "x"), "{error}");
    }
    let_go(other).await;
    drop(taken(&keeper, "x").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_for_other_names_are_not_held_up() {
    others_go_on(LAYOUTS[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_for_other_names_in_shedlocks_table_are_not_held_up() {
    others_go_on(LAYOUTS[1]).await;
}

fn claim(name: &str) -> Claim {
    let (name, holder) = (LockName::new(name).expect("a name"), HolderId::random().expect("random"));
    Claim::new(name, holder, TTL, system_now(), Arc::default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_one_call_each_claim_has_an_answer_of_its_own() {
    let server = MysqlServer::new();
    let store = MysqlStore::connect(&format!("{}?connections=1", server.url())).await.expect("connected");
    for name in ["w", "x"] {
        let claim = claim(name);
        store.try_acquire(from_ref(&claim)).await;
        store.release(from_ref(&claim)).await;
    }
    let mut other = another_client(&server, "lockkeeper_lock").await;
    other.query_drop("SELECT name FROM lockkeeper_lock WHERE name = 'w' FOR UPDATE").await.expect("locked");
    let answers = store.try_acquire(&["a", "w", "x", "z"].map(claim)).await;
    let told = |error: &Error, name| is_told_why(error, "lockkeeper_lock", name);
    assert!(
        matches!(&answers[..], [Ok(Attempt::Granted(_)), Err(w), Err(x), Ok(Attempt::Granted(_))]
        if told(w, "w") && told(x, "x")),
        "{answers:?}"
    );
    let_go(other).await;
    for name in ["w", "x"] {
        assert!(matches!(store.try_acquire(&[claim(name)]).await.remove(0), Ok(Attempt::Granted(_))));
    }
}

/// Renewals go out together. The lock whose row is locked is lost, and the others go on.
async fn others_are_renewed((options, table): (&str, &str), ttl: Duration) {
    let server = MysqlServer::new();
    let keeper = keeper(&server, options, ttl).await;
    let mut others = vec![taken(&keeper, "a").await];
    let guard = taken(&keeper, "x").await;
    others.push(taken(&keeper, "y").await);
    let other = another_client(&server, table).await;
    assert_eq!(guard.lost().await, LossReason::Expired);
    for other in &others {
        assert_eq!(other.phase(), Phase::Held, "{:?}", other.name());
        other.check().expect("renewed");
    }
    let_go(other).await;
    for other in others {
        other.release().await.expect("held all the time");
    }
    drop(taken(&keeper, "x").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_locks_of_the_keeper_are_renewed() {
    // The server says why before the renewal is given up.
    others_are_renewed(LAYOUTS[0], Duration::from_secs(9)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_short_leases_of_the_keeper_are_renewed() {
    // The renewal is given up before the server says why.
    others_are_renewed(LAYOUTS[0], Duration::from_secs(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_locks_in_shedlocks_table_are_renewed() {
    others_are_renewed(LAYOUTS[1], Duration::from_secs(6)).await;
}

/// Steps on free locks are updates: looks and settings would be counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_no_row_is_locked_nothing_more_is_asked() {
    let server = MysqlServer::new();
    let keeper = keeper(&server, "", Duration::from_secs(6)).await;
    let _held = [taken(&keeper, "a").await, taken(&keeper, "b").await];
    let mut watch = Conn::from_url(server.url()).await.expect("connected");
    // Returns when both were renewed, and how often it had to look.
    let mut renewed = async || {
        let read = "SELECT MIN(expires), MAX(expires) FROM lockkeeper_lock WHERE name IN ('a', 'b')";
        let (mut looks, mut first) = (0, None);
        loop {
            let now: (u64, u64) = watch.query_first(read).await.expect("read").expect("a row");
            looks += 1;
            if now.0 > first.get_or_insert(now).1 {
                return looks;
            }
            taken(&keeper, "y").await.release().await.expect("released");
        }
    };
    let count = |status: &str| -> u64 {
        let said = server.sql(&format!("SHOW GLOBAL STATUS LIKE '{status}'"));
        said.split('\t').nth(1).and_then(|n| n.parse().ok()).expect("a number")
    };
    // Every connection is open and set up after the first renewal.
    renewed().await;
    let before = ["Com_set_option", "Com_select"].map(count);
    let mut looks = 0;
    for _ in 0..3 {
        looks += renewed().await;
    }
    assert_eq!(["Com_set_option", "Com_select"].map(count), [before[0], before[1] + looks]);
}
