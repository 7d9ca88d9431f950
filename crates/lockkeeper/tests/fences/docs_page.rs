//! What docs/fencing.md says beyond its code.

use crate::docs_snippets::code;
use crate::sqlite::Sqlite;
use crate::{Database, RUNTIME, Refused, fresh, mariadb, pass, postgres, shared_pass};
use lockkeeper::fence::{self, FenceError};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, TxOpts};
use std::time::Duration;
use tokio_postgres::{Client, NoTls};

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    RUNTIME.spawn(connection);
    client
}

fn code_of(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("", |code| code.code())
}

/// "After a refusal": only PostgreSQL ends the transaction by itself.
#[test]
fn after_a_refusal_the_others_must_be_rolled_back() {
    let resource = &fresh("refused");
    // Kept until the end, since the last user of a server ends it; and started here, outside of a runtime.
    let (postgres, mariadb) = (postgres::server(), mariadb::server());
    RUNTIME.block_on(async {
        let mut client = client(&postgres.url()).await;
        for token in [34, 33] {
            let tx = client.transaction().await.unwrap();
            let entered = fence::postgres::enter(&tx, resource, &pass(token)).await;
            if token == 34 {
                entered.unwrap();
                tx.commit().await.unwrap();
            } else {
                assert!(entered.unwrap_err().is_stale());
                assert_eq!(code_of(&tx.execute("SELECT 1", &[]).await.unwrap_err()), "25P02");
            }
        }
        let mut connection = Conn::from_url(mariadb.url()).await.unwrap();
        for token in [34, 33] {
            let mut tx = connection.start_transaction(TxOpts::new()).await.unwrap();
            let entered = fence::mysql::enter(&mut tx, resource, &pass(token)).await;
            assert_eq!(entered.is_ok(), token == 34);
            tx.exec_drop("REPLACE INTO balances VALUES (?, 1)", (resource,)).await.unwrap();
            if token == 34 { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
        }
    });
    let database = Sqlite::new("wal");
    let mut connection = database.connect();
    for token in [34, 33] {
        let tx = connection.transaction().unwrap();
        assert_eq!(fence::sqlite::enter(&tx, resource, &pass(token)).is_ok(), token == 34);
        tx.execute("REPLACE INTO balances VALUES (?1, 1)", [resource]).unwrap();
        if token == 34 { tx.commit().unwrap() } else { tx.rollback().unwrap() }
    }
}

/// "A read before the entry": what the entry says, and what is read after it, when an earlier holder has written between.
fn read_first(database: &dyn Database) -> Result<i64, Refused> {
    let resource = fresh("read-first");
    database.set(&resource, 100);
    let mut seen = 0;
    let done = database.session().transaction(&mut |tx| {
        tx.read(&resource)?;
        let earlier = database.session().transaction(&mut |tx| {
            tx.enter(&resource, &pass(33))?;
            tx.write(&resource, 101)
        });
        assert_eq!(earlier, Ok(()));
        tx.enter(&resource, &pass(34))?;
        seen = tx.read(&resource)?;
        Ok(())
    });
    done.map(|()| seen)
}

#[test]
fn a_read_before_the_entry_is_as_bad_as_the_page_says() {
    assert_eq!(read_first(&postgres::Postgres::new("read committed")), Ok(101));
    assert_eq!(read_first(&postgres::Postgres::new("repeatable read")), Err(Refused::Conflict));
    assert_eq!(read_first(&postgres::Postgres::new("serializable")), Err(Refused::Conflict));
    assert_eq!(read_first(&mariadb::MariaDb::new("REPEATABLE READ")), Ok(100), "old, and nothing tells");
    assert_eq!(read_first(&mariadb::MariaDb::new("READ COMMITTED")), Ok(101));
    assert_eq!(read_first(&Sqlite::new("wal")), Err(Refused::Conflict));
}

#[test]
fn a_consistent_snapshot_is_older_than_the_entry() {
    let server = mariadb::server();
    let resource = fresh("consistent");
    let database = mariadb::MariaDb::new("REPEATABLE READ");
    database.set(&resource, 100);
    RUNTIME.block_on(async {
        let mut connection = Conn::from_url(server.url()).await.unwrap();
        connection.query_drop("START TRANSACTION WITH CONSISTENT SNAPSHOT").await.unwrap();
        let mut other = Conn::from_url(server.url()).await.unwrap();
        other.exec_drop("UPDATE balances SET value = 101 WHERE id = ?", (&resource,)).await.unwrap();
        connection.exec_drop(fence::mysql::ENTER_SQL, (&resource, 34, None::<&str>, None::<&str>)).await.unwrap();
        let read = "SELECT value FROM balances WHERE id = ?";
        let seen: Option<i64> = connection.exec_first(read, (&resource,)).await.unwrap();
        assert_eq!(seen, Some(100));
    });
}

#[test]
fn rolling_back_to_an_earlier_savepoint_undoes_the_entry() {
    let server = postgres::server();
    let resource = &fresh("savepoint");
    RUNTIME.block_on(async {
        let (mut one, mut two) = (client(&server.url()).await, client(&server.url()).await);
        let mut tx = one.transaction().await.unwrap();
        let inner = tx.savepoint("before").await.unwrap();
        fence::postgres::enter(&inner, resource, &pass(34)).await.unwrap();
        inner.rollback().await.unwrap();
        let other = two.transaction().await.unwrap();
        other.batch_execute("SET LOCAL lock_timeout = '20s'").await.unwrap();
        fence::postgres::enter(&other, resource, &pass(33)).await.unwrap();
        other.commit().await.unwrap();
        tx.rollback().await.unwrap();
    });
}

/// "Make the call a statement of its own": the query's snapshot is older than the wait inside it.
#[test]
fn an_entry_inside_the_query_that_reads_reads_what_was_true_before() {
    let server = postgres::server();
    let resource = &fresh("inside");
    postgres::Postgres::new("read committed").set(resource, 100);
    RUNTIME.block_on(async {
        let (mut earlier, later) = (client(&server.url()).await, client(&server.url()).await);
        let enter = "SELECT lockkeeper_fence($1, 33)";
        earlier.execute(enter, &[resource]).await.unwrap();
        let tx = earlier.transaction().await.unwrap();
        tx.execute(enter, &[resource]).await.unwrap();
        tx.execute("UPDATE balances SET value = 101 WHERE id = $1", &[resource]).await.unwrap();
        let read = RUNTIME.spawn({
            let both = "SELECT value, lockkeeper_fence($1, 34) FROM balances WHERE id = $1";
            let resource = resource.clone();
            async move { later.query_one(both, &[&resource]).await.unwrap().get::<_, i64>(0) }
        });
        let waits =
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%value, lock%'";
        testkit::eventually(testkit::SOON, "the later holder waits", || server.sql(waits) == "1");
        tx.commit().await.unwrap();
        assert_eq!(read.await.unwrap(), 100, "it has entered, and read the old value");
    });
}

/// "Rows stay": `entered_at` tells the rows that were not entered for long, and only those.
#[test]
fn rows_say_when_a_holder_has_entered_last() {
    let [used, refused, left] = [fresh("used"), fresh("refused"), fresh("left")];
    let sqlite = Sqlite::new("wal");
    let (pg, my) = (postgres::server(), mariadb::server());
    /// The query, a time long ago, and a time between that and now.
    type Aged<'a> = (&'a dyn Database, &'a dyn Fn(&str), &'a str, &'a str);
    let databases: [Aged<'_>; 3] = [
        (
            &postgres::Postgres::new("read committed"),
            &|sql| drop(pg.sql(sql)),
            "now() - interval '2 days'",
            "now() - interval '1 day'",
        ),
        (
            &mariadb::MariaDb::new("REPEATABLE READ"),
            &|sql| drop(my.sql(sql)),
            "NOW() - INTERVAL 2 DAY",
            "NOW() - INTERVAL 1 DAY",
        ),
        (
            &sqlite,
            &|sql| sqlite.connect().execute_batch(sql).unwrap(),
            "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-2 days')",
            "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 day')",
        ),
    ];
    for (database, sql, old, limit) in databases {
        let enter = |name: &str, token| database.session().transaction(&mut |tx| tx.enter(name, &pass(token)));
        for name in [&used, &refused, &left] {
            enter(name, 34).unwrap();
        }
        let ours = format!("resource IN ('{used}', '{refused}', '{left}')");
        sql(&format!("UPDATE lockkeeper_fences SET entered_at = {old} WHERE {ours}"));
        enter(&used, 34).unwrap();
        assert!(enter(&refused, 33).unwrap_err().is_stale());
        sql(&format!("DELETE FROM lockkeeper_fences WHERE entered_at < {limit} AND {ours}"));
        assert!(enter(&used, 33).unwrap_err().is_stale(), "its row is there");
        for gone in [&refused, &left] {
            enter(gone, 1).unwrap();
        }
    }
}

/// Two transactions enter two fences in different orders: the database ends one, and the other goes on.
#[test]
fn a_deadlock_is_one_transaction_to_be_repeated() {
    let resources = [fresh("circle"), fresh("circle")];
    for database in
        [&postgres::Postgres::new("read committed") as &dyn Database, &mariadb::MariaDb::new("REPEATABLE READ")]
    {
        let both = std::sync::Barrier::new(2);
        let ended: Vec<_> = std::thread::scope(|scope| {
            let enter = |first: usize, token| {
                let (both, resources) = (&both, &resources);
                scope.spawn(move || {
                    database.session().transaction(&mut |tx| {
                        tx.enter(&resources[first], &pass(token))?;
                        both.wait();
                        tx.enter(&resources[1 - first], &pass(token))
                    })
                })
            };
            [enter(0, 40), enter(1, 40)].map(|thread| thread.join().unwrap()).to_vec()
        });
        assert!(ended.contains(&Ok(())) && ended.contains(&Err(Refused::Conflict)), "{ended:?}");
    }
}

/// "A paused process with an open transaction keeps the row", until the database ends its session.
#[test]
fn a_database_that_is_told_to_ends_sessions_that_sit_in_a_fence() {
    let (postgres, mariadb) = (postgres::server(), mariadb::server());
    let resource = &fresh("frozen");
    RUNTIME.block_on(async {
        let frozen = client(&postgres.url()).await;
        frozen.batch_execute("SET idle_in_transaction_session_timeout = '300ms'; BEGIN").await.unwrap();
        frozen.execute("SELECT lockkeeper_fence($1, 33)", &[resource]).await.unwrap();
        let mut next = client(&postgres.url()).await;
        let tx = next.transaction().await.unwrap();
        tx.batch_execute("SET LOCAL lock_timeout = '20s'").await.unwrap();
        fence::postgres::enter(&tx, resource, &pass(34)).await.unwrap();
        tx.commit().await.unwrap();
        assert!(frozen.batch_execute("COMMIT").await.is_err(), "its session was ended");

        let mut frozen = Conn::from_url(mariadb.url()).await.unwrap();
        frozen.query_drop("SET idle_transaction_timeout = 1").await.unwrap();
        frozen.query_drop("START TRANSACTION").await.unwrap();
        frozen.exec_drop(fence::mysql::ENTER_SQL, (resource, 33, None::<&str>, None::<&str>)).await.unwrap();
        let mut next = Conn::from_url(mariadb.url()).await.unwrap();
        next.query_drop("SET innodb_lock_wait_timeout = 20").await.unwrap();
        next.exec_drop(fence::mysql::ENTER_SQL, (resource, 34, None::<&str>, None::<&str>)).await.unwrap();
        assert!(frozen.query_drop("COMMIT").await.is_err(), "its session was ended");
    });
}

/// "The `INSERT` takes the file's one write lock, for Shared holders too."
#[test]
fn a_shared_holder_of_sqlite_keeps_writers_out() {
    let database = Sqlite::new("wal");
    let (mut reader, mut writer) = (database.connect(), database.connect());
    writer.busy_timeout(Duration::ZERO).unwrap();
    let inside = reader.transaction().unwrap();
    fence::sqlite::enter_shared(&inside, "x", &shared_pass(3)).unwrap();
    let tx = writer.transaction().unwrap();
    let busy = fence::sqlite::enter(&tx, "other", &pass(4)).unwrap_err();
    let FenceError::Driver(rusqlite::Error::SqliteFailure(code, _)) = busy else { panic!("{busy:?}") };
    assert!(fence::sqlite::is_conflict(code.extended_code));
}

/// The statements for a token column of your own, on every database, and their number of changed rows.
#[test]
fn a_token_column_refuses_by_the_number_of_rows() {
    let text = code("sql", "fence_token <= 34");
    let statements: Vec<&str> = text.lines().filter_map(|line| line.split(';').next()).collect();
    let [enter, read, write] = statements[..] else { panic!("{statements:?}") };
    let (late_enter, late_write) = (enter.replace("34", "33"), write.replace("34", "33").replace("18", "99"));
    let table = "CREATE TABLE orders (id int, total bigint, fence_token bigint NOT NULL DEFAULT 0)";
    let row = "INSERT INTO orders (id, total) VALUES (42, 17)";

    let sqlite = rusqlite::Connection::open_in_memory().unwrap();
    sqlite.execute_batch(&format!("{table}; {row}")).unwrap();
    let counted: Vec<usize> =
        [enter, enter, write, &late_enter, &late_write].map(|sql| sqlite.execute(sql, []).unwrap()).to_vec();
    assert_eq!(counted, [1, 1, 1, 0, 0]);
    assert_eq!(sqlite.query_row(read, [], |row| row.get::<_, i64>(0)).unwrap(), 18);

    let (postgres, mariadb) = (postgres::server(), mariadb::server());
    RUNTIME.block_on(async {
        let client = client(&postgres.url()).await;
        client.batch_execute(&format!("CREATE TEMPORARY {}; {row}", &table[7..])).await.unwrap();
        for (sql, rows) in [(enter, 1), (enter, 1), (write, 1), (&late_enter, 0), (&late_write, 0)] {
            assert_eq!(client.execute(sql, &[]).await.unwrap(), rows, "{sql}");
        }
        assert_eq!(client.query_one(read, &[]).await.unwrap().get::<_, i64>(0), 18);

        // With changed rows in place of found ones, the second entry of the same holder looks stale.
        for (found, second) in [(true, 1), (false, 0)] {
            let options = Opts::from_url(&mariadb.url()).unwrap();
            let mut connection = Conn::new(OptsBuilder::from_opts(options).client_found_rows(found)).await.unwrap();
            connection.query_drop(format!("CREATE TEMPORARY {}", &table[7..])).await.unwrap();
            connection.query_drop(row).await.unwrap();
            for (sql, rows) in [(enter, 1), (enter, second), (write, 1), (&late_enter, 0), (&late_write, 0)] {
                connection.query_drop(sql).await.unwrap();
                assert_eq!(connection.affected_rows(), rows, "{sql}");
            }
            assert_eq!(connection.query_first::<i64, _>(read).await.unwrap(), Some(18));
        }
    });
}
