//! MariaDB, or the MySQL that takes its place.

use crate::{Body, Database, RUNTIME, Refused, Session, Shared, Shown, Tx, fresh, pass, shared_pass};
use lockkeeper::fence::mysql as fence;
use lockkeeper::fence::{LAYOUT, Refusal};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Transaction, TxOpts};
use std::sync::{Arc, Mutex};
use testkit::MysqlServer;

static SERVER: Shared<MysqlServer> = Shared::new();

pub(crate) fn server() -> Arc<MysqlServer> {
    SERVER.get(|| {
        let server = MysqlServer::new();
        // Twice, and in both ways: installing again does no harm.
        server.sql(fence::INSTALL_SQL);
        let mut connection = connect(&server);
        for statement in fence::install_statements() {
            RUNTIME.block_on(connection.query_drop(statement)).unwrap();
        }
        server.sql("CREATE TABLE balances (id varbinary(600) PRIMARY KEY, value bigint NOT NULL)");
        server
    })
}

fn connect(server: &MysqlServer) -> Conn {
    connect_to(&server.url())
}

fn connect_to(url: &str) -> Conn {
    RUNTIME.block_on(Conn::from_url(url)).expect("the server listens")
}

pub(crate) struct MariaDb {
    url: String,
    _server: Option<Arc<MysqlServer>>,
    isolation: &'static str,
    outside: Mutex<Conn>,
}

impl MariaDb {
    pub(crate) fn new(isolation: &'static str) -> Self {
        let server = server();
        Self { isolation, _server: Some(server.clone()), ..Self::at(&server.url()) }
    }

    /// One that another process has started.
    pub(crate) fn at(url: &str) -> Self {
        let outside = Mutex::new(connect_to(url));
        Self { url: url.to_owned(), _server: None, isolation: "REPEATABLE READ", outside }
    }
}

impl Database for MariaDb {
    fn session(&self) -> Box<dyn Session> {
        let mut connection = connect_to(&self.url);
        let set = format!("SET SESSION TRANSACTION ISOLATION LEVEL {}", self.isolation);
        RUNTIME.block_on(connection.query_drop(set)).unwrap();
        Box::new(MySession { connection })
    }

    fn set(&self, resource: &str, value: i64) {
        let sql = "REPLACE INTO balances VALUES (?, ?)";
        RUNTIME.block_on(self.outside.lock().unwrap().exec_drop(sql, (resource, value))).unwrap();
    }

    fn get(&self, resource: &str) -> i64 {
        let sql = "SELECT value FROM balances WHERE id = ?";
        RUNTIME.block_on(self.outside.lock().unwrap().exec_first(sql, (resource,))).unwrap().unwrap()
    }

    fn stale_code(&self) -> &'static str {
        "45LK1"
    }
}

struct MySession {
    connection: Conn,
}

fn refused(error: Error) -> Refused {
    let Error::Server(error) = error else { panic!("{error}") };
    match fence::refusal(&error.state) {
        Some(refusal) => Refused::Fence { refusal, code: error.state, message: error.message },
        None if fence::is_conflict(error.code) => Refused::Conflict,
        None => panic!("{error:?}"),
    }
}

impl Session for MySession {
    fn transaction(&mut self, body: &mut Body<'_>) -> Result<(), Refused> {
        let mut tx = MyTx(RUNTIME.block_on(self.connection.start_transaction(TxOpts::new())).unwrap());
        match body(&mut tx) {
            Ok(()) => RUNTIME.block_on(tx.0.commit()).map_err(refused),
            Err(refused) => {
                RUNTIME.block_on(tx.0.rollback()).unwrap();
                Err(refused)
            }
        }
    }
}

struct MyTx<'a>(Transaction<'a>);

impl Tx for MyTx<'_> {
    fn enter(&mut self, resource: &str, shown: &dyn Shown) -> Result<(), Refused> {
        let (token, holder, store) = (shown.number(), shown.holder_hex(), shown.store_name());
        let done = if shown.is_shared() {
            RUNTIME.block_on(self.0.exec_drop(fence::ENTER_SHARED_SQL, (resource, token, store)))
        } else {
            RUNTIME.block_on(self.0.exec_drop(fence::ENTER_SQL, (resource, token, holder, store)))
        };
        done.map_err(refused)
    }

    fn read(&mut self, resource: &str) -> Result<i64, Refused> {
        let value = RUNTIME.block_on(self.0.exec_first("SELECT value FROM balances WHERE id = ?", (resource,)));
        Ok(value.map_err(refused)?.unwrap())
    }

    fn write(&mut self, resource: &str, value: i64) -> Result<(), Refused> {
        let sql = "UPDATE balances SET value = ? WHERE id = ?";
        RUNTIME.block_on(self.0.exec_drop(sql, (value, resource))).map_err(refused)
    }
}

/// Why the entry must come first here: a plain read fixes what the transaction sees, without an error.
#[test]
fn a_read_before_the_entry_makes_every_later_read_old() {
    let server = server();
    let resource = fresh("snapshot");
    MariaDb::new("REPEATABLE READ").set(&resource, 100);
    let read = "SELECT value FROM balances WHERE id = ?";
    let mut connections = [connect(&server), connect(&server)];
    let [earlier, later] = &mut connections;
    RUNTIME.block_on(async {
        for (reads_first, expected) in [(true, 100), (false, 102)] {
            let mut tx = later.start_transaction(TxOpts::new()).await.unwrap();
            if reads_first {
                let _: Option<i64> = tx.exec_first(read, (&resource,)).await.unwrap();
            }
            let mut open = earlier.start_transaction(TxOpts::new()).await.unwrap();
            if reads_first {
                fence::enter(&mut open, &resource, &pass(33)).await.unwrap();
            }
            open.exec_drop("UPDATE balances SET value = value + 1 WHERE id = ?", (&resource,)).await.unwrap();
            open.commit().await.unwrap();
            fence::enter(&mut tx, &resource, &pass(34)).await.unwrap();
            let seen: Option<i64> = tx.exec_first(read, (&resource,)).await.unwrap();
            assert_eq!(seen, Some(expected), "read before the entry: {reads_first}");
            tx.rollback().await.unwrap();
        }
    });
}

/// The setting that is on by default from MariaDB 11.6.2: a read before the entry is refused, and an entry first still
/// works.
#[test]
fn with_snapshot_isolation_a_read_before_the_entry_must_be_repeated() {
    let server = server();
    if server.is_mysql() {
        return; // It has no such setting.
    }
    let resource = fresh("isolated");
    MariaDb::new("REPEATABLE READ").set(&resource, 100);
    let mut connections = [connect(&server), connect(&server)];
    let [earlier, later] = &mut connections;
    RUNTIME.block_on(async {
        later.query_drop("SET SESSION innodb_snapshot_isolation = ON").await.unwrap();
        earlier.exec_drop(fence::ENTER_SQL, (&resource, 32, None::<&str>, None::<&str>)).await.unwrap();
        for reads_first in [true, false] {
            let mut tx = later.start_transaction(TxOpts::new()).await.unwrap();
            if reads_first {
                tx.exec_drop("SELECT value FROM balances WHERE id = ?", (&resource,)).await.unwrap();
            }
            earlier.exec_drop(fence::ENTER_SQL, (&resource, 33, None::<&str>, None::<&str>)).await.unwrap();
            let entered = fence::enter(&mut tx, &resource, &pass(34)).await;
            match entered {
                Err(lockkeeper::fence::FenceError::Driver(Error::Server(e))) if reads_first => {
                    assert!(fence::is_conflict(e.code), "{e:?}");
                }
                other => assert!(other.is_ok() && !reads_first, "{other:?}"),
            }
            tx.rollback().await.unwrap();
        }
    });
}

#[test]
fn different_resources_do_not_wait_for_each_other() {
    let server = server();
    let mut connections = [connect(&server), connect(&server)];
    let [first, second] = &mut connections;
    RUNTIME.block_on(async {
        second.query_drop("SET innodb_lock_wait_timeout = 20").await.unwrap();
        for exists_already in [false, true] {
            let prefix = fresh("b");
            if exists_already {
                first.exec_drop(fence::ENTER_SQL, (&prefix, 4, None::<&str>, None::<&str>)).await.unwrap();
            }
            let mut open = first.start_transaction(TxOpts::new()).await.unwrap();
            fence::enter(&mut open, &prefix, &pass(5)).await.unwrap();
            let mut other = second.start_transaction(TxOpts::new()).await.unwrap();
            // Its neighbours on both sides, new and known.
            for name in [prefix[..prefix.len() - 1].to_owned(), format!("{prefix}0"), format!("a{prefix}")] {
                for _ in 0..2 {
                    let entered = fence::enter(&mut other, &name, &pass(5)).await;
                    assert!(entered.is_ok(), "{name} waits for {prefix} ({exists_already}): {entered:?}");
                }
            }
            other.commit().await.unwrap();
            open.commit().await.unwrap();
        }
    });
}

#[test]
fn shared_holders_are_inside_together_and_an_exclusive_one_waits() {
    let server = server();
    let resource = fresh("shared");
    let mut connections = [connect(&server), connect(&server), connect(&server)];
    let [one, two, three] = &mut connections;
    RUNTIME.block_on(async {
        three.query_drop("SET innodb_lock_wait_timeout = 1").await.unwrap();
        three.exec_drop(fence::ENTER_SQL, (&resource, 10, None::<&str>, None::<&str>)).await.unwrap();
        // A short transaction raises the mark; then each may stay inside as long as it likes.
        for (connection, token) in [(&mut *one, 11), (&mut *two, 12)] {
            let mut tx = connection.start_transaction(TxOpts::new()).await.unwrap();
            fence::enter_shared(&mut tx, &resource, &shared_pass(token)).await.unwrap();
            tx.commit().await.unwrap();
        }
        let mut a = one.start_transaction(TxOpts::new()).await.unwrap();
        let mut b = two.start_transaction(TxOpts::new()).await.unwrap();
        fence::enter_shared(&mut a, &resource, &shared_pass(11)).await.unwrap();
        fence::enter_shared(&mut b, &resource, &shared_pass(12)).await.unwrap();
        let mut c = three.start_transaction(TxOpts::new()).await.unwrap();
        let waits = fence::enter(&mut c, &resource, &pass(13)).await.unwrap_err();
        assert!(format!("{waits:?}").contains("1205"), "{waits:?}");
        c.rollback().await.unwrap();
        a.commit().await.unwrap();
        b.commit().await.unwrap();
        three.exec_drop(fence::ENTER_SQL, (&resource, 13, None::<&str>, None::<&str>)).await.unwrap();
        let mut a = one.start_transaction(TxOpts::new()).await.unwrap();
        let stale = fence::enter_shared(&mut a, &resource, &shared_pass(12)).await.unwrap_err();
        assert!(stale.is_stale(), "{stale:?}");
        a.rollback().await.unwrap();
    });
}

/// A session's memory of its last Shared entry is only a hint. After a rollback or a reset the next entry must raise
/// the mark again.
#[test]
fn a_shared_entry_is_marked_though_its_session_remembers_one_that_is_gone() {
    let server = server();
    let mut connections = [connect(&server), connect(&server)];
    let [one, two] = &mut connections;
    RUNTIME.block_on(async {
        for reset in [false, true] {
            let resource = fresh("remembered");
            two.exec_drop(fence::ENTER_SQL, (&resource, 33, None::<&str>, None::<&str>)).await.unwrap();
            let mut tx = one.start_transaction(TxOpts::new()).await.unwrap();
            fence::enter_shared(&mut tx, &resource, &shared_pass(34)).await.unwrap();
            if reset {
                tx.commit().await.unwrap();
                two.exec_drop(fence::RESET_SQL, (&resource,)).await.unwrap();
            } else {
                tx.rollback().await.unwrap();
            }
            let mut tx = one.start_transaction(TxOpts::new()).await.unwrap();
            let gone = fence::enter_shared(&mut tx, &resource, &shared_pass(34)).await.unwrap_err();
            let lockkeeper::fence::FenceError::Driver(Error::Server(gone)) = gone else { panic!("{gone:?}") };
            assert!(fence::is_conflict(gone.code), "{gone:?}");
            tx.rollback().await.unwrap();
            let mut tx = one.start_transaction(TxOpts::new()).await.unwrap();
            fence::enter_shared(&mut tx, &resource, &shared_pass(34)).await.unwrap();
            tx.commit().await.unwrap();
            let late = two.exec_drop(fence::ENTER_SQL, (&resource, 33, None::<&str>, None::<&str>)).await;
            assert!(late.map_err(refused).is_err_and(|r| r.is_stale()));
        }
    });
}

#[test]
fn status_reset_and_rights() {
    let server = server();
    let resource = fresh("moved");
    server.sql(
        "CREATE USER app@'127.0.0.1'; GRANT SELECT, INSERT, UPDATE ON test.lockkeeper_fences TO app@'127.0.0.1'; \
         GRANT EXECUTE ON PROCEDURE test.lockkeeper_fence TO app@'127.0.0.1'",
    );
    RUNTIME.block_on(async {
        let mut app = Conn::from_url(server.url().replace("root@", "app@")).await.unwrap();
        let enter = fence::ENTER_SQL;
        app.exec_drop(enter, (&resource, 1_763_166_000_123_456_u64, None::<&str>, "redis")).await.unwrap();
        let moved = app.exec_drop(enter, (&resource, 42, None::<&str>, "etcd")).await.map_err(refused);
        let Err(Refused::Fence { refusal: Refusal::OtherStore, message, .. }) = moved else { panic!("{moved:?}") };
        assert!(message.contains("'redis', not 'etcd'") && message.contains("fence reset"), "{message}");
        let mut root = Conn::from_url(server.url()).await.unwrap();
        let version: Option<i64> = root.query_first(fence::VERSION_SQL).await.unwrap();
        assert_eq!(version, Some(LAYOUT));
        type Row = (String, i64, Option<String>, Option<String>, i64);
        let rows: Vec<Row> = root.exec(fence::STATUS_SQL, (&resource, &resource)).await.unwrap();
        assert_eq!((rows.len(), rows[0].1, rows[0].2.as_deref()), (1, 1_763_166_000_123_456, Some("redis")));
        assert!(rows[0].3.as_ref().is_some_and(|when| when.starts_with("20") && when.ends_with('Z')), "{rows:?}");
        // Another transaction is inside another fence meanwhile.
        let mut other = Conn::from_url(server.url()).await.unwrap();
        let mut open = other.start_transaction(TxOpts::new()).await.unwrap();
        fence::enter(&mut open, &fresh("inside"), &pass(1)).await.unwrap();
        root.query_drop("SET innodb_lock_wait_timeout = 20").await.unwrap();
        root.exec_drop(fence::RESET_SQL, (&resource,)).await.unwrap();
        assert_eq!(root.affected_rows(), 1);
        open.rollback().await.unwrap();
        app.exec_drop(enter, (&resource, 42, None::<&str>, "etcd")).await.unwrap();
    });
}
