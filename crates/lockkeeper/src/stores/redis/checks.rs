//! What `lockkeeper doctor` asks one server: whether it may forget locks, and what makes it slow.

mod clock;
mod groups;

use super::RedisStore;
use super::connect::Info;
use super::driver::connections::{Connection, Connections};
use super::driver::gather::send;
use super::error::{map_err, timed_out};
use super::options::Node;
use crate::duration;
use crate::error::{Error, Result};
use crate::store::{Check, CheckState};
use crate::stores::shared::checks::{ClockReading, Topic, bytes, clock_unknown};
use crate::stores::shared::server;
use crate::stores::shared::timing::ASK_LIMIT;
use CheckState::{Fail, Note, Ok as Fine, Warn};
use clock::{rate, read_clock};
use redis::{Cmd, Value};
use std::time::Duration;

const INFO: Topic = Topic {
    id: "redis-info",
    why: "INFO tells the version, the role, the memory policy, the persistence and the replicas.",
    fix: "Let this login run INFO.",
};
const ROLE: Topic = Topic {
    id: "redis-role",
    why: "A replica takes no writes, so no lock can be taken on it.",
    fix: "Name the primary in the URL, or use redis+sentinel://.",
};
const LOADING: Topic = Topic {
    id: "redis-loading",
    why: "A server that loads its data answers no call.",
    fix: "Wait until it has loaded.",
};
const EVICTION: Topic = Topic {
    id: "redis-eviction",
    why: "When the memory is full, the server drops keys. A lock is a key with a TTL: allkeys-* and volatile-* both \
          drop locks that are held, and another client gets them.",
    fix: "CONFIG SET maxmemory-policy noeviction, or give locks a server of their own.",
};
const PERSISTENCE: Topic = Topic {
    id: "redis-persistence",
    why: "A server that restarts without its last writes has forgotten locks that are held.",
    fix: "appendonly yes and appendfsync always; or accept it, and fence the resource.",
};
const SAVING: Topic = Topic {
    id: "redis-saving",
    why: "A server that cannot write its files loses them at the next restart, and may refuse all writes.",
    fix: "Look for a full disk or missing rights in the server's log.",
};
const REPLICAS: Topic = Topic {
    id: "redis-replicas",
    why: "Replication is asynchronous. A failover to a replica that had not seen a grant gives the lock away twice.",
    fix: "Add ?wait_replicas=N to the URL, or fence the resource.",
};
const ALONE: Topic = Topic {
    id: REPLICAS.id,
    why: "When this server is lost, its locks are lost with it, and none can be taken until it is back.",
    fix: "Add a replica and ?wait_replicas=1, use a store of several servers, or accept it.",
};
const SPLIT: Topic = Topic {
    id: "redis-split-brain",
    why: "A primary that is cut off from its replicas goes on granting locks after another one was promoted.",
    fix: "CONFIG SET min-replicas-to-write 1, or add ?wait_replicas=N to the URL.",
};
const UPTIME: Topic = Topic {
    id: "redis-uptime",
    why: "A server that has restarted within the TTL, and does not log every write, may have forgotten locks that \
          holders still believe in.",
    fix: "Take no locks until it has run for one TTL, or use appendfsync always.",
};
const TIMEOUT: Topic = Topic {
    id: "redis-timeout",
    why: "The server closes connections that are idle for longer. A keeper that only waits then hears of a hand-over \
          late.",
    fix: "CONFIG SET timeout 0, or more than a third of the TTL.",
};
const PUSH: Topic = Topic {
    id: "redis-subscribe",
    why: "Grants are published on channels that begin with lk:k:. A login that may not subscribe has to poll.",
    fix: "ACL SETUSER … &lk:k:* +subscribe +publish.",
};

/// What a server is to be.
#[derive(Clone, Copy, Debug)]
pub(in crate::stores) struct Wanted {
    pub(in crate::stores) ttl: Duration,
    /// How many replicas must confirm a grant.
    pub(in crate::stores) replicas: Option<u32>,
    /// It has one vote of several: what it forgets counts as a vote for another client.
    pub(in crate::stores) voter: bool,
}

/// What was found at one server.
#[derive(Debug)]
pub(in crate::stores) struct Found {
    pub(in crate::stores) checks: Vec<Check>,
    /// Its clock, where it could be read.
    #[cfg_attr(not(feature = "redlock"), allow(dead_code, reason = "only several servers have clocks to compare"))]
    pub(in crate::stores) clock: Option<ClockReading>,
}

impl RedisStore {
    pub(super) async fn examine(&self, ttl: Duration) -> Vec<Check> {
        let mut checks = self.groups().await;
        let nodes = match self.connections.primaries().await {
            Ok(nodes) => nodes,
            Err(error) => {
                checks.push(INFO.is(Fail, error.message()));
                return checks;
            }
        };
        let wanted = Wanted { ttl, replicas: self.connections.options().wait.map(|(count, _)| count), voter: false };
        let several = nodes.len() > 1;
        // One after another: a Cluster has few primaries, and no more than this connection to each.
        for node in nodes {
            let found = examine(&self.connections, &node, wanted).await;
            let at = if several { server::shown(&node.0, node.1) } else { String::new() };
            checks.extend(found.checks.into_iter().map(|check| check.at(at.clone())));
        }
        checks
    }
}

/// Asks one server everything.
pub(in crate::stores) async fn examine(connections: &Connections, node: &Node, wanted: Wanted) -> Found {
    let mut connection = match connections.get(node).await {
        Ok(connection) => connection,
        Err(error) => return Found { checks: vec![INFO.is(Fail, error.message())], clock: None },
    };
    let first = read_clock(&mut connection).await;
    let mut checks = settings(&mut connection, wanted).await;
    checks.push(may_subscribe(&mut connection).await);
    let reading = match first {
        Ok(first) => {
            checks.push(first.0.check());
            checks.push(rate(&mut connection, first).await);
            Some(first.0)
        }
        Err(error) => {
            checks.push(clock_unknown("TIME", &error));
            None
        }
    };
    Found { checks, clock: reading }
}

fn command(words: &[&str]) -> Cmd {
    let mut cmd = Cmd::new();
    for word in words {
        cmd.arg(*word);
    }
    cmd
}

async fn ask(connection: &mut Connection, words: &[&str]) -> Result<Value> {
    let asked = tokio::time::timeout(ASK_LIMIT, send(connection, vec![command(words)])).await;
    let answer = asked.map_err(|_| timed_out())?.pop().unwrap_or(Ok(Value::Nil));
    answer.and_then(Value::extract_error).map_err(map_err)
}

/// A setting, or what was asked and why it was not told.
async fn config(connection: &mut Connection, key: &str) -> Result<String, (String, Error)> {
    let told = |error| (format!("CONFIG GET {key}"), error);
    let answer = ask(connection, &["CONFIG", "GET", key]).await.map_err(told)?;
    let pairs: std::collections::HashMap<String, String> = redis::from_redis_value(answer).unwrap_or_default();
    pairs.get(key).cloned().ok_or_else(|| told(Error::unsupported("the server has no such setting")))
}

async fn settings(connection: &mut Connection, wanted: Wanted) -> Vec<Check> {
    let info = match ask(connection, &["INFO"]).await {
        Ok(answer) => Info::read(answer),
        Err(error) => return vec![INFO.refused("INFO", &error)],
    };
    let fsync = config(connection, "appendfsync").await;
    let durable = info.field("aof_enabled") == "1" && fsync.as_ref().is_ok_and(|fsync| fsync == "always");
    let mut checks = vec![
        INFO.is(Fine, format!("version {}", info.field("redis_version"))),
        ROLE.bad_if(info.field("role") != "master", Fail, format!("the server is a {}", info.field("role"))),
        LOADING.bad_if(info.field("loading") == "1", Fail, loading(&info)),
        eviction(&info),
        persistence(&info, fsync, wanted),
        saving(&info),
        uptime(&info, durable, wanted),
    ];
    checks.extend(replicas(connection, &info, wanted).await);
    checks.push(match config(connection, "timeout").await {
        Ok(seconds) => {
            let limit = Duration::from_secs(seconds.parse().unwrap_or(0));
            let short = !limit.is_zero() && limit < wanted.ttl / 3;
            TIMEOUT.bad_if(short, Warn, format!("timeout {seconds}"))
        }
        Err((question, error)) => TIMEOUT.refused(&question, &error),
    });
    checks
}

fn loading(info: &Info) -> &'static str {
    if info.field("loading") == "1" { "the server is loading its data" } else { "the data is loaded" }
}

fn eviction(info: &Info) -> Check {
    let (limit, policy) = (info.field("maxmemory").parse().unwrap_or(0), info.field("maxmemory_policy"));
    let evicted = info.field("evicted_keys");
    let found = match limit {
        0 => format!("no maxmemory; policy {policy}"),
        limit => format!("maxmemory {}; policy {policy}; {evicted} keys evicted so far", bytes(limit)),
    };
    EVICTION.bad_if(limit > 0 && policy != "noeviction", Fail, found)
}

fn persistence(info: &Info, fsync: Result<String, (String, Error)>, wanted: Wanted) -> Check {
    let weak = if wanted.voter { Warn } else { Note };
    if info.field("aof_enabled") != "1" {
        return PERSISTENCE.is(weak, "appendonly no: a restart forgets locks");
    }
    match fsync {
        Ok(fsync) if fsync == "always" => PERSISTENCE.is(Fine, "appendonly yes, appendfsync always"),
        Ok(fsync) => {
            let found = format!("appendonly yes, appendfsync {fsync}: a crash forgets the last second or more");
            PERSISTENCE.is(weak, found)
        }
        Err((question, error)) => PERSISTENCE.refused(&question, &error),
    }
}

fn saving(info: &Info) -> Check {
    let fields = ["aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"];
    let failed: Vec<_> = fields.into_iter().filter(|field| !matches!(info.field(field), "ok" | "")).collect();
    let found =
        if failed.is_empty() { "the last writes to disk worked".to_owned() } else { failed.join(", ") + ": err" };
    SAVING.bad_if(!failed.is_empty(), Warn, found)
}

fn uptime(info: &Info, durable: bool, wanted: Wanted) -> Check {
    let up = Duration::from_secs(info.field("uptime_in_seconds").parse().unwrap_or(0));
    UPTIME.bad_if(up < wanted.ttl && !durable, Warn, format!("up for {}", duration::short(up)))
}

async fn replicas(connection: &mut Connection, info: &Info, wanted: Wanted) -> Vec<Check> {
    let count: u32 = info.field("connected_slaves").parse().unwrap_or(0);
    let online = (0..count).filter(|i| info.field(&format!("slave{i}")).contains("state=online")).count();
    let found = format!("{online} of {count} replicas online");
    if let Some(needed) = wanted.replicas {
        let few = online < needed as usize;
        return vec![
            REPLICAS.bad_if(few, Fail, format!("{found}; the URL wants {needed} to confirm each grant")),
            SPLIT.is(Fine, "every grant waits for replicas"),
        ];
    }
    if count == 0 {
        // A node of Redlock needs none: the other nodes stand in for it.
        let state = if wanted.voter { Fine } else { Note };
        return vec![ALONE.is(state, "no replica")];
    }
    let mut checks = vec![REPLICAS.is(Warn, format!("{found}; no grant waits for them"))];
    checks.push(match config(connection, "min-replicas-to-write").await {
        Ok(least) => SPLIT.bad_if(least == "0", Warn, format!("min-replicas-to-write {least}")),
        Err((question, error)) => SPLIT.refused(&question, &error),
    });
    checks
}

/// Asks without doing it.
async fn may_subscribe(connection: &mut Connection) -> Check {
    let question = "ACL DRYRUN";
    let asked = async {
        let user: String = redis::from_redis_value(ask(connection, &["ACL", "WHOAMI"]).await?).unwrap_or_default();
        ask(connection, &["ACL", "DRYRUN", &user, "SUBSCRIBE", "lk:k:x"]).await
    };
    match asked.await {
        Ok(Value::Okay) => PUSH.is(Fine, "this login may subscribe"),
        Ok(_) => PUSH.is(Warn, "this login may not subscribe to lk:k:*"),
        Err(error) => PUSH.refused(question, &error),
    }
}
