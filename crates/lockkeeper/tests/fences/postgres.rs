//! PostgreSQL.

use crate::{Body, Database, RUNTIME, Refused, Session, Shared, Shown, Tx, fresh, pass, shared_pass};
use lockkeeper::Pass;
use lockkeeper::fence::postgres as fence;
use lockkeeper::fence::{FenceError, LAYOUT, Refusal};
use std::sync::Arc;
use testkit::{PgBouncer, PostgresServer};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, IsolationLevel, NoTls, Transaction};

static SERVER: Shared<PostgresServer> = Shared::new();

pub(crate) fn server() -> Arc<PostgresServer> {
    SERVER.get(|| {
        let server = PostgresServer::new();
        // Twice: installing again does no harm.
        for _ in 0..2 {
            server.sql(&format!("SET client_min_messages = warning; {}", fence::INSTALL_SQL));
        }
        server.sql("CREATE TABLE balances (id text PRIMARY KEY, value bigint NOT NULL)");
        server
    })
}

fn connect(server: &PostgresServer) -> Client {
    connect_to(&server.url())
}

fn connect_to(url: &str) -> Client {
    let (client, connection) = RUNTIME.block_on(tokio_postgres::connect(url, NoTls)).expect("the server listens");
    RUNTIME.spawn(connection);
    client
}

pub(crate) struct Postgres {
    url: String,
    _server: Option<Arc<PostgresServer>>,
    isolation: &'static str,
    outside: Client,
}

impl Postgres {
    pub(crate) fn new(isolation: &'static str) -> Self {
        let server = server();
        Self { isolation, _server: Some(server.clone()), ..Self::at(&server.url()) }
    }

    /// One that another process has started.
    pub(crate) fn at(url: &str) -> Self {
        Self { url: url.to_owned(), _server: None, isolation: "read committed", outside: connect_to(url) }
    }
}

impl Database for Postgres {
    fn session(&self) -> Box<dyn Session> {
        let isolation = match self.isolation {
            "serializable" => IsolationLevel::Serializable,
            "repeatable read" => IsolationLevel::RepeatableRead,
            _ => IsolationLevel::ReadCommitted,
        };
        Box::new(PgSession { client: connect_to(&self.url), isolation })
    }

    fn set(&self, resource: &str, value: i64) {
        let sql = "INSERT INTO balances VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET value = excluded.value";
        RUNTIME.block_on(self.outside.execute(sql, &[&resource, &value])).unwrap();
    }

    fn get(&self, resource: &str) -> i64 {
        let sql = "SELECT value FROM balances WHERE id = $1";
        let row = RUNTIME.block_on(self.outside.query_one(sql, &[&resource]));
        row.unwrap().get(0)
    }

    fn stale_code(&self) -> &'static str {
        "LK001"
    }
}

struct PgSession {
    client: Client,
    isolation: IsolationLevel,
}

fn refused(error: &tokio_postgres::Error) -> Refused {
    let database = error.as_db_error().unwrap_or_else(|| panic!("{error}"));
    let (code, message) = (database.code().code().to_owned(), database.message().to_owned());
    match fence::refusal(&code) {
        Some(refusal) => Refused::Fence { refusal, code, message },
        None if fence::is_conflict(&code) => Refused::Conflict,
        None => panic!("{code} {message}"),
    }
}

impl Session for PgSession {
    fn transaction(&mut self, body: &mut Body<'_>) -> Result<(), Refused> {
        let begun = RUNTIME.block_on(self.client.build_transaction().isolation_level(self.isolation).start());
        let mut tx = PgTx(begun.unwrap());
        match body(&mut tx) {
            Ok(()) => RUNTIME.block_on(tx.0.commit()).map_err(|e| refused(&e)),
            Err(refused) => {
                RUNTIME.block_on(tx.0.rollback()).unwrap();
                Err(refused)
            }
        }
    }
}

struct PgTx<'a>(Transaction<'a>);

impl Tx for PgTx<'_> {
    fn enter(&mut self, resource: &str, shown: &dyn Shown) -> Result<(), Refused> {
        let (token, holder, store) = (shown.number(), shown.holder_hex(), shown.store_name());
        let done = if shown.is_shared() {
            RUNTIME.block_on(self.0.query(fence::ENTER_SHARED_SQL, &[&resource, &token, &store]))
        } else {
            RUNTIME.block_on(self.0.query(fence::ENTER_SQL, &[&resource, &token, &holder, &store]))
        };
        done.map(drop).map_err(|e| refused(&e))
    }

    fn read(&mut self, resource: &str) -> Result<i64, Refused> {
        let row = RUNTIME.block_on(self.0.query_one("SELECT value FROM balances WHERE id = $1", &[&resource]));
        row.map(|row| row.get(0)).map_err(|e| refused(&e))
    }

    fn write(&mut self, resource: &str, value: i64) -> Result<(), Refused> {
        let sql = "UPDATE balances SET value = $2 WHERE id = $1";
        RUNTIME.block_on(self.0.execute(sql, &[&resource, &value])).map(drop).map_err(|e| refused(&e))
    }
}

#[test]
fn different_resources_do_not_wait_for_each_other() {
    let server = server();
    let prefix = fresh("b");
    let (mut first, mut second) = (connect(&server), connect(&server));
    RUNTIME.block_on(async {
        let open = first.transaction().await.unwrap();
        fence::enter(&open, &prefix, &pass(5)).await.unwrap();
        let other = second.transaction().await.unwrap();
        other.batch_execute("SET LOCAL lock_timeout = '20s'").await.unwrap();
        for name in [format!("a{prefix}"), format!("{prefix}0"), format!("c{prefix}")] {
            fence::enter(&other, &name, &pass(5)).await.unwrap();
        }
        other.commit().await.unwrap();
        open.commit().await.unwrap();
    });
}

#[test]
fn shared_holders_are_inside_together_and_an_exclusive_one_waits() {
    let server = server();
    let resource = fresh("shared");
    let (mut one, mut two, mut three) = (connect(&server), connect(&server), connect(&server));
    RUNTIME.block_on(async {
        // A short transaction raises the mark; then each may stay inside as long as it likes.
        let tx = three.transaction().await.unwrap();
        fence::enter(&tx, &resource, &pass(10)).await.unwrap();
        tx.commit().await.unwrap();
        for (client, token) in [(&mut one, 11), (&mut two, 12)] {
            let tx = client.transaction().await.unwrap();
            fence::enter_shared(&tx, &resource, &shared_pass(token)).await.unwrap();
            tx.commit().await.unwrap();
        }
        let a = one.transaction().await.unwrap();
        let b = two.transaction().await.unwrap();
        fence::enter_shared(&a, &resource, &shared_pass(11)).await.unwrap();
        fence::enter_shared(&b, &resource, &shared_pass(12)).await.unwrap();
        // A transaction that raises the mark waits for neither of them, only for another that raises it.
        let raises = three.transaction().await.unwrap();
        raises.batch_execute("SET LOCAL lock_timeout = '20s'").await.unwrap();
        fence::enter_shared(&raises, &resource, &shared_pass(13)).await.unwrap();
        fence::enter_shared(&a, &resource, &shared_pass(11)).await.unwrap();
        raises.commit().await.unwrap();
        let c = three.transaction().await.unwrap();
        c.batch_execute("SET LOCAL lock_timeout = '100ms'").await.unwrap();
        let waits = fence::enter(&c, &resource, &pass(14)).await;
        assert!(
            matches!(&waits, Err(FenceError::Driver(e)) if e.code().is_some_and(|c| c.code() == "55P03")),
            "{waits:?}"
        );
        c.rollback().await.unwrap();
        a.commit().await.unwrap();
        b.commit().await.unwrap();
        let c = three.transaction().await.unwrap();
        fence::enter(&c, &resource, &pass(14)).await.unwrap();
        c.commit().await.unwrap();
        let a = one.transaction().await.unwrap();
        let stale = fence::enter_shared(&a, &resource, &shared_pass(12)).await.unwrap_err();
        assert!(stale.is_stale(), "{stale:?}");
        assert_eq!(lockkeeper::Error::from(stale).kind(), lockkeeper::ErrorKind::Stale);
    });
}

#[test]
fn an_application_needs_three_rights_and_no_search_path() {
    let server = server();
    server.sql(
        "CREATE ROLE app LOGIN; GRANT SELECT, INSERT, UPDATE ON lockkeeper_fences TO app; \
         CREATE SCHEMA other AUTHORIZATION app",
    );
    let url = server.url().replace("postgres@", "app@");
    let resource = fresh("app");
    RUNTIME.block_on(async {
        let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        RUNTIME.spawn(connection);
        // A table of that name earlier on the search path changes nothing.
        client.batch_execute("SET search_path = other; CREATE TABLE lockkeeper_fences (x int)").await.unwrap();
        let tx = client.transaction().await.unwrap();
        tx.execute("SELECT public.lockkeeper_fence($1, 7)", &[&resource]).await.unwrap();
        tx.commit().await.unwrap();
        let denied = client.execute("DELETE FROM public.lockkeeper_fences", &[]).await.unwrap_err();
        assert_eq!(denied.code().map(|c| c.code()), Some("42501"));
    });
}

#[test]
fn status_and_reset() {
    let server = server();
    let client = connect(&server);
    let resource = fresh("moved");
    RUNTIME.block_on(async {
        let number: i32 = client.query_one(fence::VERSION_SQL, &[]).await.unwrap().get(0);
        assert_eq!(i64::from(number), LAYOUT);
        let enter = |token: i64, store: &'static str| {
            let (client, resource) = (&client, &resource);
            async move { client.execute(fence::ENTER_SQL, &[resource, &token, &None::<&str>, &store]).await }
        };
        enter(1_763_166_000_123_456, "redis").await.unwrap();
        let moved = enter(42, "etcd").await.unwrap_err();
        let said = moved.as_db_error().unwrap();
        assert_eq!(fence::refusal(said.code().code()), Some(Refusal::OtherStore));
        assert!(
            said.message().contains("'redis'") && said.hint().is_some_and(|h| h.contains("fence reset")),
            "{said:?}"
        );
        let rows = client.query(fence::STATUS_SQL, &[&resource]).await.unwrap();
        assert_eq!((rows.len(), rows[0].get::<_, i64>(1), rows[0].get::<_, i64>(4)), (1, 1_763_166_000_123_456, 0));
        assert_eq!(client.execute(fence::RESET_SQL, &[&resource]).await.unwrap(), 1);
        enter(42, "etcd").await.unwrap();
    });
}

/// Through a pooler that gives each transaction another server: entry and write are one transaction, so they stay together.
/// More clients than servers, each adding to one balance under a token of its own.
#[test]
fn an_entry_and_its_write_stay_together_behind_a_pooler() {
    const CLIENTS: u64 = 8;
    const EACH: u64 = 40;
    let server = server();
    let bouncer = PgBouncer::new(&server, 3);
    let resource = fresh("pooled");
    server.sql(&format!("INSERT INTO balances VALUES ('{resource}', 0)"));
    let next = Arc::new(std::sync::atomic::AtomicU64::new(1));
    let add = async |client: &mut Client, resource: &str, shown: &Pass| {
        let tx = client.transaction().await.unwrap();
        if let Err(error) = fence::enter(&tx, resource, shown).await {
            assert!(error.is_stale(), "{error:?}");
            tx.rollback().await.unwrap();
            return 0;
        }
        let rows =
            tx.query_typed("SELECT value FROM balances WHERE id = $1", &[(&resource, Type::TEXT)]).await.unwrap();
        // Time for others to come between, if they could.
        tokio::task::yield_now().await;
        let value = rows[0].get::<_, i64>(0) + 1;
        let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&resource, Type::TEXT), (&value, Type::INT8)];
        tx.query_typed("UPDATE balances SET value = $2 WHERE id = $1", &params).await.unwrap();
        tx.commit().await.unwrap();
        1
    };
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (mut client, next, resource) = (connect_to(&bouncer.url()), next.clone(), resource.clone());
            RUNTIME.spawn(async move {
                let mut added = 0_i64;
                for _ in 0..EACH {
                    let token = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    added += add(&mut client, &resource, &pass(token)).await;
                }
                added
            })
        })
        .collect();
    let added: i64 = RUNTIME.block_on(async {
        let mut added = 0;
        for task in tasks {
            added += task.await.unwrap();
        }
        added
    });
    assert!(added > 0);
    let balance = || server.sql(&format!("SELECT value FROM balances WHERE id = '{resource}'"));
    assert_eq!(balance(), added.to_string(), "nothing written is lost, nothing refused is written");
    // An earlier holder is refused, and the refusal does not break the server connection.
    let mut late = connect_to(&bouncer.url());
    RUNTIME.block_on(async {
        for _ in 0..5 {
            assert_eq!(add(&mut late, &resource, &pass(1)).await, 0);
        }
        assert_eq!(add(&mut late, &resource, &pass(CLIENTS * EACH + 1)).await, 1);
    });
    assert_eq!(balance(), (added + 1).to_string());
}
