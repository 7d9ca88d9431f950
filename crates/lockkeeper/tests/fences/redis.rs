//! Redis: check and write in one script.

use crate::{RUNTIME, pass, pass_of, shared_pass};
use lockkeeper::fence::redis as fence;
use lockkeeper::fence::{FenceError, Refusal};
use std::time::Duration;
use testkit::{RedisCluster, RedisServer};

#[test]
fn a_late_write_is_refused_and_the_value_is_a_plain_string() {
    let server = RedisServer::new();
    let holder = |token, id| pass_of(token, id).store("redis");
    let (old, new) = (holder(33, 1), holder(34, 2));
    RUNTIME.block_on(async {
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let c = &mut connection;
        assert_eq!(fence::enter(c, "stock", &old).await.unwrap(), None);
        fence::write(c, "stock", &old, "5", None).await.unwrap();
        assert_eq!(fence::enter(c, "stock", &new).await.unwrap().as_deref(), Some(b"5".as_slice()));
        let late = fence::write(c, "stock", &old, "6", None).await.unwrap_err();
        assert!(late.is_stale() && late.to_string().contains("has seen 34"), "{late}");
        fence::write(c, "stock", &new, "4", Some(Duration::from_secs(60))).await.unwrap();
        assert_eq!(server.cli(&["GET", "stock"]), "4");
        assert!(fence::enter(c, "stock", &old).await.unwrap_err().is_stale());
        assert!(fence::enter(c, "stock", &holder(34, 3)).await.unwrap_err().is_stale(), "another holder");
        assert_eq!(fence::enter_shared(c, "stock", &shared_pass(34)).await.unwrap().as_deref(), Some(b"4".as_slice()));
        assert!(fence::enter_shared(c, "stock", &shared_pass(33)).await.unwrap_err().is_stale());
        let other = fence::enter(c, "stock", &pass(50).store("etcd")).await;
        assert!(matches!(other, Err(FenceError::Refused { refusal: Refusal::OtherStore, .. })), "{other:?}");
        // A key of another type is left alone, and the server's error is passed on.
        server.cli(&["RPUSH", "list", "x"]);
        assert!(matches!(fence::enter(c, "list", &old).await, Err(FenceError::Driver(_))));
    });
    // The fence outlives the value.
    let life: i64 = server.cli(&["PTTL", "lk:d:{stock}"]).parse().unwrap();
    assert!(life > 24 * 3600 * 1000, "{life}");
    assert!(server.cli(&["TTL", "stock"]).parse::<i64>().unwrap() <= 60);
}

/// The Shared mark: an earlier writer is refused, also with an equal token; readers do not exclude each other.
#[test]
fn a_stale_writer_is_refused_below_a_later_shared_holder() {
    let server = RedisServer::new();
    RUNTIME.block_on(async {
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let c = &mut connection;
        for (key, later) in [("higher", 34), ("equal", 33)] {
            let writer = pass_of(33, 1).store("redis");
            let reader = shared_pass(later).store("redis");
            fence::write(c, key, &writer, "101", None).await.unwrap();
            assert_eq!(fence::enter_shared(c, key, &reader).await.unwrap().as_deref(), Some(b"101".as_slice()));
            for late in [
                fence::enter(c, key, &writer).await.map(drop).unwrap_err(),
                fence::write(c, key, &writer, "666", None).await.unwrap_err(),
            ] {
                assert!(late.is_stale() && late.to_string().contains("a Shared holder with"), "{late}");
            }
            assert_eq!(fence::enter_shared(c, key, &reader).await.unwrap().as_deref(), Some(b"101".as_slice()));
            fence::enter_shared(c, key, &shared_pass(33)).await.unwrap();
            let next = pass(later + 1);
            fence::write(c, key, &next, "102", None).await.unwrap();
            assert!(fence::enter_shared(c, key, &reader).await.unwrap_err().is_stale());
        }
        // The reader is the first to enter, and its mark is kept as long as an Exclusive one.
        fence::enter_shared(c, "first", &shared_pass(34).store("redis")).await.unwrap();
        let life: i64 = server.cli(&["PTTL", "lk:d:{first}"]).parse().unwrap();
        assert!(life > 24 * 3600 * 1000, "{life}");
        let late = fence::enter(c, "first", &pass(34)).await.unwrap_err();
        assert!(late.is_stale(), "{late}");
        let other = fence::enter(c, "first", &pass(50).store("etcd")).await;
        assert!(matches!(other, Err(FenceError::Refused { refusal: Refusal::OtherStore, .. })), "{other:?}");
    });
}

/// A script may touch keys of one slot only: whatever braces a key has, its fence is beside it.
#[test]
fn in_a_cluster_a_fence_is_where_its_value_is() {
    let cluster = RedisCluster::new(0);
    for key in ["stock", "shop{7}stock", "odd{}", "a}b", "}", "a}{b}", "{", "{}{x}"] {
        let entered = cluster.nodes.iter().find_map(|node| {
            RUNTIME.block_on(async {
                let client = redis::Client::open(node.url()).unwrap();
                let mut connection = client.get_multiplexed_async_connection().await.unwrap();
                match fence::enter(&mut connection, key, &pass(33)).await {
                    Err(FenceError::Driver(error)) if error.code() == Some("MOVED") => None,
                    other => Some(other),
                }
            })
        });
        assert!(matches!(entered, Some(Ok(None))), "{key}: {entered:?}");
    }
}
