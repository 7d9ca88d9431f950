//! What docs/stores/postgres.md says and no other test asks: first use by many, options, what people see.

use crate::keepers::taken;
use lockkeeper::stores::postgres::PostgresStore;
use lockkeeper::{ErrorKind, Guarantee, Keeper, Store};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use testkit::{PgBouncer, PostgresServer, SOON};
use tokio::task::JoinSet;

#[path = "../common/warnings.rs"]
mod warnings;

async fn keeper(url: &str) -> Keeper {
    Keeper::connect(url).await.unwrap_or_else(|e| panic!("{url}: {e}"))
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
    let holder = Keeper::builder().label("nightly").connect(server.url()).await.expect("connected");
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

/// A host that takes connections and says nothing, and how many it has taken.
fn silent() -> (u16, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (port, asked) = (listener.local_addr().expect("bound").port(), Arc::new(AtomicU32::new(0)));
    let count = asked.clone();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
            kept.push(stream);
        }
    });
    (port, asked)
}

#[tokio::test]
async fn a_silent_host_has_half_of_the_time_and_is_not_asked_again() {
    let server = PostgresServer::new();
    drop(keeper(&server.url()).await);
    let (port, asked) = silent();
    let began = Instant::now();
    let alone = format!("postgres://127.0.0.1:{port}/postgres?connect_timeout=700ms");
    let error = Keeper::connect(alone).await.map(drop).expect_err("silent");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(began.elapsed() >= Duration::from_millis(700), "the whole time: {:?}", began.elapsed());

    let limit = Duration::from_secs(12);
    asked.store(0, Ordering::SeqCst);
    let url = format!("postgres://postgres@127.0.0.1:{port},127.0.0.1:{}/postgres?connect_timeout=12s", server.port());
    let began = Instant::now();
    let keeper = keeper(&url).await;
    assert!((limit / 2..limit).contains(&began.elapsed()), "half of it: {:?}", began.elapsed());
    taken(&keeper, "x").await.release().await.expect("released");
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockkeeper'";
    testkit::eventually(SOON, "all connections are open", || server.sql(ours) == "3");
    assert_eq!(asked.load(Ordering::SeqCst), 1, "from the one that answered last");
}

#[tokio::test]
async fn a_server_that_answers_before_the_disk_is_not_durable_and_is_left_as_it_is() {
    if !testkit::alone("docs_page::a_server_that_answers_before_the_disk_is_not_durable_and_is_left_as_it_is") {
        return;
    }
    let said = warnings::all();
    let server = PostgresServer::with(&["fsync=off"]);
    let error = Keeper::builder().require(Guarantee::Durable).connect(server.url()).await.map(drop).expect_err("less");
    assert!(error.kind() == ErrorKind::InvalidConfig && error.to_string().contains("Durable"), "{error}");
    assert!(said.count("before a commit is on disk") > 0);
    // Sessions of ours have what the role has.
    server.sql(
        "ALTER ROLE postgres SET synchronous_commit = local; CREATE TABLE seen (setting text);
         CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
         CREATE TRIGGER see AFTER INSERT OR UPDATE ON lockkeeper.lock EXECUTE FUNCTION see()",
    );
    let keeper = keeper(&server.url()).await;
    let (held, shared) = (taken(&keeper, "x").await, keeper.lock("y").shared().acquire().await.expect("granted"));
    held.release().await.expect("released");
    shared.release().await.expect("released");
    assert_eq!(server.sql("SELECT DISTINCT setting FROM seen"), "local");
    let info = PostgresStore::connect(&server.url()).await.expect("connected").info();
    let longest = Duration::from_secs(30 * 24 * 3600);
    assert_eq!((info.ttl_floor, info.ttl_ceiling), (Duration::from_millis(100), longest));
}

/// One holds, one of another keeper waits; the release hands over.
async fn hands_over(holder: &Keeper, waiter: &Keeper, name: &str) {
    let guard = taken(holder, name).await;
    let waiting = tokio::spawn({
        let (waiter, name) = (waiter.clone(), name.to_owned());
        async move { taken(&waiter, &name).await }
    });
    // Time to ask; not every mode shows who waits. One that is late comes in all the same.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    let before = guard.token();
    guard.release().await.expect("released");
    let guard = waiting.await.expect("handed over");
    assert!(guard.token() > before);
    guard.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poolers_are_as_good_as_the_page_says() {
    if !testkit::alone("docs_page::poolers_are_as_good_as_the_page_says") {
        return;
    }
    let (server, said) = (PostgresServer::new(), warnings::all());
    let pooling = || said.count("a pooler gives each transaction another server");
    // Of sessions: all is as without one.
    let sessions = PgBouncer::of_sessions(&server, 20);
    for options in ["", "?mode=advisory"] {
        let [a, b] = [(); 2].map(|()| format!("{}{options}", sessions.url()));
        let (a, b) = (keeper(&a).await, keeper(&b).await);
        hands_over(&a, &b, "x").await;
        let listening =
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%LISTEN lk_%' AND pid <> pg_backend_pid()";
        if options.is_empty() {
            testkit::eventually(SOON, "they listen", || server.sql(listening) == "2");
        }
    }
    assert_eq!(pooling(), 0);
    // Of transactions: each keeper says so, once, when it has found out.
    let bouncer = PgBouncer::new(&server, 3);
    let (a, b) = (keeper(&bouncer.url()).await, keeper(&bouncer.url()).await);
    let began = Instant::now();
    while pooling() < 2 {
        assert!(began.elapsed() < SOON, "both find out");
        // Side by side, so that the pooler has to lend several servers: one after another may all get the same one.
        tokio::join!(hands_over(&a, &b, "x"), hands_over(&b, &a, "y"), hands_over(&a, &b, "z"));
    }
    hands_over(&a, &b, "x").await;
    hands_over(&b, &a, "x").await;
    assert_eq!(pooling(), 2);
    drop((a, b));

    // One that is found late costs speed, not safety.
    let (inside, mut tasks) = (Arc::new(AtomicU32::new(0)), JoinSet::new());
    for _ in 0..2 {
        let late = Keeper::builder().ttl(Duration::from_secs(3));
        let (late, inside) =
            (late.connect(format!("{}?pooled=no", bouncer.url())).await.expect("connected"), inside.clone());
        tasks.spawn(async move {
            let mut last = None;
            for _ in 0..4 {
                let guard = late.lock("x").wait(SOON).acquire().await.expect("granted");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                // Its work, in which another holder might come in.
                tokio::time::sleep(Duration::from_millis(20)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                assert!(last < Some(guard.token()));
                last = Some(guard.token());
                guard.release().await.expect("released");
            }
        });
    }
    tasks.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn advisory_locks_are_as_the_page_says() {
    let server = PostgresServer::new();
    let url = format!("{}?mode=advisory&application_name=a", server.url());
    Keeper::builder().require(Guarantee::Durable).connect(&url).await.map(drop).expect_err("`Primary`");
    let a = Keeper::builder().require(Guarantee::Primary).connect(&url).await.expect("connected");
    let held = taken(&a, "x").await;
    let sessions = || server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'a'");
    testkit::eventually(SOON, "one connection", || sessions() == "1");
    let view = "SELECT convert_from(name, 'UTF8'), drawn FROM lockkeeper.advisory_holders";
    assert_eq!(server.sql(view), format!("x|{}", held.token()));
    assert_eq!(a.list("", None).await.expect("listed").records.len(), 1);
    assert_eq!(sessions(), "2", "and another one after the first `ls`");
    // Another database, or a lease, is another lock.
    server.sql("CREATE DATABASE elsewhere");
    let elsewhere = url.replace("/postgres?", "/elsewhere?");
    drop(taken(&keeper(&elsewhere).await, "x").await);
    drop(taken(&keeper(&server.url()).await, "x").await);

    // Who waits in the server comes first, and ours never do.
    let b = keeper(&format!("{}?mode=advisory", server.url())).await;
    let waiting = tokio::spawn(async move { taken(&b, "x").await });
    let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.expect("connected");
    tokio::spawn(connection);
    let key = "('x' || encode(substr(sha256(convert_to('x', 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint";
    let client = Arc::new(client);
    let other = tokio::spawn({
        let (client, take) = (client.clone(), format!("SELECT pg_advisory_lock({key})"));
        async move { client.batch_execute(&take).await }
    });
    let line = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    testkit::eventually(SOON, "a peer waits in the server", || server.sql(line) != "0");
    assert_eq!(server.sql(line), "1");
    held.release().await.expect("released");
    other.await.expect("asked").expect("granted");
    assert!(!waiting.is_finished(), "ours has to ask again");
    client.batch_execute(&format!("SELECT pg_advisory_unlock({key})")).await.expect("unlocked");
    waiting.await.expect("granted").release().await.expect("released");
}

#[tokio::test]
async fn rows_of_shedlock_are_in_utc_and_locks_of_ours_are_others() {
    let server = PostgresServer::new();
    server.sql("ALTER ROLE postgres SET timezone = 'Asia/Tokyo'");
    let shed = keeper(&format!("{}?layout=shedlock", server.url())).await;
    let guard = shed.lock("job").ttl(Duration::from_secs(60)).acquire().await.expect("granted");
    let left = "SELECT extract(epoch FROM lock_until - timezone('utc', now()))::int BETWEEN 1 AND 60, \
        locked_at BETWEEN timezone('utc', now()) - interval '1 minute' AND timezone('utc', now()) FROM shedlock";
    assert_eq!(server.sql(left), "t|t");
    drop(taken(&keeper(&server.url()).await, "job").await);
    let error = shed.lock("other").shared().try_acquire().await.map(drop).expect_err("Exclusive only");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let columns = "SELECT string_agg(column_name, ' ' ORDER BY column_name) FROM information_schema.columns \
        WHERE table_name = 'shedlock'";
    assert_eq!(server.sql(columns), "lock_until locked_at locked_by name");
    guard.release().await.expect("released");
}
