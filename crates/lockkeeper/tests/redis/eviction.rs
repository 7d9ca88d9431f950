//! Servers that may evict locks when their memory is full: their guarantee, and the warning in the log.

#[path = "../common/warnings.rs"]
mod warnings;

use lockkeeper::{ErrorKind, Guarantee, Keeper};
use testkit::RedisServer;

const WARNING: &str = "may evict locks";

fn server(policy: &str, memory: &str) -> RedisServer {
    // Its data is on disk, so it counts as a node of Redlock at once.
    let durable = ["--appendonly", "yes", "--appendfsync", "always"];
    RedisServer::with(&[&["--maxmemory-policy", policy, "--maxmemory", memory], &durable[..]].concat())
}

/// The guarantee at `url`. If it is below `Primary`, requiring `Primary` must fail.
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
async fn a_server_that_may_evict_locks_is_best_effort_and_warned_of() {
    if !testkit::alone("eviction::a_server_that_may_evict_locks_is_best_effort_and_warned_of") {
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
async fn one_node_that_may_evict_makes_redlock_best_effort() {
    let mut servers: Vec<RedisServer> = (0..3).map(|_| server("noeviction", "100mb")).collect();
    let url = |servers: &[RedisServer]| {
        let places: Vec<String> = servers.iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
        format!("redlock://{}", places.join(","))
    };
    assert_eq!(promised(&url(&servers)).await, Guarantee::Majority);
    servers[1] = server("volatile-ttl", "100mb");
    assert_eq!(promised(&url(&servers)).await, Guarantee::BestEffort);
}
