//! A renewal waits for its row while a later one is answered.

use lockkeeper::clock::system_now;
use lockkeeper::store::{Attempt, Claim};
use lockkeeper::stores::postgres::PostgresStore;
use lockkeeper::{HolderId, LockName, Store as _};
use std::sync::Arc;
use std::time::Duration;
use testkit::{PostgresServer, SOON};
use tokio_postgres::NoTls;

const TTL: Duration = Duration::from_secs(60);

/// Statements of ours that wait for a row.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";

fn claim(name: &str) -> Claim {
    let (name, holder) = (LockName::new(name).expect("a name"), HolderId::random().expect("random"));
    Claim::new(name, holder, TTL, system_now(), Arc::default())
}

/// A renewal of these names waits for the row of `x`; the transaction that has it renews `x` meanwhile.
async fn a_late_one(names: &[&str], rounds: u32) {
    let server = PostgresServer::new();
    let store = Arc::new(PostgresStore::connect(&server.url()).await.expect("connected"));
    let (mut other, connection) = tokio_postgres::connect(&server.url(), NoTls).await.expect("connected");
    tokio::spawn(connection);
    let claims: Vec<Claim> = names.iter().map(|name| claim(name)).collect();
    assert!(store.try_acquire(&claims).await.iter().all(|answer| matches!(answer, Ok(Attempt::Granted(_)))));
    let holder = claims.iter().find(|claim| claim.name.as_bytes() == b"x").expect("it is one of them").holder;
    let renew = format!(
        "SELECT FROM lockkeeper.renew(ARRAY['x'::bytea], ARRAY['{}'::uuid], ARRAY[{ttl}], ARRAY[{ttl}], ARRAY[1], \
         NULL)",
        holder.to_hex(),
        ttl = TTL.as_micros()
    );
    let expires = "SELECT expires FROM lockkeeper.lock WHERE name = 'x'";
    for round in 0..rounds {
        let open = other.transaction().await.expect("begun");
        open.batch_execute("SELECT FROM lockkeeper.lock WHERE name = 'x' FOR UPDATE").await.expect("locked");
        let late = tokio::spawn({
            let (store, claims) = (store.clone(), claims.clone());
            async move { store.renew(&claims).await }
        });
        let waits = async { while open.query_one(WAITING, &[]).await.expect("asked").get::<_, i64>(0) == 0 {} };
        tokio::time::timeout(SOON, waits).await.expect("it waits");
        open.batch_execute(&renew).await.expect("renewed");
        let given: i64 = open.query_one(expires, &[]).await.expect("asked").get(0);
        open.commit().await.expect("committed");
        // In a batch it may have waited for too long; then it has done nothing.
        drop(late.await.expect("answered"));
        let left: i64 = other.query_one(expires, &[]).await.expect("asked").get(0);
        assert!(left >= given, "round {round}: {} µs were taken back", given - left);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_waited_for_its_row_takes_nothing_back() {
    a_late_one(&["x"], 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_that_waited_together_take_nothing_back() {
    a_late_one(&["a", "x", "y"], 15).await;
}
