//! Rows that somebody else keeps locked: the MySQL store says so in bounded time, to all who wait at once, and the locks of
//! other names go on meanwhile.

use crate::keepers::{self, refusal, taken};
use lockkeeper::store::{Attempt, Claim};
use lockkeeper::stores::mysql::MysqlStore;
use lockkeeper::{Error, ErrorKind, Keeper, LossReason, Mode, Phase, Store as _};
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::{MysqlServer, SOON, eventually};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(30);

/// How long one step waits for a row (`innodb_lock_wait_timeout` of the store).
const PATIENCE: Duration = Duration::from_secs(5);

/// One wait, and what a busy machine may add. In turn it would be several for each caller.
const TOGETHER: Duration = Duration::from_secs(14);

/// Both layouts: the options, and the table whose row somebody keeps locked.
const LAYOUTS: [(&str, &str); 2] = [("", "lockkeeper_lock"), ("layout=shedlock&", "shedlock")];

/// Sessions of ours that wait for a row.
const WAITING: &str = "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'";

async fn keeper(server: &MysqlServer, options: &str, ttl: Duration) -> Keeper {
    Keeper::builder().ttl(ttl).connect(format!("{}?{options}", server.url())).await.expect("connected")
}

/// Somebody with a transaction of their own, in which the row of `x` is locked.
async fn somebody(server: &MysqlServer, table: &str) -> Conn {
    let mut conn = Conn::from_url(server.url()).await.expect("connected");
    conn.query_drop("START TRANSACTION").await.expect("begun");
    let locked: Option<u8> =
        conn.query_first(format!("SELECT 1 FROM {table} WHERE name = 'x' FOR UPDATE")).await.expect("locked");
    assert_eq!(locked, Some(1), "there is a row");
    conn
}

async fn with_row(server: &MysqlServer, (options, table): (&str, &str), ttl: Duration) -> (Keeper, Conn) {
    let keeper = keeper(server, options, ttl).await;
    taken(&keeper, "x").await.release().await.expect("released");
    (keeper, somebody(server, table).await)
}

fn is_told_why(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable && error.to_string().contains("another transaction keeps")
}

async fn let_go(mut somebody: Conn) {
    somebody.query_drop("COMMIT").await.expect("ended");
}

/// Twenty tasks of one keeper, in line for one lock: the first waits for the row, and all are told when it has.
async fn tasks_are_told_together(layout: (&str, &str)) {
    let server = MysqlServer::new();
    let (keeper, somebody) = with_row(&server, layout, TTL).await;
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let keeper = keeper.clone();
        tasks.spawn(async move { refusal(&keeper, "x").await });
    }
    for error in tokio::time::timeout(TOGETHER, tasks.join_all()).await.expect("not in turn") {
        assert!(is_told_why(&error), "{error}");
    }
    // Whoever asks now does not wait at all.
    let began = Instant::now();
    assert!(is_told_why(&refusal(&keeper, "x").await));
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    let_go(somebody).await;
    drop(taken(&keeper, "x").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_tasks_of_a_keeper_are_told_together() {
    tasks_are_told_together(LAYOUTS[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_tasks_of_a_keeper_are_told_together_of_a_row_of_shedlock() {
    tasks_are_told_together(LAYOUTS[1]).await;
}

/// Their calls are given up before the server says why; they are told all the same, once somebody has waited in vain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_with_short_leases_are_told_together() {
    let server = MysqlServer::new();
    let (keeper, somebody) = with_row(&server, LAYOUTS[0], Duration::from_secs(6)).await;
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let keeper = keeper.clone();
        tasks.spawn(async move { refusal(&keeper, "x").await });
    }
    let told = tokio::time::timeout(TOGETHER, tasks.join_all()).await.expect("not in turn");
    assert!(told.iter().filter(|error| is_told_why(error)).count() >= 19, "{told:?}");
    let_go(somebody).await;
    drop(taken(&keeper, "x").await);
}

/// Keepers that know nothing of each other: each finds out for itself, at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_keepers_are_told_together_and_their_connections_go_on() {
    let server = MysqlServer::new();
    let (first, somebody) = with_row(&server, LAYOUTS[0], TTL).await;
    let mut keepers = JoinSet::new();
    for _ in 0..5 {
        let keeper = keeper(&server, "", TTL).await;
        keepers.spawn(async move {
            let error = refusal(&keeper, "x").await;
            taken(&keeper, "y").await.release().await.expect("released");
            (keeper, error)
        });
    }
    let told = tokio::time::timeout(TOGETHER, keepers.join_all()).await.expect("not in turn");
    for (_, error) in &told {
        assert!(is_told_why(error), "{error}");
    }
    let_go(somebody).await;
    for (keeper, _) in told {
        taken(&keeper, "x").await.release().await.expect("released");
    }
    drop(taken(&first, "x").await);
}

/// Claims of many other names, so many that they share connections and calls with those that wait for the row.
async fn others_go_on(layout: (&str, &str)) {
    let server = MysqlServer::new();
    let (options, table) = layout;
    let (keeper, somebody) = with_row(&server, (&format!("{options}connections=2"), table), TTL).await;
    let mut stuck = JoinSet::new();
    for _ in 0..3 {
        let keeper = keeper.clone();
        stuck.spawn(async move { refusal(&keeper, "x").await });
    }
    eventually(SOON, "one waits for the row", || server.sql(WAITING) != "0");
    let (done, mut others) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    for i in 0..16 {
        let (keeper, done) = (keeper.clone(), done.clone());
        others.spawn(async move {
            let (mut longest, mut rounds) = (Duration::ZERO, 0);
            while !done.load(Ordering::Relaxed) {
                let began = Instant::now();
                let guard = keeper.lock(format!("y {i}")).try_acquire().await.expect("no error").expect("free");
                guard.release().await.expect("released");
                longest = longest.max(began.elapsed());
                rounds += 1;
            }
            (longest, rounds)
        });
    }
    let told = tokio::time::timeout(SOON * 2, stuck.join_all()).await.expect("told");
    done.store(true, Ordering::Relaxed);
    for (longest, rounds) in others.join_all().await {
        assert!(rounds > 1 && longest < PATIENCE / 2, "{longest:?} in {rounds}");
    }
    assert!(told.iter().all(is_told_why), "{told:?}");
    let_go(somebody).await;
    drop(taken(&keeper, "x").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_somebody_keeps_locked_holds_up_nobody_else() {
    others_go_on(LAYOUTS[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_shedlock_that_somebody_keeps_locked_holds_up_nobody_else() {
    others_go_on(LAYOUTS[1]).await;
}

fn claim(name: &str) -> Claim {
    keepers::claim(name, Mode::Exclusive, TTL)
}

async fn asked(store: &MysqlStore, name: &str) -> Result<Attempt, Error> {
    store.try_acquire(&[claim(name)]).await.remove(0)
}

/// What waits for the one connection goes out together when it is free, but not with a name that is known to be stuck.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_in_line_do_not_wait_with_the_one_that_is_stuck() {
    let server = MysqlServer::new();
    let store = Arc::new(MysqlStore::connect(&format!("{}?connections=1", server.url())).await.expect("connected"));
    for name in ["w", "x", "y"] {
        let claim = claim(name);
        store.try_acquire(from_ref(&claim)).await;
        store.release(from_ref(&claim)).await;
    }
    let mut somebody = somebody(&server, "lockkeeper_lock").await;
    assert!(is_told_why(&asked(&store, "x").await.expect_err("it is stuck")));
    somebody.query_drop("SELECT name FROM lockkeeper_lock WHERE name = 'w' FOR UPDATE").await.expect("locked");
    let ask = |name| {
        let store = store.clone();
        tokio::spawn(async move { asked(&store, name).await })
    };
    let first = ask("w");
    eventually(SOON, "it waits for its row", || server.sql(WAITING) == "1");
    let (other, stuck) = (ask("y"), ask("x"));
    assert!(is_told_why(&first.await.expect("answered").expect_err("it is stuck")));
    assert!(matches!(other.await.expect("answered"), Ok(Attempt::Granted(_))));
    assert!(is_told_why(&stuck.await.expect("answered").expect_err("it is stuck")));
    // In one call, too, each has an answer of its own.
    let answers = store.try_acquire(&["a", "w", "x", "z"].map(claim)).await;
    assert!(
        matches!(&answers[..], [Ok(Attempt::Granted(_)), Err(w), Err(x), Ok(Attempt::Granted(_))]
        if is_told_why(w) && is_told_why(x)),
        "{answers:?}"
    );
    let_go(somebody).await;
    for name in ["w", "x"] {
        assert!(matches!(asked(&store, name).await, Ok(Attempt::Granted(_))));
    }
}

/// Renewals go out together. The lock whose row is kept locked may be lost by that, the others must not.
async fn others_are_renewed(layout: (&str, &str), ttl: Duration) {
    let server = MysqlServer::new();
    let (options, table) = layout;
    let keeper = keeper(&server, options, ttl).await;
    let mut others = vec![taken(&keeper, "a").await];
    let guard = taken(&keeper, "x").await;
    others.push(taken(&keeper, "y").await);
    let somebody = somebody(&server, table).await;
    assert_eq!(guard.lost().await, LossReason::Expired);
    for other in &others {
        assert_eq!(other.phase(), Phase::Held, "{:?}", other.name());
        other.check().expect("renewed");
    }
    let_go(somebody).await;
    for other in others {
        other.release().await.expect("held all the time");
    }
    drop(taken(&keeper, "x").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_locks_of_the_keeper_are_renewed() {
    // The server says why before the renewal is given up.
    others_are_renewed(LAYOUTS[0], Duration::from_secs(18)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_short_leases_of_the_keeper_are_renewed() {
    others_are_renewed(LAYOUTS[0], Duration::from_secs(6)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_locks_in_shedlocks_table_are_renewed() {
    others_are_renewed(LAYOUTS[1], Duration::from_secs(6)).await;
}

/// Steps that nobody is in the way of are updates: looks and settings would be counted.
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
    // A connection is set up once for renewals that go out together.
    renewed().await;
    let before = ["Com_set_option", "Com_select"].map(count);
    let mut looks = 0;
    for _ in 0..3 {
        looks += renewed().await;
    }
    assert_eq!(["Com_set_option", "Com_select"].map(count), [before[0], before[1] + looks]);
}
