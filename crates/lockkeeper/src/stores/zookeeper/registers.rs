//! Registers: one node each, changed by comparing its version.
//!
//! The end of a value is a millisecond of the leader's clock: every change of a node says what time that is.

use super::core::Core;
use super::keys::{REGISTERS, decode, encode, field};
use super::session::Session;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::register::Pass;
use crate::stores::shared::register::{Change, StoredRegister, Versioned};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use zookeeper_client::{CreateMode, Error as Driver, Stat};

/// A register as it was read, and the version of its node; `None` when there is no node.
pub(super) type Found = Option<(StoredRegister, i32)>;

impl Core {
    fn register(&self, key: &LockName) -> String {
        format!("{}/{REGISTERS}/{}", self.options.root, encode(key.as_bytes()))
    }

    /// Reads a register; with `latest`, as the leader has it.
    async fn stored(&self, session: &Arc<Session>, key: &LockName, latest: bool) -> Result<Found> {
        let path = self.register(key);
        let synced = latest.then(|| session.client.sync(self.root()));
        let reading = session.client.get_data(&path);
        let read = reading.await;
        if let Some(synced) = synced {
            synced.await.map_err(|e| self.failed(session, e))?;
        }
        match read {
            Ok((data, stat)) => Ok(Some((parse(key, &data)?, stat.version))),
            Err(Driver::NoNode) => Ok(None),
            Err(e) => Err(self.failed(session, e)),
        }
    }

    /// Changes a node whose version is still that, or creates one that was not there.
    async fn write_node(
        &self,
        session: &Arc<Session>,
        path: &str,
        bytes: &[u8],
        version: Option<i32>,
    ) -> std::result::Result<Stat, Driver> {
        if version.is_some() {
            return session.client.set_data(path, bytes, version).await;
        }
        let mode = self.create(CreateMode::Persistent);
        match session.client.create(path, bytes, &mode).await {
            Err(Driver::NoNode) => {
                session.client.mkdir(&format!("{}/{REGISTERS}", self.options.root), &mode).await?;
                session.client.create(path, bytes, &mode).await.map(|(stat, _)| stat)
            }
            made => made.map(|(stat, _)| stat),
        }
    }

    /// The leader's clock: the time of a change that is made to learn it.
    async fn now(&self, session: &Arc<Session>) -> Result<u64> {
        let path = format!("{}/{REGISTERS}", self.options.root);
        let stat = match session.client.set_data(&path, b"", None).await {
            Err(Driver::NoNode) => {
                let mode = self.create(CreateMode::Persistent);
                session.client.mkdir(&path, &mode).await.map_err(|e| self.failed(session, e))?;
                session.client.set_data(&path, b"", None).await
            }
            set => set,
        };
        Ok(millis(stat.map_err(|e| self.failed(session, e))?.mtime))
    }
}

#[async_trait]
impl Versioned for Core {
    const STORE: &'static str = "zookeeper";
    type Found = Found;

    async fn load(&self, key: &LockName, race: u32) -> Result<(Option<Pass>, Found)> {
        // After a lost race, another server may be ahead of the one that answers here.
        let found = self.stored(&self.session().await?, key, race > 0).await?;
        Ok((found.as_ref().map(|(stored, _)| stored.seen.clone()), found))
    }

    async fn swap(
        &self,
        key: &LockName,
        found: Found,
        pass: &Pass,
        change: Change<'_>,
    ) -> Result<Option<Option<Vec<u8>>>> {
        let session = self.session().await?;
        // The end of a value is reckoned from the leader's clock; an enter learns of it by its own write.
        let now = match change {
            Some((_, Some(_))) => self.now(&session).await?,
            _ => 0,
        };
        let ms = |ttl: Duration| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
        let (old, version) = found.unzip();
        let next = StoredRegister::next(old.as_ref(), pass, change, |ttl| now.saturating_add(ms(ttl)));
        match self.write_node(&session, &self.register(key), &next.bytes(field), version).await {
            Ok(stat) => Ok(Some(next.live(millis(stat.mtime)))),
            Err(Driver::BadVersion | Driver::NodeExists | Driver::NoNode) => Ok(None),
            Err(e) => Err(self.failed(&session, e)),
        }
    }

    async fn value(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        let session = self.session().await?;
        let Some((stored, _)) = self.stored(&session, key, true).await? else { return Ok(None) };
        if stored.ends.is_none() {
            return Ok(stored.value);
        }
        let now = self.now(&session).await?;
        Ok(stored.live(now))
    }
}

fn millis(time: i64) -> u64 {
    u64::try_from(time).unwrap_or(0)
}

pub(super) fn parse(key: &LockName, data: &[u8]) -> Result<StoredRegister> {
    let lock = |text: &str| decode(&text.replace("%3A", ":"));
    StoredRegister::parse(data, lock).ok_or_else(|| {
        Error::new(ErrorKind::Foreign, format!("the node of register '{key}' holds what Lockkeeper did not write"))
            .in_store("zookeeper")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::{HolderId, Token};

    #[test]
    fn a_lock_with_colons_and_percent_signs_comes_back() {
        let key = LockName::new("k").unwrap();
        let lock = LockName::new(b"a:b%3A/\xff").unwrap();
        let seen = Pass::new(lock, Token::new(7).unwrap(), HolderId::from_u128(3));
        let stored = StoredRegister { seen, value: Some(b"\n\0".to_vec()), ends: Some(12) };
        assert_eq!(parse(&key, &stored.bytes(field)).unwrap(), stored);
    }
}
