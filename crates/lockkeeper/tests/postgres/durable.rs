//! What the PostgreSQL store says when a commit cannot be kept: a disk without room, a standby that is not there.

use crate::keepers::{keeper, taken};
use lockkeeper::{Error, ErrorKind, Guard, Keeper, Phase};
use std::time::Duration;
use testkit::{PgPair, PostgresServer, SOON, SmallDisk};

/// Waits until the server has renewed a lock.
fn until_renewed(server: &PostgresServer, name: &str) {
    let ends = || server.try_sql(&format!("SELECT expires FROM lockkeeper.lock WHERE name = '{name}'")).ok();
    let before = testkit::found(SOON, "the server answers", ends);
    testkit::eventually(SOON, "it is renewed", || ends().is_some_and(|now| now != before));
}

/// The server knows who holds these locks, and the holders hold them.
async fn known(keeper: &Keeper, guards: Vec<Guard>) {
    for guard in guards {
        let name = guard.name().to_string();
        let mut record = keeper.inspect(&name).await;
        while record.as_ref().is_err_and(Error::is_retryable) {
            record = keeper.inspect(&name).await;
        }
        let record = record.expect("inspected").unwrap_or_else(|| panic!("no claim holds {name}"));
        assert_eq!(record.holders[0].token, Some(guard.token()), "{name}");
        guard.release().await.expect("held all the time");
    }
}

/// Takes one new name after the other, until there is no room for another row.
async fn until_full(keeper: &Keeper, guards: &mut Vec<Guard>) -> Error {
    loop {
        match keeper.lock(format!("more/{}", guards.len())).try_acquire().await {
            Ok(guard) => guards.push(guard.expect("free")),
            Err(error) => return error,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_named_and_what_is_held_goes_on() {
    let Some(disk) = SmallDisk::own("durable::a_full_disk_is_named_and_what_is_held_goes_on", 4) else { return };
    let ttl = Duration::from_secs(3);
    let server = PostgresServer::new();
    server.tables_on(&disk);
    let keeper = keeper(&server.url(), ttl).await;
    let mut guards = vec![taken(&keeper, "first").await];
    disk.fill();
    let error = until_full(&keeper, &mut guards).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("No space left on device"), "{error}");
    // What was granted is there, and what was refused is not.
    assert_eq!(server.sql("SELECT count(*) FROM lockkeeper.locks"), guards.len().to_string());
    // A renewal is another version of its row: there is room for it, beside the row.
    until_renewed(&server, "first");
    assert!(guards.iter().all(|guard| guard.phase() == Phase::Held));
    disk.clear();
    taken(&keeper, "next").await.release().await.expect("released");
    for guard in guards {
        guard.release().await.expect("held all the time");
    }
}

/// Without room for its log the server itself goes down, and comes back with all that it had answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_under_the_log_forgets_nothing() {
    let Some(disk) = SmallDisk::own("durable::a_full_disk_under_the_log_forgets_nothing", 64) else { return };
    let mut server = PostgresServer::with(&["fsync=on"]);
    server.log_on(&disk);
    // Longer than a start takes on a busy machine.
    let keeper = keeper(&server.url(), SOON).await;
    let guards = vec![taken(&keeper, "x").await, taken(&keeper, "y").await];
    disk.fill();
    // Until the next part of the log is needed.
    while server.try_sql("SELECT pg_switch_wal(), txid_current()").is_ok() {}
    let error = keeper.lock("z").ttl(Duration::from_secs(1)).try_acquire().await.map(drop).expect_err("no server");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.kill();
    disk.clear();
    server.start();
    known(&keeper, guards).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_is_answered_when_the_synchronous_standby_has_it() {
    let mut pair = PgPair::new();
    let keeper = keeper(&pair.url(), SOON).await;
    let other = self::keeper(&pair.url(), SOON).await;
    let held = taken(&keeper, "held").await;
    pair.primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'; SELECT pg_reload_conf()");
    let state = || pair.primary.sql("SELECT sync_state FROM pg_stat_replication");
    testkit::eventually(SOON, "the standby counts", || state() == "sync");
    pair.standby.pause();
    // Not answered, and so not granted.
    let error = keeper.lock("x").ttl(Duration::from_secs(1)).try_acquire().await.map(|_| ()).expect_err("not answered");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // An administrator ends the wait: then it is only on the primary.
    let waits = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'lockkeeper'";
    let asking = tokio::spawn(async move { taken(&other, "y").await });
    while !asking.is_finished() {
        pair.primary.sql(&format!("SELECT pg_cancel_backend(pid) {waits}"));
    }
    let alone = asking.await.expect("granted");
    pair.standby.resume();
    // Nothing is left of what was not answered.
    taken(&keeper, "x").await.release().await.expect("released");
    alone.release().await.expect("released");

    // What was answered is known to the standby, however soon the primary is gone.
    let last = taken(&keeper, "last").await;
    pair.primary.kill();
    pair.promote();
    known(&keeper, vec![held, last]).await;
}
