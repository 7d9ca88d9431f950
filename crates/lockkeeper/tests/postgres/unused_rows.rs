//! What the PostgreSQL stores remove when nothing uses it any more: also while a keeper is busy, and without waiting
//! for another client's transaction.

use lockkeeper::stores::postgres::AdvisoryStore;
use lockkeeper::stores::postgres::PostgresStore;
use lockkeeper::{Keeper, Phase};
use std::sync::Arc;
use std::time::Duration;
use testkit::{PostgresServer, SOON, eventually};
use tokio_postgres::{Client, NoTls};

const TTL: Duration = Duration::from_secs(30);

/// Soon enough for a test, and late enough for its keeper to hold a lock by then.
const DUE: Duration = Duration::from_secs(2);

/// 2,500 registers that nothing has used for longer than a day: more than one round removes.
const OLD_REGISTERS: &str = "INSERT INTO lockkeeper.register (key, lock, token, holder, used) \
    SELECT convert_to('old/' || i, 'UTF8'), 'lock', 1, gen_random_uuid(), 1 FROM generate_series(1, 2500) AS i";
const REGISTERS: &str = "SELECT count(*) FROM lockkeeper.register";

/// Names that were taken once, by whichever session.
const NAMES: &str =
    "SELECT coalesce(string_agg(encode(name, 'escape'), ' ' ORDER BY name), '') FROM lockkeeper.advisory";
const OLD_NAMES: &str = "UPDATE lockkeeper.advisory SET used = 1, token = 1, drawn = 1";

async fn advisory(server: &PostgresServer) -> Arc<AdvisoryStore> {
    let url = format!("{}?mode=advisory", server.url());
    Arc::new(AdvisoryStore::connect(&url).await.expect("connected"))
}

/// Another client.
async fn client(server: &PostgresServer) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.expect("connected");
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn advisory_mode_removes_registers_and_names_round_by_round() {
    let server = PostgresServer::new();
    let store = advisory(&server).await;
    let keeper = Keeper::open(store.clone()).expect("a keeper");
    server.sql(OLD_REGISTERS);
    server.sql(
        "INSERT INTO lockkeeper.advisory (name, token, used, space, key) \
         SELECT convert_to('name/' || i, 'UTF8'), 1, 1, 1, i FROM generate_series(1, 2500) AS i; \
         INSERT INTO lockkeeper.advisory_shared VALUES ('gone', gen_random_uuid(), 1, 1, gen_random_uuid(), 1, 1, 1)",
    );
    let held = keeper.lock("held").ttl(TTL).acquire().await.expect("granted");
    let shared = keeper.lock("shared").ttl(TTL).shared().acquire().await.expect("granted");
    // Taken once by a session that still lives.
    keeper.lock("once").ttl(TTL).acquire().await.expect("granted").release().await.expect("released");
    server.sql(OLD_NAMES);
    let mut rounds = 1;
    while store.clean().await.expect("removed") {
        rounds += 1;
    }
    assert!(rounds <= 4, "{rounds}");
    assert_eq!(server.sql(REGISTERS), "0");
    assert_eq!(server.sql(NAMES), "held shared", "only what is held stays");
    assert_eq!(server.sql("SELECT count(*) FROM lockkeeper.advisory_shared"), "1");
    assert_eq!((held.phase(), shared.phase()), (Phase::Held, Phase::Held));
    let token = held.token();
    held.release().await.expect("held all the time");
    assert!(keeper.lock("held").acquire().await.expect("granted").token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_advisory_keeper_that_always_holds_a_lock_removes_unused_rows() {
    let server = PostgresServer::new();
    let store = advisory(&server).await;
    server.sql(OLD_REGISTERS);
    store.clean_in(DUE);
    let keeper = Keeper::open(store).expect("a keeper");
    let leader = keeper.lock("leader").ttl(TTL).acquire().await.expect("granted");
    keeper.lock("once").ttl(TTL).acquire().await.expect("granted").release().await.expect("released");
    server.sql(&format!("{OLD_NAMES} WHERE name = 'once'"));
    eventually(SOON, "unused rows are removed", || server.sql(REGISTERS) == "0" && server.sql(NAMES) == "leader");
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockkeeper'";
    eventually(SOON, "only the session's connection stays", || server.sql(ours) == "1");
    assert_eq!(leader.phase(), Phase::Held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_is_told_of_grants_all_the_time_removes_unused_rows() {
    let server = PostgresServer::new();
    let store = Arc::new(PostgresStore::connect(&server.url()).await.expect("connected"));
    server.sql(OLD_REGISTERS);
    store.clean_in(DUE).await;
    let (one, two) = (Keeper::open(store).expect("a keeper"), Keeper::connect(server.url()).await.expect("connected"));
    // Each hand-over is a notification for one of them.
    let passing = [one, two].map(|keeper| {
        tokio::spawn(async move {
            loop {
                let guard = keeper.lock("x").ttl(TTL).acquire().await.expect("granted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                guard.release().await.expect("released");
            }
        })
    });
    eventually(SOON, "unused rows are removed", || server.sql(REGISTERS) == "0");
    passing.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn cleaning_never_waits_for_another_clients_transaction() {
    let server = PostgresServer::new();
    let keeper = Keeper::connect(server.url()).await.expect("connected");
    server.sql(OLD_REGISTERS);
    let (mut other, cleaner) = (client(&server).await, client(&server).await);
    for lock in ["SELECT FROM lockkeeper.layout FOR UPDATE", "LOCK TABLE lockkeeper.register IN ACCESS EXCLUSIVE MODE"]
    {
        let open = other.transaction().await.expect("begun");
        open.batch_execute(lock).await.expect("locked");
        let cleaned = tokio::time::timeout(SOON, cleaner.query("SELECT lockkeeper.clean()", &[])).await;
        let cleaned = cleaned.unwrap_or_else(|_| panic!("still waiting behind {lock}"));
        match cleaned {
            Ok(rows) => assert!(!rows[0].get::<_, bool>(0), "nothing was done"),
            Err(error) => assert_eq!(error.code().map(|code| code.code()), Some("55P03"), "{error}"),
        }
        open.commit().await.expect("ended");
    }
    // What was not done is not taken for done.
    assert!(cleaner.query_one("SELECT lockkeeper.clean()", &[]).await.expect("cleaned").get::<_, bool>(0));
    drop(keeper.lock("x").acquire().await.expect("granted"));
}
