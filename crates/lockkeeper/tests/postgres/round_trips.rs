//! What a call of the PostgreSQL store costs: round trips, commits, connections, notifications.

use crate::keepers::{self, taken};
use lockkeeper::store::{Attempt, Claim};
use lockkeeper::stores::postgres::PostgresStore;
use lockkeeper::{Keeper, Mode, Store};
use std::slice::from_ref;
use std::time::{Duration, Instant};
use testkit::{Counted, PostgresServer, SOON};
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(60);

fn claim(name: &str, mode: Mode) -> Claim {
    keepers::claim(name, mode, LONG)
}

/// Round trips of what is done meanwhile.
async fn trips<T>(proxy: &Counted, work: impl Future<Output = T>) -> (u64, T) {
    let before = proxy.trips();
    let done = work.await;
    (proxy.trips() - before, done)
}

/// Transactions that have written something, since the server was made; asking is one.
fn commits(server: &PostgresServer) -> u64 {
    server.sql("SELECT txid_current()").parse().expect("a number")
}

async fn granted(store: &PostgresStore, claims: &[Claim]) {
    for answer in store.try_acquire(claims).await {
        assert!(matches!(answer, Ok(Attempt::Granted(_))), "{answer:?}");
    }
}

/// Takes, prolongs and ends.
async fn cycle(store: &PostgresStore, claims: &[Claim]) {
    granted(store, claims).await;
    assert!(store.renew(claims).await.iter().all(Result::is_ok));
    assert!(store.release(claims).await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_call_is_one_round_trip_and_one_commit() {
    let server = PostgresServer::with(&["autovacuum=off"]);
    let proxy = Counted::before(server.port());
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres?pooled=no", proxy.port());
    let store = PostgresStore::connect(&url).await.expect("connected");
    let many: Vec<Claim> = (0..50).map(|i| claim(&format!("many/{i:02}"), Mode::Exclusive)).collect();
    for claims in [vec![claim("x", Mode::Exclusive)], vec![claim("y", Mode::Shared)], many] {
        // Statements are prepared when they are first needed.
        cycle(&store, &claims).await;
        let before = commits(&server);
        let (asked, ()) = trips(&proxy, cycle(&store, &claims)).await;
        assert_eq!((asked, commits(&server) - before - 1), (3, 3), "{} of {:?}", claims.len(), claims[0].mode);
    }
    // The plain statement first; of whom it has met, the function at once.
    let other = PostgresStore::connect(&server.url()).await.expect("connected");
    granted(&other, &[claim("met", Mode::Exclusive)]).await;
    for wanted in [2, 1, 1] {
        let ours = claim("met", Mode::Exclusive);
        let (asked, answers) = trips(&proxy, store.try_acquire(from_ref(&ours))).await;
        assert!(matches!(answers[..], [Ok(Attempt::Held(_))]), "{answers:?}");
        assert_eq!(asked, wanted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_at_once_shares_commits_and_connections() {
    const LOCKS: u64 = 300;
    let server = PostgresServer::with(&["autovacuum=off"]);
    for (connections, all) in [("1", "3"), ("2", "4")] {
        let url = format!("{}?connections={connections}&application_name=app{connections}", server.url());
        let keeper = Keeper::builder().ttl(Duration::from_secs(3)).connect(url).await.expect("connected");
        let before = commits(&server);
        let mut tasks = JoinSet::new();
        for i in 0..LOCKS {
            let lock = keeper.lock(format!("{connections}/{i}"));
            tasks.spawn(async move { lock.acquire().await.expect("granted") });
        }
        let guards = tasks.join_all().await;
        let taking = commits(&server) - before - 1;
        assert!(taking < LOCKS / 3, "{taking} commits for {LOCKS} locks");
        // For calls, for renewals, for events.
        let open = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'app{connections}'");
        testkit::eventually(SOON, "it has what it needs, and no more", || server.sql(&open) == all);

        let first = || server.sql("SELECT min(expires) FROM lockkeeper.lock WHERE holder IS NOT NULL");
        let last = server.sql("SELECT max(expires) FROM lockkeeper.lock");
        let before = commits(&server);
        testkit::eventually(SOON, "all are renewed", || first() > last);
        let renewing = commits(&server) - before - 1;
        assert!(renewing < LOCKS / 10, "{renewing} commits for {LOCKS} renewals");
        assert_eq!(server.sql(&open), all);
        drop(guards);
        assert_eq!(keeper.close(SOON).await.expect("closed").releasing, 0);
    }
}

/// Every `NOTIFY` makes commits wait for one another, so there must be none without need.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_hand_over_notifies_and_one_that_is_lost_is_made_up_for() {
    let server = PostgresServer::new();
    // Counts what is published, and loses it as long as the table is there.
    server.sql(
        "CREATE SCHEMA spy; CREATE TABLE spy.notes (channel text, payload text);
         CREATE FUNCTION spy.pg_notify(channel text, payload text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO spy.notes VALUES (channel, payload);
             IF to_regclass('spy.deaf') IS NULL THEN PERFORM pg_catalog.pg_notify(channel, payload); END IF;
         END $$;
         ALTER ROLE postgres SET search_path = spy, pg_catalog",
    );
    let ttl = Duration::from_secs(15);
    let [a, b] = [(); 2].map(|()| Keeper::builder().ttl(ttl).connect(server.url()));
    let (a, b) = (a.await.expect("connected"), b.await.expect("connected"));
    let notes = || server.sql("SELECT count(*) FROM spy.notes");
    for _ in 0..5 {
        taken(&a, "x").await.release().await.expect("released");
        drop(a.lock("shared").shared().acquire().await.expect("granted"));
    }
    let held = taken(&a, "x").await;
    assert!(b.lock("x").try_acquire().await.expect("answered").is_none());
    b.lock("x").wait(Duration::from_millis(50)).acquire().await.map(drop).expect_err("busy");
    // A call that is given up late leaves a tombstone too.
    let line = || server.sql("SELECT count(*) FROM lockkeeper.claim WHERE kind = 'waiter'");
    testkit::eventually(SOON, "the line is empty", || line() == "0");
    held.release().await.expect("released");
    assert_eq!(notes(), "0", "no grant was handed over");

    for (round, deaf) in [(1, false), (2, false), (3, true)] {
        if deaf {
            server.sql("CREATE TABLE spy.deaf ()");
        }
        let held = taken(&a, "x").await;
        let waiting = tokio::spawn({
            let b = b.clone();
            async move { taken(&b, "x").await }
        });
        testkit::eventually(SOON, "a claim is in line", || line() == "1");
        held.release().await.expect("released");
        let began = Instant::now();
        let guard = waiting.await.expect("handed over");
        // A third of the lease in line, and what a busy machine adds; it would have looked again after the whole of it.
        assert!(began.elapsed() < ttl / 3 * 2, "{:?}", began.elapsed());
        assert_eq!(notes(), round.to_string());
        let told = server.sql(&format!("SELECT count(*) FROM spy.notes WHERE payload LIKE '%:{}:%'", guard.token()));
        assert_eq!(told, "1", "with the token");
        guard.release().await.expect("released");
    }
    assert_eq!(notes(), "3");
}
