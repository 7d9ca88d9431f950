//! Advisory mode of the PostgreSQL store and what happens to sessions.

use crate::keepers::{keeper, refusal, taken};
use lockkeeper::clock::system_now;
use lockkeeper::store::{Attempt, Claim, Store};
use lockkeeper::stores::postgres::AdvisoryStore;
use lockkeeper::transaction::postgres::{Key, KeyRule};
use lockkeeper::{ErrorKind, HolderId, Keeper, LockName, LossReason};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::{Network, PgBouncer, PostgresServer, SOON};
use tokio_postgres::{Client, NoTls};

const TTL: Duration = Duration::from_secs(5);

fn url(server: &PostgresServer, more: &str) -> String {
    format!("{}?mode=advisory{more}", server.url())
}

/// A session of another program.
async fn other(server: &PostgresServer) -> Client {
    let settings = format!("{}?application_name=other", server.url());
    let (client, connection) = tokio_postgres::connect(&settings, NoTls).await.expect("connected");
    tokio::spawn(connection);
    client
}

fn sessions(server: &PostgresServer) -> String {
    server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockkeeper'")
}

#[tokio::test]
async fn one_connection_holds_everything() {
    let server = PostgresServer::new();
    let keeper = keeper(&url(&server, ""), TTL).await;
    let mut guards = Vec::new();
    for i in 0..300 {
        guards.push(taken(&keeper, &format!("x{i}")).await);
    }
    testkit::eventually(SOON, "the connection of the beginning is closed", || sessions(&server) == "1");
    // Each lock, and the session's own.
    assert_eq!(server.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), "301");
    for guard in guards {
        guard.release().await.expect("released");
    }
    assert_eq!(server.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), "1");
    assert_eq!(keeper.close(SOON).await.map(|left| (left.held, left.releasing)).expect("closed"), (0, 0));
    testkit::eventually(SOON, "the session ends with its keeper", || sessions(&server) == "0");
}

#[tokio::test]
async fn a_session_that_ends_loses_everything_at_once() {
    let mut server = PostgresServer::new();
    let keeper = Keeper::builder().ttl(Duration::from_secs(600)).connect(url(&server, "")).await.expect("connected");
    for round in 0..2 {
        let (x, y) = (taken(&keeper, "x").await, taken(&keeper, "y").await);
        let token = x.token();
        if round == 0 {
            server.cut();
        } else {
            server.kill();
        }
        // Far before the next renewal.
        for guard in [&x, &y] {
            let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("told at once");
            assert_eq!(lost, LossReason::SessionEnded);
        }
        if round == 1 {
            server.start();
        }
        let next = taken(&keeper, "x").await;
        assert!(next.token() > token);
        drop((x, y));
        next.release().await.expect("released");
    }
}

#[tokio::test]
async fn two_names_with_one_key_exclude_each_other() {
    let server = PostgresServer::new();
    let (a, b) = (keeper(&url(&server, "&key=tooz"), TTL).await, keeper(&url(&server, "&key=tooz"), TTL).await);
    // 65,536 keys: two of a few hundred names meet.
    let mut seen: HashMap<Key, String> = HashMap::new();
    let (one, two) = (0..)
        .find_map(|i| {
            let name = format!("name-{i}");
            let before = seen.insert(KeyRule::Tooz.key(&name).expect("a key"), name.clone());
            before.map(|before| (before, name))
        })
        .expect("there are only so many keys");
    let guard = taken(&a, &one).await;
    for keeper in [&a, &b] {
        assert!(keeper.lock(&two).try_acquire().await.expect("answered").is_none(), "the key is taken");
        assert!(keeper.lock(&two).shared().try_acquire().await.expect("answered").is_none(), "the key is taken");
    }
    guard.release().await.expect("released");
    let guard = taken(&a, &two).await;
    assert!(a.lock(&one).try_acquire().await.expect("answered").is_none(), "the key is taken");
    // The earlier name is not shown as held by who holds the later one.
    let names: Vec<_> =
        b.list("", None).await.expect("listed").records.into_iter().map(|r| r.name.to_string()).collect();
    assert_eq!(names, [two.as_str()]);
    let token = guard.token();
    guard.release().await.expect("released");
    assert!(taken(&b, &two).await.token() > token);
}

#[tokio::test]
async fn readers_of_one_keeper_are_one_to_the_server() {
    let server = PostgresServer::new();
    let (a, b) = (keeper(&url(&server, ""), TTL).await, keeper(&url(&server, ""), TTL).await);
    let read =
        async |keeper: &Keeper| keeper.lock("x").shared().try_acquire().await.expect("answered").expect("shared");
    let (first, second, third) = (read(&a).await, read(&a).await, read(&b).await);
    first.release().await.expect("released");
    third.release().await.expect("released");
    for keeper in [&a, &b] {
        assert!(keeper.lock("x").try_acquire().await.expect("answered").is_none(), "one reader is left");
    }
    assert_eq!(b.inspect("x").await.expect("inspected").expect("held").holders.len(), 1);
    second.release().await.expect("released");
    assert!(a.lock("x").try_acquire().await.expect("answered").is_some());
}

#[tokio::test]
async fn a_pooler_of_transactions_is_refused() {
    // A call may take a third of its TTL: here that is also the time to open two connections through the pooler.
    const PATIENT: Duration = Duration::from_secs(60);
    let server = PostgresServer::new();
    let bouncer = PgBouncer::new(&server, 3);
    let url = format!("{}?mode=advisory", bouncer.url());
    for _ in 0..3 {
        let error = refusal(&keeper(&url, PATIENT).await, "x").await;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("a pooler gives each transaction another server"), "{error}");
    }
    let error = refusal(&keeper(&format!("{}&pooled=yes", url), PATIENT).await, "x").await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    // Not seen from outside to be direct, but it is: a socket has no port.
    let socket = server.dir().path().display().to_string().replace('/', "%2F");
    let direct = keeper(&format!("postgres://postgres@{socket}:{}/postgres?mode=advisory", server.port()), TTL).await;
    taken(&direct, "x").await.release().await.expect("released");
}

/// A process that is stopped keeps its connection: the server ends it all the same (PostgreSQL 14 or newer).
#[tokio::test]
async fn a_holder_that_says_nothing_is_ended_by_the_server() {
    let server = PostgresServer::new();
    let (a, b) = (
        AdvisoryStore::connect(&url(&server, "")).await.expect("connected"),
        AdvisoryStore::connect(&url(&server, "")).await.expect("connected"),
    );
    let ttl = Duration::from_millis(300);
    let claim = |holder| {
        let name = LockName::new("x").expect("a name");
        Claim::new(name, HolderId::from_u128(holder), ttl, system_now(), Arc::default())
    };
    let began = Instant::now();
    assert!(matches!(a.try_acquire(&[claim(1)]).await[..], [Ok(Attempt::Granted(_))]));
    loop {
        match &b.try_acquire(&[claim(2)]).await[..] {
            [Ok(Attempt::Granted(_))] => break,
            answer => assert!(matches!(answer, [Ok(Attempt::Held(_))]), "{answer:?}"),
        }
        assert!(began.elapsed() < SOON, "the server ends the session");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(began.elapsed() >= ttl, "not before its lease");
    // A session that holds nothing is left alone, however silent.
    assert!(matches!(b.release(&[claim(2)]).await[..], [Ok(_)]));
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(server.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), "1");
}

/// Makes a server say that it is PostgreSQL 13, which does not end idle sessions: then the store does not ask it to.
fn pretend_older(server: &PostgresServer) {
    server.sql(
        "CREATE SCHEMA older; CREATE FUNCTION older.current_setting(text) RETURNS text LANGUAGE sql STABLE AS \
         $$ SELECT CASE $1 WHEN 'server_version_num' THEN '130000' ELSE pg_catalog.current_setting($1) END $$; \
         ALTER ROLE postgres SET search_path = older, pg_catalog",
    );
}

/// What is left to an older server: it waits for a process that is stopped, as the page says.
#[tokio::test]
async fn an_older_server_waits_for_a_holder_that_says_nothing() {
    let server = PostgresServer::new();
    pretend_older(&server);
    let (a, b) = (
        AdvisoryStore::connect(&url(&server, "")).await.expect("connected"),
        AdvisoryStore::connect(&url(&server, "")).await.expect("connected"),
    );
    let claim = |holder| {
        let (name, ttl) = (LockName::new("x").expect("a name"), Duration::from_millis(300));
        Claim::new(name, HolderId::from_u128(holder), ttl, system_now(), Arc::default())
    };
    assert!(matches!(a.try_acquire(&[claim(1)]).await[..], [Ok(Attempt::Granted(_))]));
    // Newer ones have ended it by now.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(matches!(b.try_acquire(&[claim(2)]).await[..], [Ok(Attempt::Held(_))]));
}

/// No FIN, no RST, nothing: either side must find out by itself, and the holder first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_packets_are_dropped_has_lost_before_another_is_let_in() {
    packets_are_dropped("a_holder_whose_packets_are_dropped_has_lost_before_another_is_let_in", |_| {}).await;
}

/// Dropped packets are noticed by TCP alone, as on servers that do not end idle sessions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_packets_are_dropped_is_found_out_by_an_older_server_too() {
    packets_are_dropped("a_holder_whose_packets_are_dropped_is_found_out_by_an_older_server_too", pretend_older).await;
}

async fn packets_are_dropped(test: &str, prepare: fn(&PostgresServer)) {
    let Some(network) = Network::own(&format!("advisory::{test}")) else { return };
    // Longer than the silence after which the server would look for its peer by itself.
    let ttl = Duration::from_secs(15);
    let server = PostgresServer::new();
    prepare(&server);
    // Unix sockets have no packets that could be dropped.
    let socket = server.dir().path().display().to_string().replace('/', "%2F");
    let near = format!("postgres://postgres@{socket}:{}/postgres?mode=advisory", server.port());
    let (far, near) =
        (Keeper::builder().ttl(ttl).connect(url(&server, "")).await, Keeper::builder().ttl(ttl).connect(near).await);
    let (far, near) = (far.expect("connected"), near.expect("connected"));
    let held = taken(&far, "x").await;
    network.cut();
    let cut = Instant::now();
    let waiting = tokio::spawn({
        let holder = held.lease().clone();
        async move {
            let guard = near.lock("x").wait(ttl * 4).acquire().await.expect("granted");
            // By the holder's own clock at the moment of the grant: when a task is told of a loss says nothing.
            (holder.remaining(), cut.elapsed(), guard)
        }
    });
    assert!(held.remaining() <= ttl, "a guard is lost at its deadline");
    held.lost().await;
    let (believed, granted, guard) = waiting.await.expect("let in");
    assert_eq!(believed, Duration::ZERO, "both believe that they hold it");
    // 15 s after the TTL are promised; a busy machine may need as long again.
    assert!(granted <= ttl + Duration::from_secs(30), "{granted:?}");
    assert!(guard.token() > held.token());
    network.mend();
    drop((held, guard));
    // Its session is opened anew; a call that comes before is an outage.
    let end = Instant::now() + SOON;
    while let Err(error) = far.lock("x").wait(SOON).acquire().await {
        assert!(error.kind() == ErrorKind::Unavailable && Instant::now() < end, "{error}");
    }
}

#[tokio::test]
async fn a_statement_that_fails_leaves_no_lock_behind() {
    let server = PostgresServer::new();
    let keeper = Keeper::builder().ttl(Duration::from_secs(60)).connect(url(&server, "")).await.expect("connected");
    taken(&keeper, "x").await.release().await.expect("released");
    let kept = taken(&keeper, "kept").await;
    // Another client has locked the row of its token: the lock is granted before the statement fails.
    let mut other = other(&server).await;
    let transaction = other.transaction().await.expect("begun");
    transaction.batch_execute("SELECT * FROM lockkeeper.advisory WHERE name = 'x' FOR UPDATE").await.expect("locked");
    let error = refusal(&keeper, "x").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // The session's own, and the one that was held before.
    assert_eq!(server.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), "2");
    transaction.rollback().await.expect("rolled back");
    drop(taken(&keeper, "x").await);
    kept.check().expect("still held");
}

#[tokio::test]
async fn a_holder_that_does_not_let_go_is_named() {
    let server = PostgresServer::new();
    let keeper = keeper(&url(&server, ""), TTL).await;
    drop(taken(&keeper, "y").await);
    // As a keeper that is frozen: it holds, and does not listen.
    let frozen = other(&server).await;
    let Key::Big(key) = KeyRule::Native.key("x").expect("a key") else { panic!("native keys are big") };
    let take = format!(
        "SELECT pg_advisory_lock(77); SELECT * FROM lockkeeper.advisory_take(ARRAY['x'::bytea], ARRAY[1::smallint], \
         ARRAY[{key}], ARRAY[false], ARRAY[false], ARRAY[gen_random_uuid()], ARRAY['h'::bytea], ARRAY[1::bigint], \
         ARRAY['l'::bytea], gen_random_uuid(), 77)"
    );
    frozen.batch_execute(&take).await.expect("taken");
    let pid: i32 = frozen.query_one("SELECT pg_backend_pid()", &[]).await.expect("asked").get(0);
    let record = keeper.inspect("x").await.expect("inspected").expect("held");
    let token = record.holders[0].token.expect("a token");
    let error = keeper.break_lock("x", token).await.expect_err("it does not let go");
    assert!(error.to_string().contains(&format!("pg_terminate_backend({pid})")), "{error}");
    server.sql(&format!("SELECT pg_terminate_backend({pid})"));
    assert!(taken(&keeper, "x").await.token() > token);
}

#[tokio::test]
async fn others_are_shown_as_the_server_knows_them() {
    let server = PostgresServer::new();
    let keeper = keeper(&url(&server, "&key=raw"), TTL).await;
    let (holder, waiter) = (other(&server).await, other(&server).await);
    holder.batch_execute("SELECT pg_advisory_lock(4711)").await.expect("taken");
    let waiting = tokio::spawn(async move { waiter.batch_execute("SELECT pg_advisory_lock(4711)").await });
    let record = loop {
        let record = keeper.inspect("4711").await.expect("inspected").expect("held");
        if record.waiting == 1 {
            break record;
        }
    };
    assert_eq!((record.holders.len(), &record.holders[0].note), (1, &None));
    let remark = record.remark.expect("a remark");
    assert!(remark.contains("(4711)") && remark.contains("'other' of postgres"), "{remark}");
    assert!(keeper.list("", None).await.expect("listed").records.is_empty(), "it has no name");
    let error = refusal(&keeper, "job").await;
    assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
    let error = keeper.lock("4711").permits(2).try_acquire().await.map(|g| g.is_some()).expect_err("no permits");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    waiting.abort();
}

/// The session lives on the keeper's own thread, not on a runtime of its callers.
#[test]
fn a_lock_outlives_the_runtime_it_was_taken_on() {
    let server = PostgresServer::new();
    let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (keeper, guard) = run().block_on(async {
        let keeper = keeper(&url(&server, ""), TTL).await;
        let guard = taken(&keeper, "x").await;
        (keeper, guard)
    });
    std::thread::sleep(Duration::from_millis(300));
    guard.check().expect("still held");
    let second = run().block_on(async {
        assert!(keeper.lock("x").try_acquire().await.expect("answered").is_none());
        guard.release().await.expect("released");
        taken(&keeper, "x").await
    });
    second.check().expect("held");
}

#[tokio::test]
async fn a_native_key_is_what_the_server_computes() {
    let server = PostgresServer::new();
    for name in ["x", "orders/42", "Gerät", r"a\b"] {
        let text = format!(
            "SELECT ('x' || encode(substr(sha256(convert_to('{name}', 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint"
        );
        assert_eq!(KeyRule::Native.key(name).expect("a key").to_string(), server.sql(&text), "{name}");
    }
}

/// Another client has written to the row of a token: the claim fails, others of the same moment do not, and nothing stays held.
#[tokio::test]
async fn tokens_that_have_run_out_are_an_error_of_their_lock() {
    let server = PostgresServer::new();
    let store = AdvisoryStore::connect(&url(&server, "")).await.expect("connected");
    let claim = |name: &str, holder| {
        let name = LockName::new(name).expect("a name");
        Claim::new(name, HolderId::from_u128(holder), TTL, system_now(), Arc::default())
    };
    let last = "UPDATE lockkeeper.advisory SET token = 9007199254740991 WHERE name = 'x'";
    assert!(matches!(store.try_acquire(&[claim("x", 1)]).await[..], [Ok(Attempt::Granted(_))]));
    assert!(matches!(store.release(&[claim("x", 1)]).await[..], [Ok(_)]));
    server.sql(last);
    for batch in [vec![claim("x", 2)], vec![claim("w", 3), claim("x", 4), claim("y", 5)]] {
        let answers = store.try_acquire(&batch).await;
        for (claim, answer) in batch.iter().zip(answers) {
            match answer {
                Ok(Attempt::Granted(_)) if claim.name.as_bytes() != b"x" => {}
                Err(error) if claim.name.as_bytes() == b"x" => {
                    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}")
                }
                other => panic!("{}: {other:?}", claim.name),
            }
        }
    }
    // The session's own, w and y.
    assert_eq!(server.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), "3");
}
