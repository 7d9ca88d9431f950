//! Rows that somebody else keeps locked, and statements that somebody else cancels: the PostgreSQL store says so in bounded
//! time, to all who wait at once, and goes on.

use crate::keepers::{refusal, taken};
use lockkeeper::{Error, ErrorKind, Keeper, LossReason, Phase};
use std::time::{Duration, Instant};
use testkit::{PostgresServer, SOON};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

const TTL: Duration = Duration::from_secs(30);

/// How long one step waits for a row (`PATIENCE` of the store).
const PATIENCE: Duration = Duration::from_secs(5);

/// What a busy machine may add to a time.
const SLACK: Duration = Duration::from_secs(5);

/// Every connection of the store that the server has.
const OURS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockkeeper'";

/// Our statements that wait for a row.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
    AND application_name = 'lockkeeper'";

/// Both layouts: the options, and the statement that keeps rows of `x` and `x2` locked.
const LAYOUTS: [(&str, &str); 2] = [
    ("", "SELECT FROM lockkeeper.lock WHERE name IN ('x', 'x2') FOR UPDATE"),
    ("?layout=shedlock", "SELECT FROM shedlock WHERE name IN ('x', 'x2') FOR UPDATE"),
];

/// A test on both layouts, each with a server of its own, at the same time: most of it is waiting.
fn on_both<F: Future<Output = ()>>(test: impl Fn(&'static str, &'static str) -> F + Sync) {
    std::thread::scope(|threads| {
        for (options, lock) in LAYOUTS {
            let run = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let (run, test) = (run.expect("a runtime"), &test);
            threads.spawn(move || run.block_on(test(options, lock)));
        }
    });
}

async fn keeper(server: &PostgresServer, options: &str) -> Keeper {
    Keeper::builder().ttl(TTL).connect(format!("{}{options}", server.url())).await.expect("connected")
}

/// Somebody with a transaction of their own.
async fn somebody(server: &PostgresServer) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.expect("connected");
    tokio::spawn(connection);
    client
}

async fn with_rows(server: &PostgresServer, options: &str, lock: &str) -> (Keeper, Client) {
    let keeper = keeper(server, options).await;
    for name in ["x", "x2"] {
        taken(&keeper, name).await.release().await.expect("released");
    }
    let somebody = self::somebody(server).await;
    somebody.batch_execute("BEGIN").await.expect("begun");
    somebody.batch_execute(lock).await.expect("locked");
    (keeper, somebody)
}

fn is_told_why(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable && error.to_string().contains("locked")
}

/// Ten tasks of one keeper, in line for one lock: the first waits for the row, and all are told when it has.
#[test]
fn all_tasks_of_a_keeper_are_told_together() {
    on_both(|options, lock| async move {
        let server = PostgresServer::new();
        let (keeper, somebody) = with_rows(&server, options, lock).await;
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..10 {
            let keeper = keeper.clone();
            tasks.spawn(async move { refusal(&keeper, "x").await });
        }
        for error in tasks.join_all().await {
            assert!(is_told_why(&error), "{options}: {error}");
        }
        // One wait, and for each a look; in turn it would be ten waits, and twice as many with the engine's second try.
        let all = began.elapsed();
        assert!(all < PATIENCE * 4, "{options}: {all:?}");
        somebody.batch_execute("COMMIT").await.expect("ended");
        drop(taken(&keeper, "x").await);
    });
}

/// Keepers that know nothing of each other stand behind one another at the row: each waits for its place and then for the
/// row, so twice as long at most, and the connections that waited are as good as new.
#[test]
fn keepers_that_wait_for_one_row_are_answered_in_bounded_time() {
    on_both(|options, lock| async move {
        let server = PostgresServer::new();
        let (first, somebody) = with_rows(&server, options, lock).await;
        let mut keepers = JoinSet::new();
        for _ in 0..3 {
            let keeper = keeper(&server, options).await;
            keepers.spawn(async move {
                let error = refusal(&keeper, "x").await;
                taken(&keeper, "y").await.release().await.expect("released");
                error
            });
        }
        // The longest that one of our statements waits, as the server sees it.
        let look = "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - query_start)), 0)::float8 \
            FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'lockkeeper'";
        let (watch, mut longest, mut told) = (self::somebody(&server).await, 0_f64, 0);
        while !keepers.is_empty() {
            longest = longest.max(watch.query_one(look, &[]).await.expect("asked").get(0));
            if let Ok(answered) = tokio::time::timeout(Duration::from_millis(50), keepers.join_next()).await {
                let error = answered.expect("one more").expect("answered");
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{options}: {error}");
                told += usize::from(is_told_why(&error));
            }
        }
        // Whoever stood behind another may have been given up by its keeper first.
        assert!(told > 0, "{options}: the first in line is told why");
        let bound = (PATIENCE * 2 + SLACK).as_secs_f64();
        assert!(longest > 0.0 && longest < bound, "{options}: {longest}");
        // Those in use, and a few that were given up and whose wait has not ended yet.
        let connections: u32 = server.sql(OURS).parse().expect("a number");
        assert!(connections <= 20, "{options}: {connections}");
        somebody.batch_execute("COMMIT").await.expect("ended");
        drop(taken(&first, "x").await);
    });
}

#[test]
fn a_row_that_somebody_keeps_locked_holds_up_nobody_else() {
    on_both(|options, lock| async move {
        let server = PostgresServer::new();
        let (keeper, somebody) = with_rows(&server, options, lock).await;
        let stuck = tokio::spawn({
            let keeper = keeper.clone();
            async move { refusal(&keeper, "x").await }
        });
        testkit::eventually(SOON, "it waits", || server.sql(WAITING) == "1");
        // Others go on meanwhile, on the other connection.
        for _ in 0..20 {
            taken(&keeper, "y").await.release().await.expect("released");
        }
        assert!(!stuck.is_finished(), "it was waiting all the time");
        let error = stuck.await.expect("answered");
        assert!(is_told_why(&error), "{error}");
        // Of a row that is known to be locked it is said at once.
        let began = Instant::now();
        assert!(is_told_why(&refusal(&keeper, "x").await));
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        somebody.batch_execute("COMMIT").await.expect("ended");
        drop(taken(&keeper, "x").await);
    });
}

/// Renewals are sent together. One of them in somebody's hands must not end the others.
#[test]
fn a_row_that_somebody_keeps_locked_costs_no_other_lock() {
    on_both(|options, lock| async move {
        let server = PostgresServer::new();
        let url = format!("{}{options}", server.url());
        let keeper = Keeper::builder().ttl(Duration::from_secs(3)).connect(url).await.expect("connected");
        let stuck = taken(&keeper, "x").await;
        let mut others = Vec::new();
        for name in ["a", "b", "y", "z"] {
            others.push(taken(&keeper, name).await);
        }
        let somebody = self::somebody(&server).await;
        somebody.batch_execute("BEGIN").await.expect("begun");
        somebody.batch_execute(lock).await.expect("locked");
        assert_eq!(stuck.lost().await, LossReason::Expired, "{options}: it cannot be renewed");
        // Longer than any lease that was given before the row was locked.
        tokio::time::sleep(Duration::from_secs(1)).await;
        for guard in others {
            assert!(!matches!(guard.phase(), Phase::Lost(_)), "{options}: {} {:?}", guard.name(), guard.phase());
            guard.release().await.unwrap_or_else(|e| panic!("{options}: {e}"));
        }
        somebody.batch_execute("COMMIT").await.expect("ended");
        drop(taken(&keeper, "x").await);
    });
}

/// Two different rows, and a keeper with two connections: others go on.
#[test]
fn several_rows_that_somebody_keeps_locked_hold_up_nobody_else() {
    on_both(|options, lock| async move {
        let server = PostgresServer::new();
        let (keeper, somebody) = with_rows(&server, options, lock).await;
        let mut stuck = JoinSet::new();
        for name in ["x", "x2"] {
            let keeper = keeper.clone();
            stuck.spawn(async move { refusal(&keeper, name).await });
        }
        testkit::eventually(SOON, "one waits", || server.sql(WAITING) != "0");
        let began = Instant::now();
        taken(&keeper, "y").await.release().await.expect("released");
        assert!(began.elapsed() < PATIENCE / 2, "{options}: {:?}", began.elapsed());
        for error in stuck.join_all().await {
            assert!(is_told_why(&error), "{options}: {error}");
        }
        somebody.batch_execute("COMMIT").await.expect("ended");
        drop(taken(&keeper, "x").await);
    });
}

/// Ends what our statements wait in, as an administrator or a timeout of the server would (57014).
async fn cancel(server: &PostgresServer) {
    testkit::eventually(SOON, "a statement of ours waits", || server.sql(WAITING) != "0");
    server.sql(&WAITING.replace("count(*)", "pg_cancel_backend(pid)"));
}

fn processes(server: &PostgresServer) -> String {
    server.sql(&OURS.replace("count(*)", "string_agg(pid::text, ' ' ORDER BY pid)"))
}

#[test]
fn a_cancelled_statement_is_repeated_on_the_same_connection() {
    on_both(|options, lock| async move {
        let server = PostgresServer::new();
        let (keeper, somebody) = with_rows(&server, options, lock).await;
        let before = processes(&server);
        let asking = tokio::spawn({
            let keeper = keeper.clone();
            async move { refusal(&keeper, "x").await }
        });
        // Once, and the engine asks again; twice, and it is told.
        while !asking.is_finished() {
            server.sql(&WAITING.replace("count(*)", "pg_cancel_backend(pid)"));
        }
        let error = asking.await.expect("answered");
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("57014"), "{options}: {error}");
        let after = processes(&server);
        assert!(
            before.split(' ').all(|pid| after.split(' ').any(|other| other == pid)),
            "{options}: {before}, {after}"
        );
        let asking = tokio::spawn(async move {
            let guard = taken(&keeper, "x").await;
            (keeper, guard)
        });
        cancel(&server).await;
        somebody.batch_execute("COMMIT").await.expect("ended");
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
    let somebody = self::somebody(&server).await;
    somebody.batch_execute("BEGIN").await.expect("begun");
    somebody.batch_execute("SELECT FROM lockkeeper.lock WHERE name = 'x' FOR UPDATE").await.expect("locked");
    cancel(&server).await;
    somebody.batch_execute("COMMIT").await.expect("ended");
    let expires = || server.sql("SELECT expires FROM lockkeeper.lock WHERE name = 'x'");
    let before = expires();
    testkit::eventually(SOON, "it is renewed", || expires() != before);
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
    let somebody = self::somebody(&server).await;
    somebody.batch_execute("BEGIN; LOCK TABLE lockkeeper.claim IN ACCESS EXCLUSIVE MODE").await.expect("locked");
    let began = Instant::now();
    let error = keeper.inspect("x").await.map(|_| ()).expect_err("not answered");
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("in time"), "{error}");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    // What does not need that table goes on, on another connection.
    let other = taken(&keeper, "y").await;
    somebody.batch_execute("COMMIT").await.expect("ended");
    assert!(keeper.inspect("x").await.expect("answered").is_some());
    testkit::eventually(SOON, "the old connection has ended", || {
        let now = processes(&server);
        before.split(' ').any(|pid| !now.split(' ').any(|other| other == pid))
    });
    guard.check().expect("held all the time");
    other.check().expect("held all the time");
}
