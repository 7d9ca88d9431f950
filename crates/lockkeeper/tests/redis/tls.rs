//! TLS to several servers: Sentinels and their primary, a Cluster, the nodes of a majority.

use lockkeeper::{ErrorKind, Keeper};
use std::time::Duration;
use testkit::{Certificates, RedisCluster, RedisSentinel, RedisServer, SOON};

/// Locks and hands over through `place?query`. Connecting without a certificate or without TLS must fail.
async fn works_with_certificates_only(place: &str, query: &str, certificates: &Certificates, plain: &str) {
    let url = format!("{place}?{query}{}", certificates.query());
    let connect = || async { Keeper::builder().ttl(Duration::from_secs(10)).connect(&url).await.expect("connected") };
    let (first, second) = (connect().await, connect().await);
    for name in ["a", "b", "c", "d"] {
        let guard = first.lock(name).wait(SOON).acquire().await.expect("granted");
        assert!(second.lock(name).try_acquire().await.expect("answered").is_none());
        let waiting = tokio::spawn({
            let lock = second.lock(name).wait(SOON);
            async move { lock.acquire().await.expect("granted").token() }
        });
        let token = guard.token();
        guard.release().await.expect("released");
        assert!(waiting.await.expect("granted") > token);
    }
    let ca = certificates.query();
    let (ca, rest) = ca.split_once('&').expect("three files");
    let other = format!("{}&{rest}", ca.replace("ca.crt", "other.crt"));
    for (url, kind) in [
        (format!("{place}?{query}{ca}"), None),
        (format!("{place}?{query}{other}"), Some(ErrorKind::Denied)),
        (plain.to_owned(), None),
    ] {
        let error = Keeper::connect(&url).await.map(|_| ()).expect_err("refused");
        let expected = kind.map_or([ErrorKind::Denied, ErrorKind::Unavailable], |kind| [kind; 2]);
        assert!(expected.contains(&error.kind()), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_their_primary() {
    let certificates = Certificates::new();
    let sentinel = RedisSentinel::with_tls(&certificates);
    let plain = sentinel.url();
    works_with_certificates_only(&plain.replacen("redis", "rediss", 1), "", &certificates, &plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster() {
    let certificates = Certificates::new();
    let cluster = RedisCluster::with_tls(&certificates, 0);
    let plain = cluster.url();
    works_with_certificates_only(&plain.replacen("redis", "rediss", 1), "", &certificates, &plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_nodes_of_a_majority() {
    let certificates = Certificates::new();
    let options = ["--appendonly", "yes", "--appendfsync", "always"];
    let nodes: Vec<_> = (0..3).map(|_| RedisServer::with_certificates(&certificates, &options)).collect();
    let hosts: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let plain = format!("redlock://{}", hosts.join(","));
    works_with_certificates_only(&plain, "tls=on&", &certificates, &plain).await;
}
