//! Redis alone, with replicas, behind Sentinels, and Redlock.

use super::Report;
use super::common::Place;
use testkit::{RedisCluster, RedisReplicas, RedisSentinel, RedisServer};

fn set(server: &RedisServer, key: &str, value: &str) {
    assert_eq!(server.cli(&["CONFIG", "SET", key, value]), "OK");
}

#[test]
fn a_server_that_may_evict_or_forget_locks_is_found() {
    let (place, server) = (Place::new(), RedisServer::durable());
    let report = || Report::of(&place, &server.url(), &[]);
    let fine = |report: &Report| {
        assert_eq!(report.code, 0, "{report:?}");
        for id in ["redis-eviction", "redis-persistence", "redis-timeout", "redis-role", "redis-subscribe", "cycle"] {
            report.is(id, "ok");
        }
        assert_eq!(report.json["guarantee"], "primary");
    };
    for (key, value) in
        [("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru"), ("appendonly", "no"), ("timeout", "5")]
    {
        set(&server, key, value);
    }
    let bad = report();
    assert_eq!((bad.code, &bad.json["guarantee"]), (2, &"best-effort".into()));
    bad.is("redis-eviction", "fail");
    bad.found("redis-eviction", "allkeys-lru");
    bad.is("redis-persistence", "note");
    bad.found("redis-persistence", "appendonly no");
    bad.is("redis-uptime", "warn");
    bad.is("redis-timeout", "warn");
    for (key, value) in
        [("maxmemory-policy", "volatile-lru"), ("appendonly", "yes"), ("appendfsync", "everysec"), ("timeout", "0")]
    {
        set(&server, key, value);
    }
    let bad = report();
    bad.is("redis-eviction", "fail");
    bad.found("redis-eviction", "volatile-lru");
    bad.found("redis-persistence", "everysec");
    set(&server, "maxmemory-policy", "noeviction");
    set(&server, "appendfsync", "always");
    fine(&report());
    // Nothing was written but below `lk-doctor/`.
    let keys = server.cli(&["KEYS", "*"]);
    assert!(keys.lines().all(|key| key.contains("lk-doctor/")), "{keys}");
}

#[test]
fn replicas_that_no_grant_waits_for_are_found() {
    let (place, group) = (Place::new(), RedisReplicas::new(1));
    let url = group.primary.url();
    let bad = Report::of(&place, &url, &[]);
    bad.is("redis-replicas", "warn");
    bad.is("redis-split-brain", "warn");
    let waits = Report::of(&place, &format!("{url}?wait_replicas=1"), &[]);
    for id in ["redis-replicas", "redis-split-brain", "cycle"] {
        waits.is(id, "ok");
    }
    let few = Report::of(&place, &format!("{url}?wait_replicas=2&wait_timeout=100ms"), &[]);
    assert_eq!(few.code, 2, "{few:?}");
    few.is("redis-replicas", "fail");
    few.is("cycle", "fail");
    // A replica keeps no locks.
    let replica = Report::of(&place, &group.replicas[0].url(), &[]);
    replica.is("redis-role", "fail");
}

#[test]
fn a_clock_that_is_off_is_found() {
    let (place, server) = (Place::new(), RedisServer::with_clock());
    let report = || Report::of(&place, &server.url(), &[]);
    server.step_clock(20);
    let off = report();
    off.is("clock-offset", "warn");
    off.found("clock-offset", "ahead");
    off.is("tokens", "ok");
    server.step_clock(-2 * 86_400);
    let far = report();
    far.is("clock-offset", "warn");
    far.is("tokens", "fail");
    server.step_clock(0);
    let right = report();
    right.is("clock-offset", "ok");
    right.is("tokens", "ok");
    right.is("redis-clock-rate", "ok");
}

#[test]
fn what_a_login_may_not_ask_is_unknown_and_what_it_may_not_do_fails() {
    let (place, server) = (Place::new(), RedisServer::new());
    let rights = |rights: &[&str]| {
        let user = ["ACL", "SETUSER", "app", "reset", "on", ">geheim", "~*", "&*", "+@all"];
        assert_eq!(server.cli(&[&user, rights].concat()), "OK");
    };
    let url = server.url().replace("redis://", "redis://app:geheim@");
    rights(&["-config", "-info", "-acl"]);
    let blind = Report::of(&place, &url, &[]);
    for (id, statement) in [("redis-info", "INFO"), ("redis-subscribe", "ACL DRYRUN")] {
        blind.is(id, "unknown");
        blind.found(id, statement);
    }
    blind.is("cycle", "ok");
    rights(&["-config"]);
    let blind = Report::of(&place, &url, &[]);
    blind.is("redis-timeout", "unknown");
    blind.found("redis-timeout", "CONFIG GET timeout");
    rights(&["-@scripting", "resetchannels"]);
    let refused = Report::of(&place, &url, &[]);
    assert_eq!(refused.code, 2);
    refused.is("cycle", "fail");
    refused.is("redis-subscribe", "warn");
    for report in [&blind, &refused] {
        let said = format!("{}{}", report.ended.stdout, report.ended.stderr);
        assert!(!said.contains("geheim"), "{said}");
    }
}

#[test]
fn an_even_redlock_and_a_node_that_is_down_are_found() {
    let place = Place::new();
    let mut servers: Vec<RedisServer> = (0..4).map(|_| RedisServer::durable()).collect();
    let url = |servers: &[RedisServer]| {
        let places: Vec<_> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        format!("redlock://{}", places.join(","))
    };
    let even = Report::of(&place, &url(&servers), &[]);
    even.is("redlock-nodes", "warn");
    even.is("redlock-majority", "ok");
    even.is("redlock-hosts", "warn");
    even.is("redlock-clocks", "ok");
    even.is("redis-persistence", "ok");
    servers.pop();
    set(&servers[1], "appendfsync", "everysec");
    let odd = Report::of(&place, &url(&servers), &[]);
    odd.is("redlock-nodes", "ok");
    odd.is("redis-persistence", "warn");
    assert_eq!(odd.check("redis-persistence")["at"], format!("127.0.0.1:{}", servers[1].port()));
    let whole = url(&servers);
    servers[2].kill();
    let down = Report::of(&place, &whole, &[]);
    down.is("redlock-majority", "warn");
    down.found("redlock-majority", "2 of 3");
}

#[test]
fn sentinels_and_a_cluster_are_asked_too() {
    let (place, sentinel, cluster) = (Place::new(), RedisSentinel::new(), RedisCluster::new(0));
    let watched = Report::of(&place, &sentinel.url(), &[]);
    for id in ["redis-sentinel", "members", "cycle"] {
        watched.is(id, "ok");
    }
    let slots = Report::of(&place, &cluster.url(), &[]);
    slots.is("redis-cluster", "ok");
    slots.found("redis-cluster", "16384 slots");
}
