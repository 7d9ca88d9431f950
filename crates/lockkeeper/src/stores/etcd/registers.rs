//! Small values behind a fence: the fence and the value are two keys, so that the value can end by itself.
//!
//! A step reads the fence, decides, and writes if nobody has written the fence since; otherwise it reads again. Fences
//! hang on a lease of two days that is replaced after one, so a fence lives between one and two days after its last use.

use super::core::{ASK_LIMIT, Core, lock};
use super::keys;
use super::proto::{Compare, KeyValue, Op, Range, Txn, TxnAnswer};
use crate::clock::{Stamp, system_now};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::register::{FENCE_LIFE, Pass};
use crate::token::{HolderId, Token};
use std::sync::Mutex;
use std::time::Duration;

/// How often a step is tried again because somebody else came in between; each time somebody else has got on.
const MOST_RACES: u32 = 100;

/// The lease that fences hang on, and when it was granted.
pub(super) type FenceLease = Mutex<Option<(i64, Stamp)>>;

impl Core {
    /// Raises the fence of `key` to `pass` and does `more` in the same step; what it read, or the token in the way.
    pub(super) async fn raise(
        &self,
        key: &LockName,
        pass: &Pass,
        more: impl Fn() -> Vec<Op>,
    ) -> Result<std::result::Result<TxnAnswer, Token>> {
        let fence = keys::fence(key);
        let mut lease = self.fence_lease().await?;
        for _ in 0..MOST_RACES {
            let read = Txn { then: vec![Range::one(&fence[..]).into()], ..Txn::default() };
            let found = self.rpc.txn(read, ASK_LIMIT).await.map_err(Error::from)?;
            let kv = found.ranges().next().and_then(|range| range.kvs.into_iter().next());
            let seen = kv.as_ref().map(|kv| parse(key, kv)).transpose()?;
            if !pass.clears(key, seen.as_ref())? {
                return Ok(Err(seen.map_or(pass.token, |seen| seen.token)));
            }
            let revision = kv.map_or(0, |kv| kv.mod_revision);
            let mut then = vec![Op::put(&fence[..], text(pass), lease)];
            then.extend(more());
            let txn = Txn { compare: vec![Compare::modified(&fence, revision)], then, otherwise: Vec::new() };
            match self.rpc.txn(txn, ASK_LIMIT).await {
                Ok(answer) if answer.succeeded => return Ok(Ok(answer)),
                Ok(_) => {}
                Err(super::error::Fault::NoLease) => {
                    *lock(&self.fence_lease) = None;
                    lease = self.fence_lease().await?;
                }
                Err(fault) => return Err(fault.into()),
            }
        }
        Err(Error::unavailable("too many others write this register at the same time").in_store("etcd"))
    }

    async fn fence_lease(&self) -> Result<i64> {
        let now = system_now();
        if let Some((id, since)) = *lock(&self.fence_lease)
            && now.since(since) < FENCE_LIFE
        {
            return Ok(id);
        }
        let id = self.value_lease(FENCE_LIFE * 2).await?;
        *lock(&self.fence_lease) = Some((id, now));
        Ok(id)
    }

    /// A lease that nobody keeps alive: what hangs on it ends with it.
    pub(super) async fn value_lease(&self, ttl: Duration) -> Result<i64> {
        let seconds = i64::try_from(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).unwrap_or(i64::MAX).max(1);
        Ok(self.rpc.lease_grant(seconds, ASK_LIMIT).await.map_err(Error::from)?.id)
    }
}

/// `lk1:token:holder:lock`, the lock's name percent-encoded.
fn text(pass: &Pass) -> Vec<u8> {
    let lock = keys::encode(pass.lock.as_bytes());
    format!("lk1:{}:{}:{lock}", pass.token, pass.holder.to_hex()).into_bytes()
}

fn parse(key: &LockName, kv: &KeyValue) -> Result<Pass> {
    let read = || {
        let mut fields = std::str::from_utf8(&kv.value).ok()?.strip_prefix("lk1:")?.splitn(3, ':');
        let token = Token::new(fields.next()?.parse().ok()?).ok()?;
        let holder = HolderId::from_hex(fields.next()?)?;
        let lock = LockName::new(keys::decode(fields.next()?.as_bytes())?).ok()?;
        Some(Pass::new(lock, token, holder))
    };
    read().ok_or_else(|| {
        Error::new(ErrorKind::Foreign, format!("the fence of register '{key}' holds something else")).in_store("etcd")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_survives_the_trip_and_anything_else_is_foreign() {
        let key = LockName::new("k").unwrap();
        let pass = Pass::new(LockName::new(b"a/b:\xff").unwrap(), Token::new(7).unwrap(), HolderId::from_u128(3));
        let kv = |value: Vec<u8>| KeyValue { value, ..KeyValue::default() };
        assert_eq!(parse(&key, &kv(text(&pass))).unwrap(), pass);
        for bad in ["", "lk1:", "lk1:0:x:y", "lk2:1"] {
            assert_eq!(parse(&key, &kv(bad.into())).unwrap_err().kind(), ErrorKind::Foreign, "{bad}");
        }
    }
}
