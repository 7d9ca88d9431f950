//! The MySQL store's tables and procedures when versions change: who may replace them, and what becomes of those who call
//! them meanwhile.

use crate::keepers::{keeper, taken};
use lockkeeper::stores::mysql::MysqlStore;
use lockkeeper::{Error, ErrorKind, Keeper};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use testkit::{MysqlServer, SOON};

const TTL: Duration = Duration::from_secs(6);

/// What docs/stores/mysql.md says that applications need, and the login that makes the tables besides.
const WORKER: &str = "SELECT, INSERT, UPDATE, DELETE, EXECUTE";
const OWNER: &str = "CREATE, CREATE ROUTINE, ALTER ROUTINE, SELECT, INSERT, UPDATE, DELETE, EXECUTE";

static SHARED: LazyLock<&'static MysqlServer> = LazyLock::new(|| MysqlServer::with(&["--log-bin=log"]).share());

async fn connect_error(url: &str) -> Error {
    Keeper::connect(url).await.map(|_| ()).expect_err("an error")
}

/// A user with these rights in a database, which is made if there is none.
fn login(server: &MysqlServer, database: &str, name: &str, rights: &str) -> String {
    server.sql(&format!("CREATE DATABASE IF NOT EXISTS {database}"));
    server.sql(&format!("CREATE USER {name} IDENTIFIED BY 'geheim'; GRANT {rights} ON {database}.* TO {name}"));
    format!("mysql://{name}:geheim@127.0.0.1:{}/{database}", server.port())
}

/// Procedures that are older are replaced by a login that may, and by no other; newer ones are left alone.
#[tokio::test]
async fn older_procedures_are_replaced_by_a_login_that_may() {
    let server = &*SHARED;
    let root = login(server, "older", "older", "ALL");
    let worker = login(server, "older", "worker", WORKER);
    let running = keeper(&root, TTL).await;
    let held = taken(&running, "x").await;
    // A procedure as an earlier version may have had it: it grants nothing.
    let spoil = "USE older; DROP PROCEDURE lockkeeper_step; CREATE DEFINER = older PROCEDURE lockkeeper_step(p_op CHAR(1), p_name VARBINARY(512), \
        p_holder BINARY(16), p_mode BIGINT, p_ttl BIGINT, p_life BIGINT, p_queue TINYINT, p_arg BIGINT, p_keeper BINARY(16), \
        p_host VARBINARY(1024), p_pid BIGINT, p_label VARBINARY(1024)) \
        SELECT 99, NULL, NULL, NULL, NULL, NULL, NULL, NULL;";
    let revision = || server.sql("SELECT revision FROM older.lockkeeper_layout");
    let now = revision();
    server.sql(&format!("{spoil} UPDATE older.lockkeeper_layout SET revision = 0; COMMIT"));
    let error = connect_error(&worker).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(error.to_string().contains("older") && error.to_string().contains("lockkeeper store init"), "{error}");
    assert!(!format!("{error:?}").contains("geheim"), "{error:?}");
    // Many come at once, as when a new version is rolled out.
    let all = (0..4).map(|_| {
        tokio::spawn({
            let root = root.clone();
            async move { keeper(&root, TTL).await }
        })
    });
    for one in all.collect::<Vec<_>>() {
        drop(one.await.expect("connected"));
    }
    assert_eq!(revision(), now);
    let other = keeper(&worker, TTL).await;
    assert!(other.lock("x").try_acquire().await.expect("answered by the new procedure").is_none());
    held.release().await.expect("released: those who were connected go on");
    // What a later version brought along is not taken back.
    server.sql("UPDATE older.lockkeeper_layout SET revision = 1000; COMMIT");
    drop(taken(&keeper(&worker, TTL).await, "x").await);
    MysqlStore::install(&root).await.expect("nothing to do");
    assert_eq!(revision(), "1000");
}

/// MySQL has to drop a procedure before it can make another one of its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_do_not_notice_that_procedures_are_replaced() {
    static OVER: AtomicBool = AtomicBool::new(false);
    static GRANTS: AtomicU32 = AtomicU32::new(0);
    let (owner, worker) = (login(&SHARED, "busy", "replacer", OWNER), login(&SHARED, "busy", "busy", WORKER));
    MysqlStore::install(&owner).await.expect("made");
    let mut tasks = tokio::task::JoinSet::new();
    for options in ["", "", "", "?mode=get_lock", "?mode=get_lock"] {
        let (keeper, options) = (keeper(&format!("{worker}{options}"), TTL).await, options);
        tasks.spawn(async move {
            while !OVER.load(Ordering::Relaxed) {
                let name = format!("x{options}");
                taken(&keeper, &name).await.release().await.expect("released");
                GRANTS.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    for round in 0..20 {
        let before = GRANTS.load(Ordering::Relaxed);
        SHARED.sql("UPDATE busy.lockkeeper_layout SET revision = 0");
        drop(keeper(&owner, TTL).await);
        testkit::eventually(SOON, "locks are handed over", || {
            if let Some(ended) = tasks.try_join_next() {
                panic!("round {round}: {ended:?}");
            }
            GRANTS.load(Ordering::Relaxed) > before
        });
    }
    OVER.store(true, Ordering::Relaxed);
    tasks.join_all().await;
}

/// A login that may make nothing finds another client at it, and what it needs when that one is done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_comes_while_all_is_replaced_waits_for_it() {
    let (owner, worker) = (login(&SHARED, "wait", "wait_owner", OWNER), login(&SHARED, "wait", "wait", WORKER));
    MysqlStore::install(&owner).await.expect("made");
    let revision = SHARED.sql("SELECT revision FROM wait.lockkeeper_layout");
    SHARED.sql("UPDATE wait.lockkeeper_layout SET revision = 0");
    let done = format!(
        "DO GET_LOCK('lk-install lockkeeper_', 30); DO SLEEP(1); UPDATE wait.lockkeeper_layout SET revision = {revision}"
    );
    let replacing = std::thread::spawn(move || SHARED.sql(&done));
    let at_it = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO = 'DO SLEEP(1)'";
    testkit::eventually(SOON, "another client is at it", || SHARED.sql(at_it) == "1");
    drop(taken(&keeper(&worker, TTL).await, "x").await);
    replacing.join().expect("done");
}

#[tokio::test]
async fn an_owner_makes_and_replaces_all_with_the_rights_that_the_page_names() {
    let (owner, worker) = (login(&SHARED, "owned", "owner", OWNER), login(&SHARED, "owned", "owned", WORKER));
    for options in ["", "?layout=shedlock"] {
        MysqlStore::install(&format!("{owner}{options}")).await.expect("made");
        drop(taken(&keeper(&format!("{worker}{options}"), TTL).await, "x").await);
    }
    SHARED.sql("UPDATE owned.lockkeeper_layout SET revision = 0");
    assert_eq!(connect_error(&worker).await.kind(), ErrorKind::Denied);
    MysqlStore::install(&owner).await.expect("replaced");
    drop(taken(&keeper(&worker, TTL).await, "x").await);
    // What an administrator made is an administrator's to replace, where the server knows such: MySQL does.
    let root = SHARED.url().replace("/test", "/admin");
    let owner = login(&SHARED, "admin", "admin_owner", OWNER);
    MysqlStore::install(&root).await.expect("made");
    SHARED.sql("UPDATE admin.lockkeeper_layout SET revision = 0");
    match MysqlStore::install(&owner).await {
        Ok(()) => assert!(!SHARED.is_mysql()),
        Err(error) => {
            assert!(SHARED.is_mysql() && error.kind() == ErrorKind::Denied, "{error:?}");
            assert!(error.to_string().contains("may not replace them"), "{error}");
        }
    }
    MysqlStore::install(&root).await.expect("replaced");
    drop(taken(&keeper(&owner, TTL).await, "x").await);
}
