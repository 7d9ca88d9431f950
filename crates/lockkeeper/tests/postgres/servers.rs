//! The PostgreSQL store and what servers do: close connections, restart, fail over, freeze, refuse.

use crate::keepers::{in_line, keeper, refusal, taken};
use lockkeeper::stores::postgres::PostgresStore;
use lockkeeper::{Error, ErrorKind, Guarantee, Guard, Keeper, LossReason, Phase};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::{PgBouncer, PgPair, PostgresServer, Proc, SOON};

const TTL: Duration = Duration::from_secs(5);

/// Every connection of the store that the server has.
const OURS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockkeeper'";

async fn connect_error(url: &str) -> Error {
    Keeper::connect(url).await.map(|_| ()).expect_err("an error")
}

/// Waits until a held lock has been renewed from now on.
async fn until_renewed(server: &PostgresServer, name: &str) {
    let ends = || server.sql(&format!("SELECT expires FROM lockkeeper.lock WHERE name = '{name}'"));
    let (before, end) = (ends(), Instant::now() + SOON * 2);
    // At least once: this runtime's own connection needs a moment to notice what has happened to it.
    tokio::time::sleep(Duration::from_millis(50)).await;
    while ends() == before {
        assert!(Instant::now() < end, "{name} is not renewed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// One holds, one of another keeper waits; the release hands over.
async fn hands_over(holder: &Keeper, waiter: &Keeper, name: &str) {
    let guard = taken(holder, name).await;
    let waiting = tokio::spawn({
        let (waiter, name) = (waiter.clone(), name.to_owned());
        async move { taken(&waiter, &name).await }
    });
    in_line(holder, name, 1).await;
    let before = guard.token();
    guard.release().await.expect("released");
    let guard = waiting.await.expect("handed over");
    assert!(guard.token() > before);
    guard.release().await.expect("released");
}

#[tokio::test]
async fn closed_connections_are_not_noticed() {
    let server = PostgresServer::new();
    let keeper = keeper(&server.url(), TTL).await;
    for round in 0..5 {
        let guard = taken(&keeper, "x").await;
        server.cut();
        // Time to notice: what is sent before that is unanswered.
        tokio::time::sleep(Duration::from_millis(50)).await;
        guard.release().await.unwrap_or_else(|e| panic!("round {round}: {e}"));
        let other = keeper.lock("y").try_acquire().await.expect("answered").expect("free");
        // Not by dropping it: that release may be under way when the connections are cut.
        other.release().await.expect("released");
    }
    hands_over(&keeper, &self::keeper(&server.url(), TTL).await, "x").await;
}

#[tokio::test]
async fn locks_and_places_in_line_survive_a_crash_of_the_server() {
    let mut server = PostgresServer::with(&["fsync=on"]);
    // Longer than a start takes on a busy machine.
    let connect = || Keeper::builder().ttl(TTL * 5).connect(server.url());
    let (a, b) = (connect().await.expect("connected"), connect().await.expect("connected"));
    let guard = taken(&a, "x").await;
    let waiting = tokio::spawn(async move { b.lock("x").wait(SOON * 4).acquire().await.expect("granted") });
    in_line(&a, "x", 1).await;
    server.kill();
    server.start();
    until_renewed(&server, "x").await;
    assert_eq!(guard.phase(), Phase::Held);
    let before = guard.token();
    guard.release().await.expect("released");
    let guard = waiting.await.expect("handed over");
    assert!(guard.token() > before);
}

#[tokio::test]
async fn tokens_rise_when_a_standby_that_missed_a_grant_is_promoted() {
    let mut pair = PgPair::new();
    // The standby's address first: the primary is found all the same.
    let (a, b) = (pair.primary.port(), pair.standby.port());
    let url = format!("postgres://postgres@127.0.0.1:{b},127.0.0.1:{a}/postgres?connect_timeout=2s");
    let keeper = keeper(&url, TTL).await;
    let known = taken(&keeper, "known").await;
    pair.in_step();
    pair.fall_behind();
    let lost = taken(&keeper, "lost").await;
    let error = connect_error(&pair.standby.url()).await;
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("standby"), "{error}");

    pair.primary.kill();
    pair.promote();
    // What the new primary never saw is gone, and its holder is told; what it saw is kept.
    assert_eq!(lost.lost().await, LossReason::Gone);
    let again = taken(&keeper, "lost").await;
    assert!(again.token() > lost.token(), "{} after {}", again.token(), lost.token());
    assert_eq!(known.phase(), Phase::Held);
    known.release().await.expect("released");
    hands_over(&keeper, &self::keeper(&url, TTL).await, "y").await;
}

#[tokio::test]
async fn a_server_that_turns_read_only_is_left_alone_and_locks_are_kept() {
    let server = PostgresServer::new();
    let keeper = keeper(&server.url(), TTL).await;
    let guard = taken(&keeper, "held").await;
    server.sql("ALTER SYSTEM SET default_transaction_read_only = on; SELECT pg_reload_conf()");
    testkit::eventually(SOON, "the server is read-only", || server.sql("SHOW default_transaction_read_only") == "on");
    let error = refusal(&keeper, "x").await;
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("read-only"), "{error}");
    server.sql("SET default_transaction_read_only = off; ALTER SYSTEM RESET default_transaction_read_only");
    server.sql("SET default_transaction_read_only = off; SELECT pg_reload_conf()");
    drop(taken(&keeper, "x").await);
    assert_eq!(guard.phase(), Phase::Held);
    guard.release().await.expect("released");
}

#[tokio::test]
async fn a_frozen_server_loses_the_lock_at_its_deadline_and_not_before() {
    let server = PostgresServer::new();
    let keeper = Keeper::builder().ttl(Duration::from_secs(2)).connect(server.url()).await.expect("connected");
    let began = Instant::now();
    let guard = taken(&keeper, "x").await;
    server.pause();
    assert_eq!(guard.lost().await, LossReason::Expired);
    let after = began.elapsed();
    assert!((Duration::from_millis(1500)..SOON).contains(&after), "{after:?}");
    assert_eq!(refusal(&keeper, "y").await.kind(), ErrorKind::Unavailable);
    server.resume();
    drop(taken(&keeper, "x").await);
}

/// Passes bytes on to a server, until it is told to hold them: both sides then see a peer that is silent.
struct Proxy {
    port: u16,
    silent: Arc<AtomicBool>,
}

impl Proxy {
    fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let proxy = Self { port: listener.local_addr().expect("bound").port(), silent: Arc::default() };
        let silent = proxy.silent.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(near), Ok(far)) = (stream, TcpStream::connect(("127.0.0.1", server))) else { continue };
                for (from, to) in [(near.try_clone(), far.try_clone()), (far.try_clone(), near.try_clone())] {
                    let (from, to, silent) = (from.expect("a socket"), to.expect("a socket"), silent.clone());
                    std::thread::spawn(move || pass(from, to, &silent));
                }
            }
        });
        proxy
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, silent: &AtomicBool) {
    let mut buffer = [0; 16384];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        while silent.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

#[tokio::test]
async fn a_connection_whose_peer_is_gone_without_a_word_is_replaced() {
    let server = PostgresServer::new();
    let (near, far) = (Proxy::before(server.port()), Proxy::before(server.port()));
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", near.port, far.port);
    let url = format!("postgres://postgres@{hosts}/postgres?connect_timeout=2s");
    let keeper = Keeper::builder().ttl(Duration::from_secs(18)).connect(url).await.expect("connected");
    let guard = taken(&keeper, "x").await;
    near.silent.store(true, Ordering::Relaxed);
    // The renewals go through the other way before the lease ends.
    until_renewed(&server, "x").await;
    assert_eq!(guard.phase(), Phase::Held);
    // This runtime's connection was idle, so the keeper did not know: the release is repeated by the keeper.
    if let Err(error) = guard.release().await {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    drop(taken(&keeper, "x").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_connection_slots_are_named_and_those_who_are_in_go_on() {
    let server = PostgresServer::with(&["max_connections=8", "superuser_reserved_connections=3"]);
    server.sql("CREATE ROLE app LOGIN");
    drop(keeper(&server.url(), TTL).await);
    server.sql(&grants());
    testkit::eventually(SOON, "the first keeper is gone", || server.sql(OURS) == "0");
    let url = server.url().replace("postgres@", "app@");
    let inside = keeper(&url, TTL).await;
    let guard = taken(&inside, "held").await;
    testkit::eventually(SOON, "it has what it needs: for calls, renewals and events", || server.sql(OURS) == "3");
    // Others take the two that are left. One may be refused because of the look at the sleepers.
    let sleep = format!("exec psql '{url}' -qXAt -c 'SELECT pg_sleep(600)'");
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'";
    let mut sleepers: Vec<Proc> = Vec::new();
    while sleepers.len() < 2 {
        let mut sleeper = Proc::start(std::process::Command::new("sh").args(["-c", &sleep]));
        let wanted = (sleepers.len() + 1).to_string();
        testkit::eventually(SOON, "it sleeps or is refused", || !sleeper.is_running() || server.sql(asleep) == wanted);
        if sleeper.is_running() {
            sleepers.push(sleeper);
        }
    }
    let error = connect_error(&url).await;
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("max_connections"), "{error}");
    until_renewed(&server, "held").await;
    assert_eq!(guard.phase(), Phase::Held);
    guard.release().await.expect("released");
    server.sql(&asleep.replace("count(*)", "pg_terminate_backend(pid)"));
    let end = Instant::now() + SOON;
    while let Err(error) = Keeper::connect(&url).await {
        assert!(Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What the page says an application's role needs.
fn grants() -> String {
    let page = include_str!("../../../../docs/stores/postgres.md");
    let code = page.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next());
    code.filter(|code| code.contains("GRANT USAGE ON SCHEMA lockkeeper TO app")).collect()
}

/// Connections that listen.
const LISTENING: &str = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN lk_%'";

#[tokio::test]
async fn a_role_needs_what_the_page_says_and_no_more() {
    let server = PostgresServer::new();
    server.sql("CREATE ROLE app LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    let url = server.url().replace("postgres@", "app@");
    let error = connect_error(&url).await;
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("`lockkeeper store init"), "{error}");
    drop(keeper(&server.url(), TTL).await);
    let error = connect_error(&url).await;
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("permission"), "{error}");
    // Every role may call functions by default; where they are not, the grant is needed.
    server.sql("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA lockkeeper FROM PUBLIC");
    server.sql(&grants());
    let app = keeper(&url, TTL).await;
    hands_over(&app, &keeper(&url, TTL).await, "x").await;
    let guard = taken(&app, "y").await;
    drop(app.lock("shared").shared().acquire().await.expect("granted"));
    assert_eq!(app.list("y", None).await.expect("listed").records.len(), 1);
    assert!(app.break_lock("y", guard.token()).await.expect("answered").is_some());
    assert_eq!(guard.lost().await, LossReason::Broken);
    server.sql("SET ROLE app; SELECT lockkeeper.clean(); SELECT * FROM lockkeeper.locks");

    // Not found out only when another claim is in the way.
    server.sql("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA lockkeeper FROM app");
    let error = connect_error(&url).await;
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("permission"), "{error}");
    server.sql("REVOKE UPDATE ON lockkeeper.lock FROM app");
    let error = refusal(&app, "z").await;
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("permission"), "{error}");
}

#[tokio::test]
async fn other_layouts_and_other_peoples_tables_are_refused() {
    let server = PostgresServer::new();
    drop(keeper(&format!("{}?schema=a", server.url()), TTL).await);
    drop(keeper(&format!("{}?schema=a", server.url()), TTL).await);
    for (change, kind, text) in [
        ("UPDATE a.layout SET version = 99", ErrorKind::Unsupported, "layout 99"),
        ("UPDATE a.layout SET version = -1", ErrorKind::Foreign, "none of Lockkeeper's"),
        ("DELETE FROM a.layout", ErrorKind::Foreign, "none of Lockkeeper's"),
        ("DROP TABLE a.layout; CREATE TABLE a.layout (paper text)", ErrorKind::Foreign, "not ours"),
    ] {
        server.sql(change);
        let error = connect_error(&format!("{}?schema=a", server.url())).await;
        assert!(error.kind() == kind && error.to_string().contains(text), "{change}: {error}");
    }
    // Another schema is another store.
    let b = keeper(&format!("{}?schema=b", server.url()), TTL).await;
    let guard = taken(&b, "x").await;
    server.sql("DROP SCHEMA b CASCADE");
    let error = refusal(&b, "y").await;
    assert!(error.kind() == ErrorKind::Foreign && error.to_string().contains("store init"), "{error}");
    drop(guard);
}

/// Functions that are older are replaced by a login that may, and by no other; newer ones are left alone.
#[tokio::test]
async fn older_functions_are_replaced_by_a_role_that_may() {
    let server = PostgresServer::new();
    let running = keeper(&server.url(), TTL).await;
    let held = taken(&running, "x").await;
    server.sql("CREATE ROLE worker LOGIN; GRANT USAGE ON SCHEMA lockkeeper TO worker");
    server.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lockkeeper TO worker");
    server.sql("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA lockkeeper FROM PUBLIC");
    server.sql("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA lockkeeper TO worker");
    let worker = server.url().replace("postgres@", "worker@");
    // A function as an earlier version may have had it: it fails.
    let spoil = "CREATE OR REPLACE FUNCTION lockkeeper.fits(l lockkeeper.lock, wanted bigint) RETURNS boolean \
        LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'older'; END $$;";
    let revision = || server.sql("SELECT version || ' ' || revision FROM lockkeeper.layout");
    let now = revision();
    server.sql(&format!("{spoil} UPDATE lockkeeper.layout SET revision = 0"));
    let error = connect_error(&worker).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(error.to_string().contains("older") && error.to_string().contains("lockkeeper store init"), "{error}");
    // Many come at once, as when a new version is rolled out.
    let all: Vec<_> = (0..4)
        .map(|_| {
            let url = server.url();
            tokio::spawn(async move { keeper(&url, TTL).await })
        })
        .collect();
    for one in all {
        drop(one.await.expect("connected"));
    }
    assert_eq!(revision(), now);
    // Who may call them has not changed.
    let other = keeper(&worker, TTL).await;
    assert!(other.lock("x").try_acquire().await.expect("answered by the new function").is_none());
    let shared = other.lock("y").shared().try_acquire().await.expect("answered by the new function");
    drop(shared.expect("free"));
    held.release().await.expect("released: those who were connected go on");
    // What a later version brought along is not taken back.
    server.sql("UPDATE lockkeeper.layout SET revision = 1000");
    drop(taken(&keeper(&worker, TTL).await, "x").await);
    assert_eq!(revision(), "1 1000");
}

#[tokio::test]
async fn settings_that_locks_cannot_work_with_are_named() {
    let server = PostgresServer::with(&["fsync=on"]);
    let url = server.url();
    Keeper::builder().require(Guarantee::Durable).connect(&url).await.expect("durable");
    server.sql("ALTER ROLE postgres SET synchronous_commit = off");
    let error = Keeper::builder().require(Guarantee::Durable).connect(&url).await.map(|_| ()).expect_err("an error");
    assert!(error.kind() == ErrorKind::InvalidConfig && error.to_string().contains("Durable"), "{error}");
    Keeper::builder().require(Guarantee::Primary).connect(&url).await.expect("as good as one primary");

    let open = keeper(&url, TTL).await;
    server.sql("ALTER ROLE postgres SET default_transaction_isolation = 'serializable'");
    let error = connect_error(&url).await;
    assert!(error.kind() == ErrorKind::InvalidConfig && error.to_string().contains("read committed"), "{error}");
    server.cut();
    let error = loop {
        match open.lock("x").try_acquire().await {
            Ok(guard) => drop(guard),
            Err(error) if error.kind() == ErrorKind::Unavailable => {}
            Err(error) => break error,
        }
    };
    assert!(error.kind() == ErrorKind::InvalidConfig && error.to_string().contains("read committed"), "{error}");
}

#[tokio::test]
async fn logins_are_checked_and_never_printed() {
    let hba = "host all postgres 127.0.0.0/8 trust\nhost all all 127.0.0.0/8 scram-sha-256\n";
    let server = PostgresServer::with_tls(hba);
    server.sql("CREATE ROLE ann LOGIN PASSWORD 'geheim'; CREATE DATABASE ann OWNER ann");
    let at = format!("127.0.0.1:{}", server.port());
    let file = server.dir().write("password", "geheim\n");
    let good = [
        format!("postgres://ann:geheim@{at}"),
        format!("postgresql://ann:geheim@{at}/ann?sslmode=disable"),
        format!("postgres://ann@{at}/ann?password_file={}", file.display()),
    ];
    for url in good {
        let keeper = keeper(&url, TTL).await;
        drop(taken(&keeper, "x").await);
        let shown = format!("{keeper:?} {:?}", PostgresStore::connect(&url).await.expect("connected"));
        assert!(!shown.contains("geheim"), "{shown}");
    }
    for (url, kind) in [
        (format!("postgres://ann:falsch@{at}"), ErrorKind::Denied),
        (format!("postgres://bob:falsch@{at}"), ErrorKind::Denied),
        (format!("postgres://ann@{at}/ann"), ErrorKind::Denied),
        (format!("postgres://ann:geheim@{at}/nirgends"), ErrorKind::InvalidConfig),
        (format!("postgres://ann:geheim@127.0.0.1:{}", testkit::free_port()), ErrorKind::Unavailable),
    ] {
        let error = connect_error(&url).await;
        assert_eq!(error.kind(), kind, "{error:?}");
        let mut shown = format!("{error} {error:?}");
        let mut source = std::error::Error::source(&error);
        while let Some(inner) = source {
            shown += &format!(" {inner} {inner:?}");
            source = inner.source();
        }
        assert!(!shown.contains("falsch") && !shown.contains("geheim"), "{shown}");
        // Also without a runtime.
        let error = std::thread::spawn(move || lockkeeper::blocking::Keeper::connect(url).map(|_| ()).unwrap_err());
        assert_eq!(error.join().unwrap().kind(), kind);
    }
}

#[tokio::test]
async fn tls_checks_as_much_as_its_mode_says() {
    let server = PostgresServer::with_tls("hostssl all all 127.0.0.0/8 trust clientcert=verify-ca\n");
    let file = |name: &str| server.dir().join(name).display().to_string();
    let (ca, other, cert, key) = (file("ca.crt"), file("other.crt"), file("client.crt"), file("client.key"));
    let own = format!("sslcert={cert}&sslkey={key}");
    let at = |host: &str, query: &str| format!("postgres://postgres@{host}:{}/postgres?{query}", server.port());
    for (host, query) in [
        ("localhost", format!("sslmode=verify-full&sslrootcert={ca}&{own}")),
        ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={ca}&{own}")),
        // Its certificate is not for this address.
        ("127.0.0.2", format!("sslmode=verify-ca&sslrootcert={ca}&{own}")),
        ("127.0.0.2", format!("sslmode=require&{own}")),
        ("127.0.0.2", own.clone()),
    ] {
        let url = at(host, &query);
        hands_over(&keeper(&url, TTL).await, &keeper(&url, TTL).await, "x").await;
    }
    for (host, query, kind) in [
        ("127.0.0.2", format!("sslmode=verify-full&sslrootcert={ca}&{own}"), ErrorKind::Denied),
        ("127.0.0.1", format!("sslmode=verify-ca&sslrootcert={other}&{own}"), ErrorKind::Denied),
        ("127.0.0.1", format!("sslmode=require&sslrootcert={other}&{own}"), ErrorKind::Denied),
        ("127.0.0.1", format!("sslmode=verify-full&{own}"), ErrorKind::Denied),
        ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={ca}"), ErrorKind::Denied),
        ("127.0.0.1", "sslmode=disable".to_owned(), ErrorKind::Denied),
        ("127.0.0.1", format!("sslmode=disable&sslrootcert={ca}"), ErrorKind::InvalidConfig),
        ("127.0.0.1", format!("sslcert={cert}"), ErrorKind::InvalidConfig),
        ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={key}"), ErrorKind::InvalidConfig),
    ] {
        let error = connect_error(&at(host, &query)).await;
        assert_eq!(error.kind(), kind, "{host} {query}: {error:?}");
    }
    let plain = PostgresServer::new();
    let error = connect_error(&format!("{}?sslmode=require", plain.url())).await;
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("TLS"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_listens_directly_and_asks_behind_a_pooler() {
    let server = PostgresServer::new();
    let direct = keeper(&server.url(), TTL).await;
    let other = keeper(&server.url(), TTL).await;
    hands_over(&direct, &other, "x").await;
    testkit::eventually(SOON, "they listen", || server.sql(LISTENING) == "2");
    drop((direct, other));
    testkit::eventually(SOON, "it is gone", || server.sql(OURS) == "0");

    let bouncer = PgBouncer::new(&server, 3);
    for query in ["", "?pooled=yes"] {
        let (a, b) = (keeper(&(bouncer.url() + query), TTL).await, keeper(&(bouncer.url() + query), TTL).await);
        let began = Instant::now();
        for _ in 0..5 {
            hands_over(&a, &b, "x").await;
        }
        // A keep-alive that finds the grant comes after a third of the lease; asking finds it long before.
        assert!(began.elapsed() < TTL / 3 * 5, "{:?}", began.elapsed());
    }
    // A proxy that is no pooler: still a session, which can listen.
    let proxy = Proxy::before(server.port());
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port);
    let (a, b) = (keeper(&url, TTL).await, keeper(&url, TTL).await);
    hands_over(&a, &b, "x").await;
    testkit::eventually(SOON, "they listen", || server.sql(LISTENING) == "2");
}

#[test]
fn a_keeper_outlives_the_runtimes_it_is_used_on() {
    let server = PostgresServer::new();
    let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let keeper = run().block_on(keeper(&server.url(), TTL));
    let guards: Vec<Guard> = (0..4).map(|i| run().block_on(taken(&keeper, &format!("lock {i}")))).collect();
    std::thread::sleep(TTL * 2);
    for guard in guards {
        assert_eq!(guard.phase(), Phase::Held);
        run().block_on(guard.release()).expect("released");
    }
    // What those runtimes left open is closed.
    testkit::eventually(SOON, "few connections are left", || server.sql(OURS).parse::<u32>().unwrap() <= 3);
}
