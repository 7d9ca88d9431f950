//! What Redlock keeps on its nodes: the keys, and that clients of the version before understand it and are understood.

use crate::redlock::{TTL, attempt, claim, connect, durable, granted, release};
use lockkeeper::store::{Attempt, Claim, Release, Renewal};
use lockkeeper::{HolderId, LossReason, Store};
use std::time::{SystemTime, UNIX_EPOCH};
use testkit::{RedisServer, SOON, eventually};

/// The scripts of the version before.
const ACQUIRE: &str = include_str!("previous/redlock_acquire.lua");
const RELEASE: &str = include_str!("previous/redlock_release.lua");
const RENEW: &str = include_str!("previous/redlock_renew.lua");

/// What a claim of the version before sends to a node.
struct Previous {
    name: String,
    holder: String,
}

impl Previous {
    fn new(name: &str) -> Self {
        Self { name: name.into(), holder: HolderId::random().expect("random").to_hex() }
    }

    fn key(&self, letter: char) -> String {
        let end = if letter == 'x' { format!(":{}", self.holder) } else { String::new() };
        format!("lk:{letter}:{{{}}}{end}", self.name)
    }

    /// The answer's fields.
    fn acquire(&self, server: &RedisServer, proposal: u64, attempt: u64) -> Vec<String> {
        let (fence, tombstone, none) = (self.key('f'), self.key('x'), format!("lk:x:{{{}}}:", self.name));
        let (proposal, attempt) = (proposal.to_string(), attempt.to_string());
        let keys = ["EVAL", ACQUIRE, "4", &self.name, &fence, &tombstone, &none];
        let args = [&self.holder, &proposal, "60000", &attempt, "old:1:", "", "0"];
        fields(&server.cli(&[&keys[..], &args[..]].concat()))
    }

    fn release(&self, server: &RedisServer, attempt: &str, scope: &str) -> String {
        server.cli(&["EVAL", RELEASE, "2", &self.name, &self.key('x'), &self.holder, "0", attempt, scope])
    }

    fn renew(&self, server: &RedisServer) -> String {
        fields(&server.cli(&["EVAL", RENEW, "2", &self.name, &self.key('x'), &self.holder, "60000"])).remove(0)
    }
}

fn fields(answer: &str) -> Vec<String> {
    answer.lines().map(str::to_owned).collect()
}

fn micros() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(now.as_micros()).expect("a while left")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_the_version_before_is_held_and_its_token_is_the_floor() {
    let servers = durable(3);
    let store = connect(&servers, "").await;
    let (old, ahead) = (Previous::new("mixed"), micros() + 3_000_000_000);
    for server in &servers {
        assert_eq!(old.acquire(server, ahead, 7), ["1", &ahead.to_string()]);
    }
    match attempt(&store, &mut claim("mixed", TTL)).await {
        Ok(Attempt::Held(held)) => {
            assert_eq!(held.token.map(|token| token.get()), Some(ahead));
            assert_eq!(held.holder.map(|note| note.host), Some("old".into()));
        }
        other => panic!("held by a client of the version before: {other:?}"),
    }
    for server in &servers {
        assert_eq!(old.renew(server), "1", "a refused attempt changes nothing");
        assert_eq!(old.release(server, "", ""), "1");
    }
    assert!(granted(&store, &mut claim("mixed", TTL)).await.get() > ahead);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_the_version_before_respect_our_locks_and_tokens() {
    let servers = durable(3);
    let store = connect(&servers, "").await;
    let (mut held, old) = (claim("mixed", TTL), Previous::new("mixed"));
    let token = granted(&store, &mut held).await.get();
    eventually(SOON, "all have it", || servers.iter().all(|server| server.cli(&["EXISTS", "mixed"]) == "1"));
    for server in &servers {
        let refused = old.acquire(server, 1, 7);
        assert_eq!(refused[0], "0");
        assert!(refused[1].starts_with(&format!("lk1:{}:{token}:", held.holder.to_hex())), "{refused:?}");
        assert_eq!(old.release(server, "", ""), "0");
    }
    // Our claim, seen by the scripts of the version before: they read its attempt, and so do ours theirs.
    let ours = Previous { holder: held.holder.to_hex(), ..Previous::new("mixed") };
    let number = held.stamp.as_micros();
    assert_eq!(ours.release(&servers[0], &(number + 1).to_string(), "="), "0", "another attempt took it");
    assert_eq!(ours.acquire(&servers[0], 1, number + 1)[0], "2");
    assert_eq!(ours.release(&servers[0], &number.to_string(), "<"), "0", "a newer attempt has it");
    assert_eq!(ours.renew(&servers[1]), "1");
    assert_eq!(release(&store, &held).await, Release::Released);
    eventually(SOON, "all are free", || servers.iter().all(|server| server.cli(&["EXISTS", "mixed"]) == "0"));
    assert_eq!(old.acquire(&servers[0], 1, 7), ["1", &(token + 1).to_string()]);
}

/// Which tombstone a claim has.
fn tombstone(tail: &str, claim: &Claim) -> String {
    format!("lk:x{tail}:{}", claim.holder.to_hex())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_name_has_its_keys_where_they_always_were() {
    let servers = durable(3);
    let store = connect(&servers, "").await;
    let on_all = |key: &str| servers.iter().all(|server| server.cli(&["EXISTS", key]) == "1");
    for (name, tail) in
        [("plain", ":{plain}"), ("a{b}c", "/a{b}c"), ("a}b", "!{20658}a}b"), ("{}x", "!{19354}{}x"), ("a{b", ":{a{b}")]
    {
        let mut held = claim(name, TTL);
        let first = granted(&store, &mut held).await;
        eventually(SOON, "the fence is there", || on_all(&format!("lk:f{tail}")));
        // Broken: the tombstone says why the renewal fails, and the claim's own acquire comes too late.
        store.break_lock(&held.name, first).await.expect("broken");
        eventually(SOON, "the tombstone is there", || on_all(&tombstone(tail, &held)));
        let renewed = store.renew(std::slice::from_ref(&held)).await.remove(0).expect("answered");
        assert_eq!(renewed, Renewal::Lost(LossReason::Broken), "{name}");
        // Released before its acquire arrived.
        let mut early = claim(name, TTL);
        early.unsettled = true;
        assert_eq!(release(&store, &early).await, Release::NotHeld);
        eventually(SOON, "the tombstone is there", || on_all(&tombstone(tail, &early)));
        assert!(matches!(attempt(&store, &mut early).await, Ok(Attempt::Cancelled)), "{name}");
        assert!(granted(&store, &mut claim(name, TTL)).await > first, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_in_use_does_not_end() {
    const DAY: i64 = 24 * 3_600_000;
    let servers = durable(3);
    let store = connect(&servers, "").await;
    let left = |server: &RedisServer| server.cli(&["PTTL", "lk:f:{used}"]).parse::<i64>().expect("a number");
    let first = granted(&store, &mut claim("used", TTL)).await;
    eventually(SOON, "all have it", || servers.iter().all(|server| left(server) > DAY));
    // The last number is of another hour, and the fence would end soon.
    let (hour, token) = (3_600_000_000, first.get());
    let before = (token - token % hour - 1).to_string();
    for server in &servers {
        server.cli(&["DEL", "used"]);
        server.cli(&["SET", "lk:f:{used}", &before, "PX", "60000"]);
    }
    granted(&store, &mut claim("used", TTL)).await;
    eventually(SOON, "the first number of an hour prolongs it", || servers.iter().all(|server| left(server) > DAY));
    // A fence that was lost begins at the clock, with a new life.
    for server in &servers {
        server.cli(&["DEL", "used", "lk:f:{used}"]);
    }
    granted(&store, &mut claim("used", TTL)).await;
    eventually(SOON, "it is there again", || servers.iter().all(|server| left(server) > DAY));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_behind_its_fence_gives_the_next_number_and_the_rest_follows() {
    let servers = durable(3);
    let store = connect(&servers, "").await;
    let ahead = micros() + 3_000_000_000;
    servers[1].cli(&["SET", "lk:f:{ahead}", &ahead.to_string()]);
    let mut held = claim("ahead", TTL);
    let token = granted(&store, &mut held).await;
    // Two nodes may have decided before the third answered; its number counts from the next time on.
    assert_eq!(release(&store, &held).await, Release::Released);
    let mut tokens = vec![token];
    for _ in 0..5 {
        let mut next = claim("ahead", TTL);
        tokens.push(granted(&store, &mut next).await);
        assert_eq!(release(&store, &next).await, Release::Released);
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let value = |server: &RedisServer| server.cli(&["GET", "ahead"]);
    let mut last = claim("ahead", TTL);
    let token = granted(&store, &mut last).await;
    let shown = format!("lk1:{}:{token}:", last.holder.to_hex());
    eventually(SOON, "a majority stores it", || servers.iter().filter(|s| value(s).starts_with(&shown)).count() >= 2);
}
