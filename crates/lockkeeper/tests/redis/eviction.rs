//! Servers that may evict locks when their memory is full: what they promise, and that the log says so.

#[path = "../common/warnings.rs"]
mod warnings;

use lockkeeper::{ErrorKind, Guarantee, Keeper};
use testkit::RedisServer;

const WARNING: &str = "may evict locks";

fn server(policy: &str, memory: &str) -> RedisServer {
    // On disk, so that it counts as a node of Redlock at once.
    let durable = ["--appendonly", "yes", "--appendfsync", "always"];
    RedisServer::with(&[&["--maxmemory-policy", policy, "--maxmemory", memory], &durable[..]].concat())
}

/// What is promised; with less than `Primary`, requiring that must fail with a sentence.
async fn promised(url: &str) -> Guarantee {
    let keeper = Keeper::connect(url).await.expect("connected");
    let promised = keeper.info().guarantee;
    match Keeper::builder().require(Guarantee::Primary).connect(url).await {
        Ok(_) => assert!(promised >= Guarantee::Primary, "{url}: {promised:?}"),
        Err(error) => {
            assert_eq!((promised, error.kind()), (Guarantee::BestEffort, ErrorKind::InvalidConfig), "{error}");
            assert!(error.to_string().contains("may drop locks"), "{error}");
        }
    }
    promised
}

#[tokio::test]
async fn whatever_may_evict_locks_is_warned_of_and_promises_nothing() {
    if !testkit::alone("eviction::whatever_may_evict_locks_is_warned_of_and_promises_nothing") {
        return;
    }
    let said = warnings::all();
    for (policy, memory, promise) in [
        ("noeviction", "100mb", Guarantee::Primary),
        ("volatile-ttl", "0", Guarantee::Primary),
        ("volatile-ttl", "100mb", Guarantee::BestEffort),
        ("volatile-lru", "100mb", Guarantee::BestEffort),
        ("allkeys-random", "100mb", Guarantee::BestEffort),
    ] {
        let (server, before) = (server(policy, memory), said.count(WARNING));
        assert_eq!(promised(&server.url()).await, promise, "{policy}, {memory}");
        let warned = said.count(WARNING) > before;
        assert_eq!(warned, promise == Guarantee::BestEffort, "{policy}, {memory}");
    }
}

#[cfg(feature = "redlock")]
#[tokio::test]
async fn one_node_that_may_evict_spoils_what_redlock_promises() {
    let mut servers: Vec<RedisServer> = (0..3).map(|_| server("noeviction", "100mb")).collect();
    let url = |servers: &[RedisServer]| {
        let places: Vec<String> = servers.iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
        format!("redlock://{}", places.join(","))
    };
    assert_eq!(promised(&url(&servers)).await, Guarantee::Majority);
    servers[1] = server("volatile-ttl", "100mb");
    assert_eq!(promised(&url(&servers)).await, Guarantee::BestEffort);
}
