//! Locks of the caller's own transaction, on a real server.

use lockkeeper::transaction::postgres::{
    FOR_UPDATE, FOR_UPDATE_NOWAIT, KeyRule, NextRow, claim_next, is_lock_not_available, lock, lock_shared, lock_within,
    try_lock, try_lock_shared,
};
use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Duration;
use testkit::{PgBouncer, PostgresServer};
use tokio_postgres::{Client, IsolationLevel, NoTls};

static SERVER: LazyLock<&'static PostgresServer> = LazyLock::new(|| PostgresServer::new().share());

async fn client() -> Client {
    client_of(&SERVER.url()).await
}

async fn client_of(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connected");
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn one_transaction_has_the_lock_until_it_ends() {
    let (mut a, mut b) = (client().await, client().await);
    for (rule, name) in
        [(KeyRule::Native, "x"), (KeyRule::Madelson, "x"), (KeyRule::Raw, "-7,-8"), (KeyRule::Sqlx, "x")]
            .into_iter()
            // The ends of both spaces, where SQL reads the digits without their sign as a larger type.
            .chain(["-9223372036854775808", "9223372036854775807"].map(|key| (KeyRule::Raw, key)))
            .chain(["-2147483648,-2147483648", "2147483647,-2147483648"].map(|key| (KeyRule::Raw, key)))
    {
        let key = rule.key(name).expect("a key");
        let first = a.transaction().await.expect("begun");
        assert!(try_lock(&first, key).await.expect("asked"));
        let second = b.transaction().await.expect("begun");
        assert!(!try_lock(&second, key).await.expect("asked"), "{rule:?}: held");
        assert!(!try_lock_shared(&second, key).await.expect("asked"), "{rule:?}: held");
        first.commit().await.expect("committed");
        assert!(try_lock_shared(&second, key).await.expect("asked"), "{rule:?}: free");
        let first = a.transaction().await.expect("begun");
        lock_shared(&first, key).await.expect("shared");
        assert!(!try_lock(&first, key).await.expect("asked"), "{rule:?}: shared with another");
        second.rollback().await.expect("rolled back");
        lock(&first, key).await.expect("free");
        first.rollback().await.expect("rolled back");
    }
}

#[tokio::test]
async fn a_wait_with_a_limit_leaves_the_transaction_usable() {
    let (mut a, mut b) = (client().await, client().await);
    let key = KeyRule::Native.key("limit").expect("a key");
    let first = a.transaction().await.expect("begun");
    lock(&first, key).await.expect("free");
    let mut second = b.transaction().await.expect("begun");
    second.batch_execute("SET LOCAL lock_timeout = '7s'").await.expect("set");
    assert!(!lock_within(&mut second, key, Duration::from_millis(50)).await.expect("asked"));
    first.commit().await.expect("committed");
    assert!(lock_within(&mut second, key, Duration::from_secs(20)).await.expect("asked"), "free");
    let row = second.query_one("SHOW lock_timeout", &[]).await.expect("usable");
    assert_eq!(row.get::<_, &str>(0), "7s");
    let third = a.transaction().await.expect("begun");
    assert!(!try_lock(&third, key).await.expect("asked"), "the outer transaction has it");
    drop(third);
    second.commit().await.expect("committed");
}

#[tokio::test]
async fn a_row_of_another_transaction_is_refused_at_once() {
    let (mut a, mut b) = (client().await, client().await);
    a.batch_execute("CREATE TABLE accounts (id int PRIMARY KEY); INSERT INTO accounts VALUES (1), (2)")
        .await
        .expect("made");
    let first = a.transaction().await.expect("begun");
    first.query_one(&format!("SELECT id FROM accounts WHERE id = 1 {FOR_UPDATE}"), &[]).await.expect("free");
    let second = b.transaction().await.expect("begun");
    let text = format!("SELECT id FROM accounts WHERE id = $1 {FOR_UPDATE_NOWAIT}");
    second.query_one(&text, &[&2]).await.expect("free");
    let error = second.query_one(&text, &[&1]).await.expect_err("held");
    assert!(error.code().is_some_and(|code| is_lock_not_available(code.code())), "{error}");
}

/// Eight workers, 200 rows: each row is done once, whatever happens to the transactions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_of_a_list_is_claimed_once() {
    const NEXT: NextRow = NextRow::of("jobs").columns("id").only("done IS NULL AND id >= $1").order("id");
    let setup = client().await;
    setup.batch_execute("CREATE TABLE jobs (id int PRIMARY KEY, done int)").await.expect("made");
    setup.batch_execute("INSERT INTO jobs SELECT i FROM generate_series(1, 200) AS i").await.expect("filled");
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..8 {
        workers.spawn(async move {
            let (mut client, mut done) = (client().await, Vec::new());
            loop {
                let transaction = client.transaction().await.expect("begun");
                let rows = claim_next(&transaction, &NEXT, &[&1]).await.expect("asked");
                let Some(id) = rows.first().map(|row| row.get::<_, i32>(0)) else { break };
                if fastrand::u8(..) < 40 {
                    // Gives up: another worker does it.
                    transaction.rollback().await.expect("rolled back");
                    continue;
                }
                let changed = transaction.execute("UPDATE jobs SET done = $1 WHERE id = $2", &[&worker, &id]).await;
                assert_eq!(changed.expect("done"), 1);
                transaction.commit().await.expect("committed");
                done.push(id);
            }
            done
        });
    }
    let done: Vec<i32> = workers.join_all().await.concat();
    // A worker that found the last rows taken has left; what was given up then is still there.
    let left: i64 = setup.query_one("SELECT count(*) FROM jobs WHERE done IS NULL", &[]).await.expect("asked").get(0);
    let distinct: BTreeSet<i32> = done.iter().copied().collect();
    assert_eq!((done.len(), done.len() + usize::try_from(left).expect("a count")), (distinct.len(), 200));
}

/// Through a pooler that gives each transaction another server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_it_works_behind_a_pooler_of_transactions() {
    const NEXT: NextRow = NextRow::of("pooled_jobs").columns("id, kind").only("done IS NULL AND id >= $1").order("id");
    let setup = client().await;
    // A type that the driver has to ask for.
    setup.batch_execute("CREATE TYPE sort AS ENUM ('a', 'b')").await.expect("made");
    setup.batch_execute("CREATE TABLE pooled_jobs (id int PRIMARY KEY, kind sort, done int)").await.expect("made");
    let rows = "INSERT INTO pooled_jobs SELECT i, 'a' FROM generate_series(1, 120) AS i";
    setup.batch_execute(rows).await.expect("filled");
    let bouncer = PgBouncer::new(&SERVER, 2);
    let (url, key) = (bouncer.url(), KeyRule::Native.key("pooled").expect("a key"));
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..6 {
        let url = url.clone();
        workers.spawn(async move {
            let (mut client, mut done) = (client_of(&url).await, 0);
            loop {
                let mut transaction = client.transaction().await.expect("begun");
                assert!(lock_within(&mut transaction, key, Duration::from_secs(20)).await.expect("asked"));
                assert!(try_lock(&transaction, key).await.expect("asked"), "its own");
                let rows = claim_next(&transaction, &NEXT, &[&1]).await.expect("asked");
                let Some(id) = rows.first().map(|row| row.get::<_, i32>(0)) else { break done };
                let done_by = format!("UPDATE pooled_jobs SET done = {worker} WHERE id = {id}");
                transaction.batch_execute(&done_by).await.expect("done");
                transaction.commit().await.expect("committed");
                done += 1;
            }
        });
    }
    assert_eq!(workers.join_all().await.iter().sum::<i32>(), 120);
}

/// Why the page says READ COMMITTED: elsewhere the view of the data is as old as the beginning of the wait.
#[tokio::test]
async fn a_wait_under_repeatable_read_ends_with_an_old_view() {
    let (mut a, mut b, look) = (client().await, client().await, client().await);
    a.batch_execute("CREATE TABLE seen (n int); INSERT INTO seen VALUES (1)").await.expect("made");
    let key = KeyRule::Native.key("view").expect("a key");
    for (level, sees) in [(IsolationLevel::ReadCommitted, 2), (IsolationLevel::RepeatableRead, 1)] {
        a.batch_execute("UPDATE seen SET n = 1").await.expect("set back");
        let first = a.transaction().await.expect("begun");
        lock(&first, key).await.expect("free");
        let second = b.build_transaction().isolation_level(level).start().await.expect("begun");
        let (waited, ()) = tokio::join!(lock(&second, key), async {
            let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
            while look.query_one(waits, &[]).await.expect("asked").get::<_, i64>(0) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            first.batch_execute("UPDATE seen SET n = 2").await.expect("written");
            first.commit().await.expect("committed");
        });
        waited.expect("granted");
        let row = second.query_one("SELECT n FROM seen", &[]).await.expect("read");
        assert_eq!(row.get::<_, i32>(0), sees, "{level:?}");
        second.rollback().await.expect("rolled back");
    }
}
