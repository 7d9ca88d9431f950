//! Entries that go wrong, or are made in ways the page does not show: none of them may lower a fence.

use crate::sqlite::Sqlite;
use crate::{Database, RUNTIME, Refused, fresh, mariadb, pass, postgres, settled, shared_pass};
use lockkeeper::fence::{self, FenceError, Refusal, is_stale};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use std::sync::Barrier;
use std::sync::atomic::{AtomicI64, Ordering};
use testkit::{PostgresServer, RedisServer};
use tokio_postgres::NoTls;

/// No holder has entered before, and two enter at the same moment, many times over.
pub(crate) fn first_entries(database: &dyn Database) {
    const ROUNDS: usize = 30;
    let resources: Vec<String> = (0..ROUNDS).map(|_| fresh("first")).collect();
    resources.iter().for_each(|resource| database.set(resource, 0));
    let accepted: Vec<AtomicI64> = (0..ROUNDS).map(|_| AtomicI64::new(0)).collect();
    let together = Barrier::new(2);
    std::thread::scope(|scope| {
        for token in [33, 34] {
            let (resources, accepted, together) = (&resources, &accepted, &together);
            scope.spawn(move || {
                let mut session = database.session();
                for (resource, accepted) in resources.iter().zip(accepted) {
                    together.wait();
                    let done = settled(|| {
                        session.transaction(&mut |tx| {
                            tx.enter(resource, &pass(token))?;
                            let value = tx.read(resource)?;
                            tx.write(resource, value + 1)
                        })
                    });
                    match done {
                        Ok(()) => drop(accepted.fetch_add(1, Ordering::SeqCst)),
                        Err(refused) => assert!(refused.is_stale() && token == 33, "{token}: {refused:?}"),
                    }
                }
            });
        }
    });
    for (resource, accepted) in resources.iter().zip(&accepted) {
        assert_eq!(database.get(resource), accepted.load(Ordering::SeqCst), "{resource}");
        let late = settled(|| database.session().transaction(&mut |tx| tx.enter(resource, &pass(33))));
        assert!(late.is_err_and(|refused| refused.is_stale()), "{resource}");
    }
}

/// A rolled-back entry leaves no token; a refused one changes nothing.
pub(crate) fn rolled_back(database: &dyn Database) {
    let resource = fresh("undone");
    let mut session = database.session();
    let enter =
        |token: u64, store: Option<&'static str>| store.map_or_else(|| pass(token), |store| pass(token).store(store));
    for before in [None, Some(20)] {
        if let Some(token) = before {
            settled(|| session.transaction(&mut |tx| tx.enter(&resource, &enter(token, Some("redis"))))).unwrap();
        }
        let undone = session.transaction(&mut |tx| {
            tx.enter(&resource, &enter(40, None))?;
            Err(Refused::Conflict)
        });
        assert_eq!(undone, Err(Refused::Conflict));
    }
    for (token, store, refusal) in [(19, None, Refusal::Stale), (50, Some("etcd"), Refusal::OtherStore)] {
        let refused = settled(|| session.transaction(&mut |tx| tx.enter(&resource, &enter(token, store))));
        assert!(matches!(&refused, Err(Refused::Fence { refusal: r, .. }) if *r == refusal), "{token}: {refused:?}");
    }
    settled(|| session.transaction(&mut |tx| tx.enter(&resource, &enter(21, None)))).unwrap();
}

/// Entries without a transaction, from many connections: they protect no write, but the fence must still only rise.
#[test]
fn entries_in_autocommit_never_lower_a_mariadb_fence() {
    let server = mariadb::server();
    let resource = fresh("autocommit");
    let highest = AtomicI64::new(0);
    let together = Barrier::new(6);
    std::thread::scope(|scope| {
        for worker in 0..6 {
            let (url, resource, highest, together) = (server.url(), &resource, &highest, &together);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(worker);
                let mut connection = RUNTIME.block_on(Conn::from_url(url)).unwrap();
                together.wait();
                for round in 1..=150_i64 {
                    let token = round * 3 + random.i64(0..12);
                    let enter = fence::mysql::ENTER_SQL;
                    let entered = connection.exec_drop(enter, (resource, token, worker.to_string(), None::<&str>));
                    match RUNTIME.block_on(entered) {
                        Ok(()) => drop(highest.fetch_max(token, Ordering::SeqCst)),
                        Err(mysql_async::Error::Server(e)) => assert_eq!(e.state, "45LK1", "{e:?}"),
                        Err(error) => panic!("{error}"),
                    }
                    let seen = format!("SELECT token FROM lockkeeper_fences WHERE resource = '{resource}'");
                    let known = highest.load(Ordering::SeqCst);
                    let seen: Option<i64> = RUNTIME.block_on(connection.query_first(seen)).unwrap();
                    assert!(seen >= Some(known), "the fence has fallen to {seen:?}; {known} had entered");
                }
            });
        }
    });
}

/// Numbers that are not tokens, as a program in another language may send them.
#[test]
fn what_is_no_token_is_refused() {
    let (postgres, mariadb) = (postgres::server(), mariadb::server());
    for token in ["NULL", "'0'", "'-1'", "'9007199254740992'", "'9223372036854775807'", "'-9223372036854775808'"] {
        for call in [
            format!("lockkeeper_fence('x', {token}, NULL, NULL)"),
            format!("lockkeeper_fence_shared('x', {token}, NULL)"),
        ] {
            let mut connection = RUNTIME.block_on(Conn::from_url(mariadb.url())).unwrap();
            let refused = RUNTIME.block_on(connection.query_drop(format!("CALL {call}")));
            assert!(
                matches!(&refused, Err(mysql_async::Error::Server(e)) if e.state == "45LK3"),
                "{call}: {refused:?}"
            );
            let refused = postgres.try_sql(&format!("SELECT {call}"));
            assert!(refused.as_ref().is_err_and(|e| e.contains("LK003")), "{call}: {refused:?}");
        }
    }
}

/// An application may install the fence at every start of every instance.
#[test]
fn many_install_at_once_on_postgres() {
    let server = PostgresServer::new();
    for round in 0..5 {
        server.sql(&format!("CREATE DATABASE round{round}"));
        let url = format!("{}round{round}", server.url().trim_end_matches("postgres"));
        RUNTIME.block_on(async {
            let mut installs = tokio::task::JoinSet::new();
            for _ in 0..6 {
                let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
                RUNTIME.spawn(connection);
                installs.spawn(async move {
                    client.batch_execute(fence::postgres::INSTALL_SQL).await.map_err(|e| format!("{e:?}"))
                });
            }
            for installed in installs.join_all().await {
                installed.unwrap();
            }
        });
    }
}

/// The functions run with the caller's rights, and a refusal by the database is not a refusal by the fence.
#[test]
fn without_rights_a_role_cannot_enter_postgres() {
    let server = postgres::server();
    server.sql("CREATE ROLE stranger LOGIN");
    let url = server.url().replace("postgres@", "stranger@");
    RUNTIME.block_on(async {
        let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        RUNTIME.spawn(connection);
        for shared in [false, true] {
            let tx = client.transaction().await.unwrap();
            let entered = if shared {
                fence::postgres::enter_shared(&tx, "x", &shared_pass(5)).await
            } else {
                fence::postgres::enter(&tx, "x", &pass(5)).await
            };
            let denied = entered.unwrap_err();
            let FenceError::Driver(error) = &denied else { panic!("{denied:?}") };
            assert_eq!(error.code().map(|c| c.code()), Some("42501"), "{denied:?}");
            assert!(!denied.is_stale() && !is_stale(&denied));
        }
    });
}

/// The entry of a transaction prepared for two-phase commit keeps its lock until the transaction is decided.
#[test]
fn a_prepared_transaction_keeps_the_fence_of_postgres() {
    let server = PostgresServer::with(&["max_prepared_transactions=2"]);
    server.sql(&format!("SET client_min_messages = warning; {}", fence::postgres::INSTALL_SQL));
    let enter =
        |token: u64| server.try_sql(&format!("SET lock_timeout = '100ms'; SELECT lockkeeper_fence('x', {token})"));
    for (end, then) in [("COMMIT", false), ("ROLLBACK", true)] {
        server.sql("DELETE FROM lockkeeper_fences; SELECT lockkeeper_fence('x', 32)");
        server.sql("BEGIN; SELECT lockkeeper_fence('x', 34); PREPARE TRANSACTION 'two'");
        let waits = enter(35).unwrap_err();
        assert!(waits.contains("lock timeout"), "{waits}");
        server.sql(&format!("{end} PREPARED 'two'"));
        assert_eq!(enter(33).is_ok(), then, "{end}");
    }
}

#[derive(Debug)]
struct Wrapped(Box<dyn std::error::Error + Send + Sync>);

impl std::fmt::Display for Wrapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the order was not settled")
    }
}

impl std::error::Error for Wrapped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

/// Errors of the typed entry, of the plain SQL and of the library, and each of them wrapped twice.
fn recognised(
    by_entry: impl std::error::Error + Send + Sync + 'static,
    by_text: impl std::error::Error + Send + Sync + 'static,
) {
    let wrapped = |error| Wrapped(Box::new(Wrapped(error)));
    assert!(is_stale(&by_entry) && is_stale(&by_text), "{by_entry:?} {by_text:?}");
    assert!(is_stale(&wrapped(Box::new(by_entry))) && is_stale(&wrapped(Box::new(by_text))));
}

#[test]
fn a_stale_token_is_recognised_through_every_driver() {
    let (postgres, mariadb, redis) = (postgres::server(), mariadb::server(), RedisServer::new());
    let resource = &fresh("wrapped");
    RUNTIME.block_on(async {
        let (mut client, connection) = tokio_postgres::connect(&postgres.url(), NoTls).await.unwrap();
        RUNTIME.spawn(connection);
        let none = None::<&str>;
        client.execute(fence::postgres::ENTER_SQL, &[resource, &34_i64, &none, &none]).await.unwrap();
        let by_text = client.execute(fence::postgres::ENTER_SQL, &[resource, &33_i64, &none, &none]).await.unwrap_err();
        let tx = client.transaction().await.unwrap();
        let by_entry = fence::postgres::enter(&tx, resource, &pass(33)).await.unwrap_err();
        recognised(by_entry, by_text);

        let mut connection = Conn::from_url(mariadb.url()).await.unwrap();
        connection.exec_drop(fence::mysql::ENTER_SQL, (resource, 34, none, none)).await.unwrap();
        let by_text = connection.exec_drop(fence::mysql::ENTER_SQL, (resource, 33, none, none)).await.unwrap_err();
        let mut tx = connection.start_transaction(mysql_async::TxOpts::new()).await.unwrap();
        let by_entry = fence::mysql::enter(&mut tx, resource, &pass(33)).await.unwrap_err();
        recognised(by_entry, by_text);
        tx.rollback().await.unwrap();

        let client = redis::Client::open(redis.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        fence::redis::enter(&mut connection, resource, &pass(34)).await.unwrap();
        let by_entry = fence::redis::enter(&mut connection, resource, &pass(33)).await.unwrap_err();
        let mut plain = redis::cmd("EVAL");
        plain.arg(fence::redis::SCRIPT).arg(2).arg(resource).arg(fence::redis::fence_key(resource.as_bytes()));
        plain.arg("enter").arg(33).arg("").arg("").arg(1000);
        let by_text = plain.query_async::<Option<String>>(&mut connection).await.unwrap_err();
        recognised(by_entry, by_text);
    });
    let database = Sqlite::new("wal");
    let mut connection = database.connect();
    connection.execute(fence::sqlite::ENTER_SQL, (resource, 34, None::<&str>, None::<&str>)).unwrap();
    let by_text = connection.execute(fence::sqlite::ENTER_SQL, (resource, 33, None::<&str>, None::<&str>)).unwrap_err();
    let tx = connection.transaction().unwrap();
    let by_entry = fence::sqlite::enter(&tx, resource, &pass(33)).unwrap_err();
    recognised(by_entry, by_text);
    drop(tx);
    // Other errors of a database are not stale tokens.
    assert!(!is_stale(&connection.execute("SELECT nothing", ()).unwrap_err()));
    assert!(!is_stale(&Wrapped("LK001 in the words only".into())));
}

/// Tokens of two locks do not compare, for readers either.
#[test]
fn a_fence_in_this_process_refuses_readers_of_another_lock() {
    RUNTIME.block_on(async {
        let keeper = lockkeeper::Keeper::connect("memory:").await.unwrap();
        let stock = lockkeeper::Fence::new("stock", 5).unwrap();
        let guard = keeper.lock("stock").acquire().await.unwrap();
        stock.enter(&guard.pass().unwrap(), |n| *n += 1).unwrap();
        guard.release().await.unwrap();
        let reader = keeper.lock("stock").shared().acquire().await.unwrap();
        assert_eq!(stock.enter_shared(&reader.shared_pass().unwrap(), |n| *n).unwrap(), 6);
        let stranger = keeper.lock("other").shared().acquire().await.unwrap();
        let refused = stock.enter_shared(&stranger.shared_pass().unwrap(), |n| *n).unwrap_err();
        assert_eq!(refused.kind(), lockkeeper::ErrorKind::InvalidConfig, "{refused}");
        let early = reader.shared_pass().unwrap();
        reader.release().await.unwrap();
        let writer = keeper.lock("stock").acquire().await.unwrap();
        stock.enter(&writer.pass().unwrap(), |n| *n += 1).unwrap();
        assert!(is_stale(&stock.enter_shared(&early, |n| *n).unwrap_err()));
    });
}
