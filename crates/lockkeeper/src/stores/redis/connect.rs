//! Connecting: what the store asks a server once, and which servers it refuses.

use super::RedisStore;
use super::driver::connections::Connections;
use super::driver::gather::send;
use super::error::timed_out;
use super::events;
use super::keys::Notes;
use super::options::{Kind, Options};
use crate::error::{Error, Result};
use crate::store::Store;
use crate::stores::shared::connecting;
use crate::stores::shared::timing::ASK_LIMIT;
use redis::Value;
use std::sync::atomic::AtomicBool;

impl RedisStore {
    /// Connects to the server of a URL such as `redis://user:password@host:6379/0?wait_replicas=1`.
    ///
    /// # Errors
    /// `InvalidConfig` for a URL that cannot work, `Denied` for a refused login, `Unsupported` for a server that is too
    /// old, `Unavailable` when it cannot be reached.
    pub async fn connect(url: &str) -> Result<Self> {
        let parts = crate::url::parse(url)?;
        Self::from_parts(&parts.scheme, &parts.raw_place, &parts.options).await
    }

    pub(crate) async fn from_parts(scheme: &str, place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let mut store = Self {
            connections: Connections::listening(Options::parse(scheme, place, pairs)?),
            keeper: events::new_channel()?,
            notes: Notes::default(),
            missed: AtomicBool::new(false),
            evicts: false,
        };
        let connections = store.connections.clone();
        let checked = connecting::ask(async move { check_server(&connections).await }).await;
        store.evicts = checked.map_err(|e| store.info().name_in(e.during("connect")))?;
        Ok(store)
    }
}

/// Reaches the server and refuses one that is too old; whether it may evict locks.
async fn check_server(connections: &Connections) -> Result<bool> {
    let mut connection = connections.get(&connections.node_of(b"").await?).await?;
    let asked = tokio::time::timeout(ASK_LIMIT, send(&mut connection, vec![redis::cmd("INFO")])).await;
    let Some(Ok(answer)) = asked.map_err(|_| timed_out())?.pop() else {
        // An ACL may forbid INFO, which the locks do not need.
        return Ok(false);
    };
    let info = Info::read(answer);
    if let Some((major, minor)) = info.too_old() {
        return Err(Error::unsupported(format!("Redis {major}.{minor} is too old; 6.2 is needed")).in_store("redis"));
    }
    if info.field("redis_mode") == "cluster" && connections.options().kind != Kind::Cluster {
        return Err(Error::invalid_config("that server is part of a Cluster: write redis+cluster://").in_store("redis"));
    }
    Ok(info.may_evict())
}

/// What a server answers to INFO.
pub(in crate::stores) struct Info(String);

impl Info {
    pub(in crate::stores) fn read(answer: Value) -> Self {
        Self(redis::from_redis_value(answer).unwrap_or_default())
    }

    /// The value of a field, empty if there is none.
    pub(in crate::stores) fn field(&self, key: &str) -> &str {
        self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap_or("").trim()
    }

    /// The version, if the server says one that is too old.
    pub(in crate::stores) fn too_old(&self) -> Option<(u32, u32)> {
        let mut parts = self.field("redis_version").split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        (version != (0, 0) && version < (6, 2)).then_some(version)
    }

    /// Whether the server may drop locks when its memory is full; warns in the log if so. Every lock has a TTL, so a
    /// `volatile-*` policy drops locks too, and drops them first.
    pub(in crate::stores) fn may_evict(&self) -> bool {
        let policy = self.field("maxmemory_policy");
        let may = !matches!(policy, "" | "noeviction") && self.field("maxmemory") != "0";
        if may {
            let policy = policy.to_owned();
            crate::log::say(move || tracing::warn!(policy, "this Redis may evict locks when its memory is full"));
        }
        may
    }
}
