//! Registers: one key each, changed by comparing its index.
//!
//! The end of a value is a microsecond of the wall clocks of the clients that write and read: Consul ends no key by itself.

use super::core::Core;
use super::json::{Op, Txn};
use super::keys::{decode, field};
use crate::clock::wall_micros;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::register::Pass;
use crate::stores::shared::register::{Change, StoredRegister, Versioned};
use crate::stores::shared::timing::ASK_LIMIT;
use async_trait::async_trait;

impl Core {
    /// A register as it stands, and its index; 0 when there is none.
    async fn stored(&self, key: &LockName) -> Result<(Option<StoredRegister>, u64)> {
        let path = self.http.options.keys.register(key);
        let Some(entry) = self.http.get(&path, ASK_LIMIT).await?.0 else { return Ok((None, 0)) };
        let foreign = || {
            let text = format!("the register '{key}' holds data that Lockkeeper did not write");
            Error::new(ErrorKind::Foreign, text).in_store("consul")
        };
        Ok((Some(StoredRegister::parse(&entry.value, decode).ok_or_else(foreign)?), entry.modify_index))
    }
}

#[async_trait]
impl Versioned for Core {
    const STORE: &'static str = "consul";
    type Found = (Option<StoredRegister>, u64);

    async fn load(&self, key: &LockName, _race: u32) -> Result<(Option<Pass>, Self::Found)> {
        let found = self.stored(key).await?;
        Ok((found.0.as_ref().map(|stored| stored.seen.clone()), found))
    }

    async fn swap(
        &self,
        key: &LockName,
        (old, index): Self::Found,
        pass: &Pass,
        change: Change<'_>,
    ) -> Result<Option<Option<Vec<u8>>>> {
        let now = wall_micros();
        let micros = |ttl: std::time::Duration| u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX);
        let next = StoredRegister::next(old.as_ref(), pass, change, |ttl| now.saturating_add(micros(ttl)));
        // If nothing changes, the read was as fresh as a write would be.
        if old.as_ref() != Some(&next) {
            let path = self.http.options.keys.register(key);
            let ops = vec![Op::cas(&path, index, &next.bytes(field))];
            if let Txn::Not(_) = self.http.txn(ops, ASK_LIMIT).await? {
                return Ok(None);
            }
        }
        Ok(Some(next.live(now)))
    }

    async fn value(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        Ok(self.stored(key).await?.0.and_then(|stored| stored.live(wall_micros())))
    }
}
