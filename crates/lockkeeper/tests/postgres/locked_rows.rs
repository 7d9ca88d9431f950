//! Rows that another client's transaction keeps locked, and statements that an administrator cancels: the PostgreSQL store
//! says so, and the locks of other names go on meanwhile.

use lockkeeper::{Error, ErrorKind, Guard, Keeper, LossReason, Phase};
use std::time::{Duration, Instant};
use testkit::{PostgresServer, SOON, eventually};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

const TTL: Duration = Duration::from_secs(30);

/// Every connection of the store that the server has.
const OURS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockkeeper'";

/// Our statements that wait for a row.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
    AND application_name = 'lockkeeper'";

/// A layout: its options, its table of locks, and a condition on the rows that another client locks.
#[derive(Clone, Copy)]
struct Layout {
    options: &'static str,
    table: &'static str,
    until: &'static str,
}

const LAYOUTS: [Layout; 2] = [
    Layout { options: "", table: "lockkeeper.lock", until: "expires" },
    Layout { options: "?layout=shedlock", table: "shedlock", until: "lock_until" },
];

impl Layout {
    fn lock(self) -> String {
        format!("SELECT FROM {} WHERE name IN ('x', 'x2') FOR UPDATE", self.table)
    }
}

/// A test on both layouts, each with a server of its own, at the same time: most of it is waiting.
fn on_both<F: Future<Output = ()>>(test: impl Fn(Layout) -> F + Sync) {
    std::thread::scope(|threads| {
        for layout in LAYOUTS {
            let run = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let (run, test) = (run.expect("a runtime"), &test);
            threads.spawn(move || run.block_on(test(layout)));
        }
    });
}

async fn keeper(server: &PostgresServer, options: &str) -> Keeper {
    Keeper::builder().ttl(TTL).connect(format!("{}{options}", server.url())).await.expect("connected")
}

async fn taken(keeper: &Keeper, name: &str) -> Guard {
    keeper.lock(name).wait(SOON).acquire().await.expect("granted")
}

async fn refusal(keeper: &Keeper, name: &str) -> Error {
    keeper.lock(name).try_acquire().await.map(|guard| guard.is_some()).expect_err("an error")
}

/// Another client, with transactions of its own.
async fn another_client(server: &PostgresServer) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.expect("connected");
    tokio::spawn(connection);
    client
}

/// A keeper, and another client whose open transaction has locked the rows of `x` and `x2`.
async fn with_locked_rows(server: &PostgresServer, layout: Layout) -> (Keeper, Client) {
    let keeper = keeper(server, layout.options).await;
    for name in ["x", "x2"] {
        taken(&keeper, name).await.release().await.expect("released");
    }
    let other = another_client(server).await;
    other.batch_execute("BEGIN").await.expect("begun");
    other.batch_execute(&layout.lock()).await.expect("locked");
    (keeper, other)
}

fn is_told_why(error: &Error, layout: Layout, name: &str) -> bool {
    let (kind, text, table) = (error.kind(), error.to_string(), layout.table.replace("shedlock", "\"shedlock\""));
    let says = |word: &str| text.contains(word);
    kind == ErrorKind::Unavailable
        && says("locked by another transaction")
        && says(&table)
        && says(&format!("'{name}'"))
}

/// Ten tasks of one keeper want one lock: each is told that the row is locked, and by what table and name.
#[test]
fn all_tasks_of_a_keeper_are_told_why() {
    on_both(|layout| async move {
        let server = PostgresServer::new();
        let (keeper, other) = with_locked_rows(&server, layout).await;
        let mut tasks = JoinSet::new();
        for _ in 0..10 {
            let keeper = keeper.clone();
            tasks.spawn(async move { refusal(&keeper, "x").await });
        }
        for error in tasks.join_all().await {
            assert!(is_told_why(&error, layout, "x"), "{error}");
        }
        other.batch_execute("COMMIT").await.expect("ended");
        drop(taken(&keeper, "x").await);
    });
}

/// Two rows are locked, and the keeper has two connections: calls for other names are answered while both stay locked.
#[test]
fn calls_for_other_names_are_not_held_up() {
    on_both(|layout| async move {
        let server = PostgresServer::new();
        let (keeper, other) = with_locked_rows(&server, layout).await;
        let mut stuck = JoinSet::new();
        for name in ["x", "x2", "x", "x2"] {
            let keeper = keeper.clone();
            stuck.spawn(async move { (name, refusal(&keeper, name).await) });
        }
        eventually(SOON, "one waits for its row", || server.sql(WAITING) != "0");
        let mut others = JoinSet::new();
        for i in 0..16 {
            let keeper = keeper.clone();
            others.spawn(async move {
                let lock = keeper.lock(format!("y {i}"));
                for _ in 0..5 {
                    let guard = lock.try_acquire().await.expect("no error").expect("free");
                    guard.release().await.expect("released");
                }
            });
        }
        others.join_all().await;
        for (name, error) in stuck.join_all().await {
            assert!(is_told_why(&error, layout, name), "{error}");
        }
        other.batch_execute("COMMIT").await.expect("ended");
        drop(taken(&keeper, "x").await);
    });
}

/// Renewals are sent together. The lock whose row is locked is lost, and the others go on.
#[test]
fn other_locks_of_the_keeper_are_renewed() {
    on_both(|layout| async move {
        let server = PostgresServer::new();
        let url = format!("{}{}", server.url(), layout.options);
        let keeper = Keeper::builder().ttl(Duration::from_secs(3)).connect(url).await.expect("connected");
        let stuck = taken(&keeper, "x").await;
        let mut others = Vec::new();
        for name in ["a", "b", "y", "z"] {
            others.push(taken(&keeper, name).await);
        }
        let other = another_client(&server).await;
        other.batch_execute("BEGIN").await.expect("begun");
        other.batch_execute(&layout.lock()).await.expect("locked");
        assert_eq!(stuck.lost().await, LossReason::Expired, "{}: it cannot be renewed", layout.options);
        let least = format!("SELECT min({}) FROM {} WHERE name IN ('a', 'b', 'y', 'z')", layout.until, layout.table);
        let before = server.sql(&least);
        eventually(SOON, "all others are renewed", || server.sql(&least) > before);
        for guard in others {
            assert!(!matches!(guard.phase(), Phase::Lost(_)), "{} {:?}", guard.name(), guard.phase());
            guard.release().await.expect("held all the time");
        }
        other.batch_execute("COMMIT").await.expect("ended");
        drop(taken(&keeper, "x").await);
    });
}

/// Cancels a statement of ours that waits for a row, as an administrator or a timeout of the server would (57014).
async fn cancel_one(administrator: &Client) {
    let cancel = WAITING.replace("count(*)", "pg_cancel_backend(pid)");
    while administrator.query(&cancel, &[]).await.expect("asked").is_empty() {}
}

fn processes(server: &PostgresServer) -> String {
    server.sql(&OURS.replace("count(*)", "string_agg(pid::text, ' ' ORDER BY pid)"))
}

#[test]
fn a_cancelled_statement_is_repeated_on_the_same_connection() {
    on_both(|layout| async move {
        let server = PostgresServer::new();
        let (keeper, other) = with_locked_rows(&server, layout).await;
        let administrator = another_client(&server).await;
        let before = processes(&server);
        let asking = tokio::spawn({
            let keeper = keeper.clone();
            async move { refusal(&keeper, "x").await }
        });
        // Once, and the engine asks again; twice, and the caller is told.
        let cancel = WAITING.replace("count(*)", "pg_cancel_backend(pid)");
        while !asking.is_finished() {
            administrator.query(&cancel, &[]).await.expect("asked");
        }
        let error = asking.await.expect("answered");
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("57014"), "{error}");
        let after = processes(&server);
        assert!(before.split(' ').all(|pid| after.split(' ').any(|other| other == pid)), "{before}, {after}");
        let asking = tokio::spawn(async move {
            let guard = taken(&keeper, "x").await;
            (keeper, guard)
        });
        cancel_one(&administrator).await;
        other.batch_execute("COMMIT").await.expect("ended");
        let (keeper, guard) = asking.await.expect("answered");
        guard.release().await.expect("released");
        drop(keeper);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_renewal_loses_nothing() {
    let server = PostgresServer::new();
    let keeper = Keeper::builder().ttl(Duration::from_secs(12)).connect(server.url()).await.expect("connected");
    let guard = taken(&keeper, "x").await;
    let (other, administrator) = (another_client(&server).await, another_client(&server).await);
    other.batch_execute("BEGIN").await.expect("begun");
    other.batch_execute("SELECT FROM lockkeeper.lock WHERE name = 'x' FOR UPDATE").await.expect("locked");
    cancel_one(&administrator).await;
    other.batch_execute("COMMIT").await.expect("ended");
    let expires = || server.sql("SELECT expires FROM lockkeeper.lock WHERE name = 'x'");
    let before = expires();
    eventually(SOON, "it is renewed", || expires() != before);
    assert_eq!(guard.phase(), Phase::Held);
    guard.release().await.expect("held all the time");
}

/// A question that no lease depends on, and a server that does not answer it: told in bounded time, and the connection is
/// replaced, since others would wait behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_that_is_not_answered_is_given_up_and_its_connection_too() {
    let server = PostgresServer::new();
    let (holder, keeper) = (keeper(&server, "").await, self::keeper(&server, "").await);
    let guard = taken(&holder, "x").await;
    assert!(keeper.inspect("x").await.expect("answered").is_some());
    let before = processes(&server);
    let other_client = another_client(&server).await;
    other_client.batch_execute("BEGIN; LOCK TABLE lockkeeper.claim IN ACCESS EXCLUSIVE MODE").await.expect("locked");
    let began = Instant::now();
    let error = keeper.inspect("x").await.map(|_| ()).expect_err("not answered");
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("in time"), "{error}");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    // What does not need that table goes on, on another connection.
    let other = taken(&keeper, "y").await;
    other_client.batch_execute("COMMIT").await.expect("ended");
    assert!(keeper.inspect("x").await.expect("answered").is_some());
    eventually(SOON, "the old connection has ended", || {
        let now = processes(&server);
        before.split(' ').any(|pid| !now.split(' ').any(|other| other == pid))
    });
    guard.check().expect("held all the time");
    other.check().expect("held all the time");
}
