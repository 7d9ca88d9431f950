//! The MySQL store and what servers do: cut connections, restart, freeze, refuse.

use crate::keepers::{keeper, refusal, taken};
use lockkeeper::clock::Stamp;
use lockkeeper::store::{Attempt, Claim};
use lockkeeper::stores::mysql::MysqlStore;
use lockkeeper::{Error, ErrorKind, Guard, HolderId, Keeper, LockName, LossReason, Phase, Store};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use testkit::{MysqlServer, SOON, eventually};

const TTL: Duration = Duration::from_secs(6);

/// For tests that do no harm: its defaults are as unlike ours as they can be.
static SHARED: LazyLock<&'static MysqlServer> = LazyLock::new(|| {
    let options = [
        "--default-time-zone=+05:30",
        "--sql-mode=ANSI_QUOTES,PIPES_AS_CONCAT",
        "--character-set-server=latin1",
        "--collation-server=latin1_german1_ci",
        "--transaction-isolation=SERIALIZABLE",
        "--autocommit=0",
        "--innodb-rollback-on-timeout=1",
        "--log-bin=log",
        "--loose-gtid-mode=on",
        "--loose-enforce-gtid-consistency=on",
        "--loose-sql-require-primary-key=on",
        "--max-connections=400",
    ];
    MysqlServer::with(&options).share()
});

/// How often transactions were in each other's way.
const DEADLOCKS: &str = "SELECT COUNT FROM information_schema.INNODB_METRICS WHERE NAME = 'lock_deadlocks'";

async fn connect_error(url: &str) -> Error {
    Keeper::connect(url).await.map(|_| ()).expect_err("an error")
}

/// Ends all connections of a user.
fn cut(server: &MysqlServer, user: &str) -> usize {
    let ids = server.sql(&format!("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '{user}'"));
    for id in ids.lines() {
        server.sql(&format!("KILL {id}"));
    }
    ids.lines().count()
}

/// A database of its own, and a user who may do everything there and nothing elsewhere.
fn database(server: &MysqlServer, name: &str) -> String {
    server.sql(&format!("CREATE DATABASE {name}"));
    server.sql(&format!("CREATE USER {name} IDENTIFIED BY 'geheim'"));
    server.sql(&format!("GRANT ALL ON {name}.* TO {name}"));
    format!("mysql://{name}:geheim@127.0.0.1:{}/{name}", server.port())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_killed_cost_no_lock() {
    let url = database(&SHARED, "killed");
    let [a, b] = [keeper(&url, TTL).await, keeper(&url, TTL).await];
    let guard = taken(&a, "x").await;
    let waiting = tokio::spawn(async move { taken(&b, "x").await });
    for _ in 0..4 {
        assert!(cut(&SHARED, "killed") > 0);
        tokio::time::sleep(TTL / 4).await;
        guard.check().expect("still ours");
    }
    assert!(!waiting.is_finished());
    drop(taken(&a, "y").await);
    let token = guard.token();
    guard.release().await.expect("released");
    assert!(waiting.await.expect("granted").token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_keeps_locks_and_tokens() {
    let mut server = MysqlServer::new();
    let keeper = keeper(&server.url(), TTL).await;
    let guard = taken(&keeper, "x").await;
    server.kill();
    assert_eq!(refusal(&keeper, "y").await.kind(), ErrorKind::Unavailable);
    server.start();
    tokio::time::sleep(TTL).await;
    // A machine so slow that the server was away for the whole lease proves nothing either way.
    if guard.phase() == Phase::Held {
        assert!(keeper.lock("x").try_acquire().await.expect("answered").is_none());
    }
    let token = guard.token();
    drop(guard);
    assert!(taken(&keeper, "x").await.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_loses_the_lock_at_its_deadline_and_not_before() {
    let server = MysqlServer::new();
    for options in ["", "?mode=get_lock"] {
        let url = format!("{}{options}", server.url());
        let keeper = Keeper::builder().ttl(Duration::from_secs(2)).connect(url).await.unwrap();
        let began = Instant::now();
        let guard = taken(&keeper, "x").await;
        server.pause();
        assert_eq!(guard.lost().await, LossReason::Expired);
        let after = began.elapsed();
        assert!((Duration::from_millis(1500)..SOON).contains(&after), "{after:?}");
        assert_eq!(refusal(&keeper, "y").await.kind(), ErrorKind::Unavailable);
        server.resume();
        drop(guard);
        drop(taken(&keeper, "x").await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_handed_over_long_before_a_keep_alive_is_due() {
    let url = SHARED.url();
    let [a, b] = [keeper(&url, TTL).await, keeper(&url, TTL).await];
    let mut slowest = Duration::ZERO;
    for round in 0..5 {
        let name = format!("prompt {round}");
        let guard = taken(&a, &name).await;
        let waiting = tokio::spawn({
            let (b, name) = (b.clone(), name.clone());
            async move { (taken(&b, &name).await, Instant::now()) }
        });
        while a.inspect(&name).await.expect("answered").is_none_or(|record| record.waiting == 0) {
            tokio::task::yield_now().await;
        }
        let freed = Instant::now();
        guard.release().await.expect("released");
        let (_guard, when) = waiting.await.expect("granted");
        slowest = slowest.max(when - freed);
    }
    assert!(slowest < TTL / 6, "{slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_share_few_connections_and_no_transaction_is_in_anothers_way() {
    let url = format!("{}?connections=3", database(&SHARED, "crowd"));
    let keepers = [keeper(&url, TTL).await, keeper(&url, TTL).await];
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..120_u32 {
        let keeper = keepers[i as usize % 2].clone();
        tasks.spawn(async move {
            for turn in 0..5 {
                // A few names, so that they meet; all modes.
                let lock = keeper.lock(format!("crowd {}", (i + turn) % 7)).wait(SOON * 4);
                let lock = match (i + turn) % 7 {
                    0 | 1 => lock.shared(),
                    2 => lock.permits(3),
                    _ => lock,
                };
                lock.acquire().await.expect("granted").release().await.expect("released");
            }
        });
    }
    let mut most = 0;
    while !tasks.is_empty() {
        let count = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'crowd'";
        most = most.max(SHARED.sql(count).parse::<usize>().expect("a number"));
        while tasks.try_join_next().transpose().expect("no task panics").is_some() {}
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Each keeper has at most three for this runtime, and three for its own thread.
    assert!((1..=12).contains(&most), "{most} connections");
    assert_eq!(SHARED.sql(DEADLOCKS), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_fresh_names_never_wait_for_each_other() {
    let url = database(&SHARED, "batches");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = MysqlStore::connect(&url).await.expect("connected");
        tasks.spawn(async move {
            let (mut granted, note) = (0, Arc::default());
            for round in 0..20 {
                let claim = |i: u32| {
                    let name = LockName::new(format!("batch {round} {i:03}")).expect("a name");
                    let holder = HolderId::random().expect("random");
                    Claim::new(name, holder, TTL * 10, Stamp::from_micros(0), Arc::clone(&note))
                };
                // In any order: the store locks rows in one.
                let mut claims: Vec<Claim> = (0..60).map(claim).collect();
                fastrand::shuffle(&mut claims);
                for (claim, answer) in claims.iter().zip(store.try_acquire(&claims).await) {
                    let answer = answer.unwrap_or_else(|e| panic!("{:?}: {e}", claim.name));
                    granted += usize::from(matches!(answer, Attempt::Granted(_)));
                }
                for answer in store.release(&claims).await {
                    answer.expect("answered");
                }
            }
            granted
        });
    }
    assert!(tasks.join_all().await.into_iter().sum::<usize>() >= 20 * 60);
    assert_eq!(SHARED.sql(DEADLOCKS), "0");
}

#[tokio::test]
async fn full_connection_slots_are_named() {
    let server = MysqlServer::with(&["--max-connections=10", "--loose-extra-max-connections=2"]);
    let url = database(&server, "few");
    let keeper = keeper(&url, TTL).await;
    let guard = taken(&keeper, "x").await;
    let ours = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'few'";
    eventually(SOON, "calls and renewals have a connection each", || server.sql(ours) == "2");
    let mut open = Vec::new();
    // Connections that are being closed still count for a moment: full is what stays full.
    let mut refused = 0;
    while refused < 10 {
        // Plain ones: each takes one slot and keeps it.
        refused = match mysql_async::Conn::from_url(&url).await {
            Ok(conn) => {
                open.push(conn);
                0
            }
            Err(_) => refused + 1,
        };
        assert!(open.len() < 50, "there is a limit");
        tokio::time::sleep(Duration::from_millis(if refused == 0 { 0 } else { 100 })).await;
    }
    let error = connect_error(&url).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("max_connections"), "{error}");
    // Who is connected goes on.
    tokio::time::sleep(TTL).await;
    guard.check().expect("renewed");
    open.clear();
    let end = Instant::now() + SOON;
    while MysqlStore::connect(&url).await.is_err() {
        assert!(Instant::now() < end, "slots are given back");
    }
}

#[tokio::test]
async fn a_login_without_rights_is_told_what_to_do_and_the_recipe_is_enough() {
    let server = &*SHARED;
    server.sql("CREATE DATABASE strict");
    server.sql("CREATE USER app IDENTIFIED BY 'geheim'");
    let (app, root) = (
        format!("mysql://app:geheim@127.0.0.1:{}/strict", server.port()),
        format!("mysql://root@127.0.0.1:{}/strict", server.port()),
    );
    let error = connect_error(&app).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    server.sql("GRANT SELECT ON strict.* TO app");
    let error = connect_error(&app).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(error.to_string().contains("lockkeeper store init"), "{error}");
    for _ in 0..2 {
        MysqlStore::install(&root).await.expect("made, also twice");
    }
    // What docs/stores/mysql.md says.
    server.sql("REVOKE ALL PRIVILEGES, GRANT OPTION FROM app");
    server.sql("GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON strict.* TO app");
    for url in [app.clone(), format!("{app}?mode=get_lock")] {
        let keeper = keeper(&url, TTL).await;
        let guard = taken(&keeper, "x").await;
        assert!(keeper.lock("x").try_acquire().await.expect("answered").is_none());
        guard.release().await.expect("released");
    }
    server.sql("REVOKE EXECUTE ON strict.* FROM app");
    let error = connect_error(&app).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(!format!("{error:?}").contains("geheim"));
}

#[tokio::test]
async fn logins_are_checked_and_never_printed() {
    let good = database(&SHARED, "login");
    let file = SHARED.dir().write("password", "geheim\n");
    let at = format!("127.0.0.1:{}/login", SHARED.port());
    for url in [
        good.clone(),
        good.replace("mysql:", "mariadb:"),
        format!("mysql://login@{at}?password_file={}", file.display()),
    ] {
        let keeper = keeper(&url, TTL).await;
        drop(taken(&keeper, "x").await);
        assert!(!format!("{keeper:?}").contains("geheim"));
    }
    for url in [format!("mysql://login:falsch@{at}"), format!("mysql://nobody:falsch@{at}")] {
        let error = connect_error(&url).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        let mut shown = format!("{error} {error:?}");
        let mut source = std::error::Error::source(&error);
        while let Some(inner) = source {
            shown += &format!(" {inner} {inner:?}");
            source = inner.source();
        }
        assert!(!shown.contains("falsch"), "{shown}");
        // Also without a runtime.
        let error = std::thread::spawn(move || lockkeeper::blocking::Keeper::connect(url).map(|_| ()).unwrap_err());
        assert_eq!(error.join().unwrap().kind(), ErrorKind::Denied);
    }
    let error = connect_error(&SHARED.url().replace("/test", "/nowhere")).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error:?}");
    let error = connect_error("mysql://127.0.0.1:1/test").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_who_find_no_tables_make_them_once() {
    let url = database(&SHARED, "fresh");
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..12 {
        let url = url.clone();
        tasks.spawn(async move {
            let keeper = keeper(&url, TTL).await;
            // While others may still be at it.
            for turn in 0..10 {
                drop(taken(&keeper, &format!("fresh {i} {turn}")).await);
            }
        });
    }
    tasks.join_all().await;
    // What was lost since is made again, and what is there stays.
    SHARED.sql("DROP PROCEDURE fresh.lockkeeper_enter");
    MysqlStore::install(&url).await.expect("made");
    let procedures = "SELECT COUNT(*) FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = 'fresh'";
    assert_eq!(SHARED.sql(procedures), "3");
}

#[tokio::test]
async fn another_layout_is_refused() {
    let url = database(&SHARED, "version");
    drop(keeper(&url, TTL).await);
    for (version, kind, word) in [(99, ErrorKind::Unsupported, "upgrade"), (0, ErrorKind::Foreign, "prefix")] {
        SHARED.sql(&format!("UPDATE version.lockkeeper_layout SET version = {version}; COMMIT"));
        let error = connect_error(&url).await;
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.to_string().contains(word), "{error}");
    }
    // Another prefix is another store.
    drop(taken(&keeper(&format!("{url}?prefix=other_"), TTL).await, "x").await);
    let gone = format!("{url}?prefix=gone_");
    let (held, other) = (taken(&keeper(&gone, TTL).await, "x").await, keeper(&gone, TTL).await);
    SHARED.sql("DROP PROCEDURE version.gone_step");
    for error in [refusal(&other, "x").await, connect_error(&gone).await] {
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error:?}");
    }
    MysqlStore::install(&gone).await.expect("what is missing is made");
    held.release().await.expect("released");
}

#[tokio::test]
async fn a_read_only_server_is_unavailable_and_named() {
    let server = MysqlServer::new();
    let url = database(&server, "readers");
    // The second is for those who may do everything, on a server that knows the difference.
    let settings = [("read_only", url), ("super_read_only", server.url())];
    for (setting, url) in &settings[..if server.is_mysql() { 2 } else { 1 }] {
        let (keeper, name) = (self::keeper(url, TTL).await, "free");
        drop(taken(&keeper, name).await);
        let waiting = self::keeper(url, TTL).await;
        let held = taken(&keeper, "held").await;
        server.sql(&format!("SET GLOBAL {setting} = ON"));
        for error in [
            refusal(&keeper, name).await,
            refusal(&waiting, "held").await,
            connect_error(&format!("{url}?prefix=new_")).await,
            connect_error(&format!("{url}?mode=get_lock")).await,
        ] {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{setting}: {error:?}");
            assert!(error.to_string().contains("read-only"), "{setting}: {error}");
        }
        server.sql("SET GLOBAL read_only = OFF");
        drop((taken(&keeper, name).await, held));
    }
}

#[tokio::test]
async fn what_is_durable_depends_on_all_logs_of_the_server() {
    use lockkeeper::Guarantee::{Durable, Primary};
    for (binlog, found) in
        [("--skip-log-bin", [Durable, Durable, Primary]), ("--log-bin=log", [Durable, Primary, Primary])]
    {
        let server = MysqlServer::with(&[binlog]);
        for ((flush, sync), found) in [(1, 1), (1, 0), (2, 1)].into_iter().zip(found) {
            let set = format!("SET GLOBAL innodb_flush_log_at_trx_commit = {flush}; SET GLOBAL sync_binlog = {sync}");
            server.sql(&set);
            let keeper = keeper(&server.url(), TTL).await;
            assert_eq!(keeper.info().guarantee, found, "{binlog}: {set}");
        }
    }
}

#[tokio::test]
async fn a_clock_that_stands_still_within_a_statement_is_refused() {
    let server = MysqlServer::with(&["--sysdate-is-now"]);
    let error = connect_error(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.to_string().contains("sysdate-is-now"), "{error}");
}

#[tokio::test]
async fn a_binary_log_of_statements_is_refused() {
    let server = MysqlServer::with(&["--log-bin=log", "--binlog-format=STATEMENT"]);
    for options in ["", "?mode=get_lock", "?layout=shedlock"] {
        let url = format!("{}{options}", server.url());
        let error = match Keeper::connect(&url).await {
            Ok(keeper) => refusal(&keeper, "x").await,
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{options}: {error:?}");
        assert!(error.to_string().contains("binlog_format"), "{options}: {error}");
    }
}

#[tokio::test]
async fn a_session_that_is_set_up_otherwise_is_refused() {
    let url = database(&SHARED, "proxy");
    drop(keeper(&url, TTL).await);
    let call = "CALL proxy.lockkeeper_step('n','x',REPEAT('h',16),0,1,1,0,0,NULL,NULL,NULL,NULL)";
    let ours = "SET time_zone = '+00:00'; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
    assert!(SHARED.sql(&format!("{ours}; {call}")).starts_with('4'), "no claim holds it");
    for theirs in ["SET time_zone = '+01:00'", "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"] {
        let said = std::panic::catch_unwind(|| SHARED.sql(&format!("{ours}; {theirs}; {call}"))).expect_err("refused");
        assert!(said.downcast_ref::<String>().is_some_and(|said| said.contains("LK001")), "{said:?}");
    }
}

#[tokio::test]
async fn tls_is_as_strict_as_it_is_asked_to_be() {
    let server = MysqlServer::with_tls();
    let file = |name: &str| server.dir().join(name).display().to_string();
    let (ca, other) = (file("ca.crt"), file("other.crt"));
    server.sql("CREATE USER safe IDENTIFIED BY 'geheim' REQUIRE SSL");
    server.sql("GRANT ALL ON test.* TO safe");
    let url = |options: &str| format!("mysql://safe:geheim@localhost:{}/test?{options}", server.port());
    for options in [
        String::new(),
        "ssl-mode=required".into(),
        format!("ssl-ca={ca}"),
        format!("ssl-mode=verify-identity&ssl-ca={ca}"),
        format!("mode=get_lock&ssl-mode=verify-ca&ssl-ca={ca}"),
    ] {
        drop(taken(&keeper(&url(&options), TTL).await, "x").await);
    }
    for (options, kind) in [
        ("ssl-mode=disabled".to_owned(), ErrorKind::Denied),
        (format!("ssl-mode=verify-identity&ssl-ca={other}"), ErrorKind::Denied),
        ("ssl-mode=verify-identity".to_owned(), ErrorKind::Denied),
        (format!("ssl-ca={}", file("server.key")), ErrorKind::InvalidConfig),
    ] {
        let error = connect_error(&url(&options)).await;
        assert_eq!(error.kind(), kind, "{options}: {error:?}");
    }
    // No TLS where it is asked for.
    let plain = MysqlServer::without_tls(&[]);
    let error = connect_error(&format!("{}?ssl-mode=required", plain.url())).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_session_is_told_at_once() {
    let url = database(&SHARED, "session");
    let mine = Keeper::builder().ttl(TTL * 100).connect(format!("{url}?mode=get_lock")).await.expect("connected");
    for _ in 0..3 {
        let [one, two] = [taken(&mine, "one").await, taken(&mine, "Two!").await];
        assert_eq!(SHARED.sql("SELECT IS_FREE_LOCK('one')"), "0");
        let began = Instant::now();
        let id = SHARED.sql("SELECT IS_USED_LOCK('one')");
        SHARED.sql(&format!("KILL {id}"));
        // A renewal would be due only after minutes.
        for guard in [one, two] {
            assert_eq!(guard.lost().await, LossReason::SessionEnded);
            assert!(guard.check().is_err());
        }
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
    let guard = taken(&mine, "one").await;
    // The other connection alone is no loss.
    let id = SHARED.sql("SELECT IS_USED_LOCK('one')");
    let others = format!("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'session' AND ID <> {id}");
    for other in SHARED.sql(&others).lines() {
        SHARED.sql(&format!("KILL {other}"));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(guard.phase(), Phase::Held);
    let other = keeper(&format!("{url}?mode=get_lock"), TTL).await;
    assert!(other.lock("one").try_acquire().await.expect("answered").is_none());
    guard.release().await.expect("released");
    drop(taken(&other, "one").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stepping_clock_delays_no_waiter_for_long_and_tokens_rise() {
    const HOUR: i64 = 3600;
    let server = MysqlServer::with_clock();
    let url = server.url();
    let [a, b] = [keeper(&url, TTL).await, keeper(&url, TTL).await];
    let guard = taken(&a, "x").await;
    let waiting = tokio::spawn({
        let b = b.clone();
        async move { taken(&b, "x").await }
    });
    let clock = || server.sql("SELECT UNIX_TIMESTAMP(SYSDATE())").parse::<i64>().expect("a time");
    let before = clock();
    server.step_clock(-HOUR);
    assert!(clock() < before - HOUR / 2, "the clock was stepped");
    tokio::time::sleep(TTL).await;
    assert_eq!(guard.phase(), Phase::Held);
    assert!(!waiting.is_finished());
    let token = guard.token();
    // The server counts its waits by the true clock, from a beginning that it reads an hour earlier. So a call that meets a
    // locked row does not wait for it, and may be answered with `Unavailable`: then the keeper releases a moment later.
    let let_go = async |guard: Guard| {
        let released = guard.release().await;
        assert!(released.as_ref().map_or_else(|e| e.kind() == ErrorKind::Unavailable, |()| true), "{released:?}");
    };
    let_go(guard).await;
    let next = waiting.await.expect("granted");
    assert!(next.token() > token, "also with the clock behind");
    // One that died right when the clock went back has left a lease of an hour: the next cuts it to size.
    let_go(next).await;
    server.sql(&format!(
        "INSERT INTO lockkeeper_lock (name, token, holder, expires, ttl, since) VALUES ('z', 1, UNHEX(REPEAT('07', 16)), \
         TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + 3600000000, {}, 1)",
        TTL.as_micros()
    ));
    let asked = Instant::now();
    drop(taken(&a, "z").await);
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
    // Forward: leases are over, and their holders are told by the next renewal.
    let guard = taken(&a, "y").await;
    server.step_clock(HOUR);
    let next = taken(&b, "y").await;
    assert!(next.token() > guard.token());
    let reason = guard.lost().await;
    assert!(matches!(reason, LossReason::Gone | LossReason::Expired), "{reason:?}");
}

#[tokio::test]
async fn unused_rows_are_removed_and_tokens_still_rise() {
    let url = database(&SHARED, "tidy");
    let store = MysqlStore::connect(&url).await.expect("connected");
    let keeper = keeper(&url, TTL).await;
    let guard = taken(&keeper, "held").await;
    drop(taken(&keeper, "used").await);
    eventually(SOON, "it is given back", || {
        SHARED.sql("SELECT COUNT(*) FROM tidy.lockkeeper_lock WHERE name = 'used' AND holder IS NULL") == "1"
    });
    SHARED.sql(
        "INSERT INTO tidy.lockkeeper_lock (name, token) VALUES ('old', 5); \
         INSERT INTO tidy.lockkeeper_lock (name, token, others) VALUES ('older', 5, 1); \
         INSERT INTO tidy.lockkeeper_claim (name, holder, kind, seq, expires, ttl) VALUES ('older', 'x', 2, 1, 7, 7); \
         INSERT INTO tidy.lockkeeper_register (name, locked, token, holder, used) VALUES ('old', 'old', 5, 'x', 5); COMMIT",
    );
    assert!(!store.clean().await.expect("cleaned"));
    assert_eq!(SHARED.sql("SELECT name FROM tidy.lockkeeper_lock ORDER BY name"), "held\nused");
    assert_eq!(SHARED.sql("SELECT COUNT(*) FROM tidy.lockkeeper_claim"), "0");
    assert_eq!(SHARED.sql("SELECT COUNT(*) FROM tidy.lockkeeper_register"), "0");
    assert_eq!(guard.phase(), Phase::Held);
    assert!(taken(&keeper, "old").await.token().get() > 5);
}
