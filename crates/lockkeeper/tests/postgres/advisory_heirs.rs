//! Advisory mode: a task inherits a place in line from one with a shorter TTL, and then the server hears nothing.

use lockkeeper::{ErrorKind, Keeper, Phase};
use std::time::{Duration, Instant};
use testkit::{Network, PostgresServer, SOON};

/// What the task that gives up asked for.
const SHORT: Duration = Duration::from_secs(3);

/// What its heir asked for.
const LONG: Duration = Duration::from_secs(60);

/// Longer than the server keeps a silent session of the short TTL, and shorter than until the heir's next renewal.
const SILENCE: Duration = Duration::from_secs(12);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_lasts_as_long_as_an_heir_with_a_longer_ttl_believes() {
    let test = "advisory_heirs::a_session_lasts_as_long_as_an_heir_with_a_longer_ttl_believes";
    let Some(network) = Network::own(test) else { return };
    let server = PostgresServer::new();
    // Unix sockets have no packets that could be dropped.
    let socket = server.dir().path().display().to_string().replace('/', "%2F");
    let near = format!("postgres://postgres@{socket}:{}/postgres?mode=advisory", server.port());
    let near = Keeper::connect(near).await.expect("connected");
    let far = Keeper::connect(format!("{}?mode=advisory", server.url())).await.expect("connected");
    let held = near.lock("x").acquire().await.expect("granted");
    // The session is open before a short wait begins: without an answer that would end as an outage, not as busy.
    far.lock("y").acquire().await.expect("granted").release().await.expect("released");
    let (first, second) = (far.lock("x").ttl(SHORT).wait(SHORT), far.lock("x").ttl(LONG).wait(SOON));
    let mut first = std::pin::pin!(first.acquire());
    // Polled once, so that it is the first in line.
    assert!(tokio::time::timeout(Duration::ZERO, &mut first).await.is_err(), "it waits");
    let heir = tokio::spawn(async move { second.acquire().await });
    let error = first.await.map(|_| ()).expect_err("it gives up");
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    held.release().await.expect("released");
    let heir = heir.await.expect("answered").expect("granted");
    let began = Instant::now();
    while heir.remaining() < LONG / 2 {
        assert!(began.elapsed() < SOON, "the first renewal has the heir's TTL");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    network.cut();
    let cut = Instant::now();
    while cut.elapsed() < SILENCE {
        let other = near.lock("x").try_acquire().await.expect("answered");
        assert!(
            other.is_none(),
            "two hold it {:?} after the last packet; the heir says {:?}",
            cut.elapsed(),
            heir.phase()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(heir.phase(), Phase::Held);
    network.mend();
    heir.release().await.expect("held all the time");
}
