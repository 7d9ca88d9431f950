//! Registers: one node each, changed by comparing its version.
//!
//! The data is `lk1:<token>:<holder>:<lock>:<end>`, a line feed, and the value. The end is `none` without a value, `-`
//! for one that stays, or the time in milliseconds at which it ends, by the leader's clock: every change of a node says
//! what time that is.

use super::core::Core;
use super::names::{REGISTERS, decode, encode};
use super::session::Session;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::register::{Entry, Pass, Written, check_value};
use crate::token::{HolderId, Token};
use std::sync::Arc;
use std::time::Duration;
use zookeeper_client::{CreateMode, Error as Driver, Stat};

/// How often others may come between reading and writing.
const MOST_RACES: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    seen: Pass,
    value: Option<Vec<u8>>,
    /// Milliseconds of the leader's clock.
    ends: Option<u64>,
}

impl Kept {
    fn bytes(&self) -> Vec<u8> {
        let ends = match (&self.value, self.ends) {
            (None, _) => "none".to_owned(),
            (Some(_), None) => "-".to_owned(),
            (Some(_), Some(ms)) => ms.to_string(),
        };
        let lock = encode(self.seen.lock.as_bytes()).replace(':', "%3A");
        let mut bytes = format!("lk1:{}:{}:{lock}:{ends}\n", self.seen.token, self.seen.holder.to_hex()).into_bytes();
        bytes.extend_from_slice(self.value.as_deref().unwrap_or_default());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let at = bytes.iter().position(|b| *b == b'\n')?;
        let (head, value) = (std::str::from_utf8(&bytes[..at]).ok()?, &bytes[at + 1..]);
        let mut fields = head.strip_prefix("lk1:")?.split(':');
        let token = Token::new(fields.next()?.parse().ok()?).ok()?;
        let holder = HolderId::from_hex(fields.next()?)?;
        let lock = LockName::new(decode(&fields.next()?.replace("%3A", ":"))?).ok()?;
        let (value, ends) = match fields.next()? {
            "none" => (None, None),
            "-" => (Some(value.to_vec()), None),
            ms => (Some(value.to_vec()), Some(ms.parse().ok()?)),
        };
        Some(Self { seen: Pass::new(lock, token, holder), value, ends })
    }

    fn live(self, now: u64) -> Option<Vec<u8>> {
        self.value.filter(|_| self.ends.is_none_or(|ends| ends > now))
    }
}

/// What `raise` writes.
#[derive(Clone, Copy)]
enum Change<'a> {
    /// Only the fence.
    Fence,
    Value(&'a [u8], Option<Duration>),
}

impl Core {
    fn register(&self, key: &LockName) -> String {
        format!("{}/{REGISTERS}/{}", self.options.root, encode(key.as_bytes()))
    }

    pub(super) async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        Ok(match self.raise(key, pass, Change::Fence).await? {
            Ok(value) => Entry::Entered(value),
            Err(seen) => Entry::Stale { seen },
        })
    }

    pub(super) async fn write(
        &self,
        key: &LockName,
        pass: &Pass,
        value: &[u8],
        ttl: Option<Duration>,
    ) -> Result<Written> {
        check_value(value)?;
        Ok(match self.raise(key, pass, Change::Value(value, ttl)).await? {
            Ok(_) => Written::Written,
            Err(seen) => Written::Stale { seen },
        })
    }

    pub(super) async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        let session = self.session().await?;
        let path = self.register(key);
        let synced = session.client.sync(self.root());
        let reading = session.client.get_data(&path);
        let read = reading.await;
        synced.await.map_err(|e| self.failed(&session, e))?;
        let kept = match read {
            Ok((data, _)) => parse(key, &data)?,
            Err(Driver::NoNode) => return Ok(None),
            Err(e) => return Err(self.failed(&session, e)),
        };
        if kept.ends.is_none() {
            return Ok(kept.value);
        }
        let now = self.now(&session).await?;
        Ok(kept.live(now))
    }

    /// Raises the fence, with or without a value: what was there, or the token in the way.
    async fn raise(
        &self,
        key: &LockName,
        pass: &Pass,
        change: Change<'_>,
    ) -> Result<std::result::Result<Option<Vec<u8>>, Token>> {
        let session = self.session().await?;
        let path = self.register(key);
        // The end of a value is reckoned from the leader's clock; an enter learns of it by its own write.
        let now = match change {
            Change::Value(_, Some(_)) => self.now(&session).await?,
            _ => 0,
        };
        for race in 0..MOST_RACES {
            if race > 0 {
                // Another server may be ahead of the one that answers here.
                session.client.sync(self.root()).await.map_err(|e| self.failed(&session, e))?;
            }
            let read = match session.client.get_data(&path).await {
                Err(Driver::NoNode) => None,
                read => Some(read.map_err(|e| self.failed(&session, e))?),
            };
            let old = match &read {
                Some((data, stat)) => Some((parse(key, data)?, stat.version)),
                None => None,
            };
            let seen = old.as_ref().map(|(kept, _)| &kept.seen);
            if !pass.clears(key, seen)? {
                return Ok(Err(seen.map_or(pass.token, |seen| seen.token)));
            }
            let was = old.as_ref().map(|(kept, _)| kept.clone());
            let (value, ends) = match change {
                Change::Fence => was.map_or((None, None), |kept| (kept.value, kept.ends)),
                Change::Value(value, ttl) => {
                    let ms = |ttl: Duration| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
                    (Some(value.to_vec()), ttl.map(|ttl| now.saturating_add(ms(ttl))))
                }
            };
            let new = Kept { seen: pass.clone(), value, ends };
            match self.swap(&session, &path, &new.bytes(), old.map(|(_, version)| version)).await {
                Ok(stat) => return Ok(Ok(new.live(millis(stat.mtime)))),
                Err(Driver::BadVersion | Driver::NodeExists | Driver::NoNode) => {}
                Err(e) => return Err(self.failed(&session, e)),
            }
        }
        Err(Error::unavailable("others write to the register again and again").in_store("zookeeper"))
    }

    /// Changes a node that is as it was, or makes one that was not there.
    async fn swap(
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

fn millis(time: i64) -> u64 {
    u64::try_from(time).unwrap_or(0)
}

fn parse(key: &LockName, data: &[u8]) -> Result<Kept> {
    Kept::parse(data).ok_or_else(|| {
        Error::new(ErrorKind::Foreign, format!("the node of register '{key}' holds what Lockkeeper did not write"))
            .in_store("zookeeper")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_comes_back_and_damage_is_noticed() {
        let lock = LockName::new(b"a:b%3A/\xff").unwrap();
        let seen = Pass::new(lock, Token::new(7).unwrap(), HolderId::from_u128(3));
        for (value, ends) in [(None, None), (Some(b"\n\0".to_vec()), None), (Some(Vec::new()), Some(12))] {
            let kept = Kept { seen: seen.clone(), value, ends };
            assert_eq!(Kept::parse(&kept.bytes()), Some(kept));
        }
        for odd in [&b""[..], b"\n", b"lk1:7:x:y:-\n", b"lk1:0:00000000000000000000000000000003:a:-\n", b"2026-01-01"] {
            assert_eq!(Kept::parse(odd), None);
        }
    }
}
