//! What is asked of a server when it is connected to.

use super::ASK_LIMIT;
use super::connect::Links;
use super::gather::send;
use super::options::Kind;
use crate::error::{Error, Result};

/// Reaches the server and refuses one that is too old; whether it may evict locks.
pub(super) async fn server(links: &Links) -> Result<bool> {
    let mut line = links.line(&links.node_of(b"").await?).await?;
    let asked = tokio::time::timeout(ASK_LIMIT, send(&mut line, vec![redis::cmd("INFO")])).await;
    let late = || Error::unavailable("the server did not answer in time").in_store("redis");
    let Some(Ok(answer)) = asked.map_err(|_| late())?.pop() else {
        // An ACL may forbid INFO, which the locks do not need.
        return Ok(false);
    };
    let text: String = redis::from_redis_value(answer).unwrap_or_default();
    let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap_or("");
    let mut version = field("redis_version").split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (version.next().unwrap_or(0), version.next().unwrap_or(0));
    if version != (0, 0) && version < (6, 2) {
        let text = format!("Redis {}.{} is too old; 6.2 is needed", version.0, version.1);
        return Err(Error::unsupported(text).in_store("redis"));
    }
    if field("redis_mode") == "cluster" && links.options().kind != Kind::Cluster {
        return Err(Error::invalid_config("that server is part of a Cluster: write redis+cluster://").in_store("redis"));
    }
    Ok(may_evict(&field))
}

/// Whether a server with these fields of `INFO` may drop locks when its memory is full; says so in the log. Every lock has
/// a TTL, so a `volatile-*` policy takes them too, and takes them first.
pub(in crate::stores) fn may_evict<'a>(field: &impl Fn(&str) -> &'a str) -> bool {
    let policy = field("maxmemory_policy").trim();
    let may = !matches!(policy, "" | "noeviction") && field("maxmemory").trim() != "0";
    if may {
        let policy = policy.to_owned();
        crate::log::say(move || tracing::warn!(policy, "this Redis may evict locks when its memory is full"));
    }
    may
}
