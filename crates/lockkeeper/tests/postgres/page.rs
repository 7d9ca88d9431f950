//! What docs/stores/postgres.md says and no other test asks: first use by many, options, what people see.

use lockkeeper::{ErrorKind, Guard, Keeper};
use std::time::Duration;
use testkit::{PostgresServer, SOON};
use tokio::task::JoinSet;

async fn keeper(url: &str) -> Keeper {
    Keeper::connect(url).await.unwrap_or_else(|e| panic!("{url}: {e}"))
}

async fn taken(keeper: &Keeper, name: &str) -> Guard {
    keeper.lock(name).wait(SOON).acquire().await.expect("granted")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_may_be_the_first_to_use_a_database() {
    let server = PostgresServer::new();
    for round in 0..3 {
        server.sql(&format!("CREATE DATABASE round{round}"));
        let mut keepers = JoinSet::new();
        for options in ["", "", "?mode=advisory", "?mode=advisory", "?layout=shedlock", "?layout=shedlock"] {
            let url = format!("{}round{round}{options}", server.url().trim_end_matches("postgres"));
            keepers.spawn(async move {
                // Two keepers in three share a table, so they wait for each other.
                taken(&keeper(&url).await, "x").await.release().await.expect("released");
            });
        }
        keepers.join_all().await;
    }
}

#[tokio::test]
async fn a_server_that_is_too_old_is_refused() {
    let server = PostgresServer::new();
    // As good as one that is: it is asked, and says so.
    server.sql(
        "CREATE SCHEMA older; CREATE FUNCTION older.current_setting(text) RETURNS text LANGUAGE sql STABLE AS \
         $$ SELECT CASE $1 WHEN 'server_version_num' THEN '110022' ELSE pg_catalog.current_setting($1) END $$; \
         ALTER ROLE postgres SET search_path = older, pg_catalog",
    );
    let error = Keeper::connect(server.url()).await.map(|_| ()).expect_err("too old");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("PostgreSQL 11 is too old; 12 is needed"), "{error}");
}

#[tokio::test]
async fn options_do_what_the_page_says() {
    let server = PostgresServer::new();
    let socket = server.dir().path().display().to_string().replace('/', "%2F");
    let at = |options: &str| format!("{}?{options}", server.url());
    // By a socket, and as `postgresql`.
    let first = keeper(&format!("postgresql://postgres@{socket}:{}/postgres", server.port())).await;
    let held = taken(&first, "x").await;
    let same = keeper(&at("target_session_attrs=primary&application_name=the%20app&connections=1")).await;
    assert!(same.lock("x").try_acquire().await.expect("asked").is_none(), "the same store");
    let named = "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'the app'";
    assert_eq!(server.sql(named), "t");
    // Another schema is another store.
    let other = keeper(&at("schema=elsewhere")).await;
    let twin = taken(&other, "x").await;
    assert_eq!(server.sql("SELECT count(*) FROM elsewhere.locks"), "1");
    held.release().await.expect("released");
    twin.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_view_shows_holders_and_those_in_line() {
    let server = PostgresServer::new();
    let holder = Keeper::builder(server.url()).label("nightly").connect().await.expect("connected");
    let guard = taken(&holder, "billing/invoice-42").await;
    let waiter = keeper(&server.url()).await;
    let waiting = tokio::spawn(async move { taken(&waiter, "billing/invoice-42").await.release().await });
    let view = "SELECT name, kind, mode, token, pid, label, expires > now() FROM lockkeeper.locks ORDER BY name, kind";
    let (token, pid) = (guard.token(), std::process::id());
    let shown = format!(
        "billing/invoice-42|holder|exclusive|{token}|{pid}|nightly|t\nbilling/invoice-42|waiter|exclusive||{pid}||t"
    );
    testkit::eventually(SOON, "both are shown", || server.sql(view) == shown);
    guard.release().await.expect("released");
    waiting.await.expect("handed over").expect("released");
}

#[tokio::test]
async fn a_table_of_shedlock_may_have_another_name() {
    let server = PostgresServer::new();
    server.sql("CREATE SCHEMA jobs");
    let url = |table: &str| format!("{}?layout=shedlock&table={table}", server.url());
    let (named, plain) = (keeper(&url("jobs.locks")).await, keeper(&url("shedlock")).await);
    let guard = named.lock("report").ttl(Duration::from_secs(60)).acquire().await.expect("granted");
    drop(taken(&plain, "report").await);
    let long = "x".repeat(65);
    let hashed = taken(&named, &long).await;
    let by = server.sql("SELECT locked_by FROM jobs.locks WHERE name = 'report'");
    assert!(by.ends_with(&format!(" lockkeeper:{}", guard.token())), "{by}");
    assert_eq!(server.sql("SELECT count(*) FROM jobs.locks WHERE name LIKE 'lk-hash-%'"), "1");
    hashed.release().await.expect("released");
    guard.release().await.expect("released");
    assert_eq!(server.sql("SELECT count(*) FROM jobs.locks"), "2", "its rows stay");
}
