//! Small values behind a fence: the fence and the value are two keys, so that the value can end by itself.
//!
//! Fences hang on a lease of two days that is replaced after one. A fence lives between one and two days after its last
//! use.

use super::core::Core;
use super::error::{Fault, explain};
use super::keys;
use super::proto::{Compare, KeyValue, Op, Range, Txn, TxnAnswer};
use crate::clock::{Stamp, system_now};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::register::{FENCE_LIFE, Pass};
use crate::stores::shared::lock;
use crate::stores::shared::register::{Change, Versioned, parse_pass, pass_text};
use crate::stores::shared::timing::ASK_LIMIT;
use async_trait::async_trait;
use std::sync::Mutex;
use std::time::Duration;

/// The lease that fences hang on, and when it was granted.
pub(super) type FenceLease = Mutex<Option<(i64, Stamp)>>;

impl Core {
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

    /// A lease that no client keeps alive: what hangs on it ends with it.
    async fn value_lease(&self, ttl: Duration) -> Result<i64> {
        let seconds = i64::try_from(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).unwrap_or(i64::MAX).max(1);
        Ok(self.rpc.lease_grant(seconds, ASK_LIMIT).await.map_err(in_registers)?.id)
    }

    async fn read_key(&self, key: Vec<u8>) -> Result<Option<KeyValue>> {
        let then = vec![Range::one(key).into()];
        Ok(only(self.rpc.txn(Txn { then, ..Txn::default() }, ASK_LIMIT).await.map_err(in_registers)?))
    }
}

#[async_trait]
impl Versioned for Core {
    const STORE: &'static str = "etcd";

    /// The revision of the fence; 0 when there is none.
    type Found = i64;

    async fn load(&self, key: &LockName, _race: u32) -> Result<(Option<Pass>, i64)> {
        let Some(kv) = self.read_key(keys::fence(key)).await? else { return Ok((None, 0)) };
        Ok((Some(parse(key, &kv)?), kv.mod_revision))
    }

    async fn swap(
        &self,
        key: &LockName,
        revision: i64,
        pass: &Pass,
        change: Change<'_>,
    ) -> Result<Option<Option<Vec<u8>>>> {
        let (fence, place) = (keys::fence(key), keys::value(key));
        let value = match change {
            None => Range::one(&place[..]).into(),
            Some((value, None)) => Op::put(&place[..], value, 0),
            Some((value, Some(ttl))) => Op::put(&place[..], value, self.value_lease(ttl).await?),
        };
        let raised = Op::put(&fence[..], text(pass), self.fence_lease().await?);
        let compare = vec![Compare::modified(&fence, revision)];
        match self.rpc.txn(Txn { compare, then: vec![raised, value], otherwise: Vec::new() }, ASK_LIMIT).await {
            Ok(answer) if answer.succeeded => Ok(Some(only(answer).map(|kv| kv.value))),
            Ok(_) => Ok(None),
            Err(Fault::NoLease) => {
                *lock(&self.fence_lease) = None;
                Ok(None)
            }
            Err(fault) => Err(in_registers(fault)),
        }
    }

    async fn value(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        Ok(self.read_key(keys::value(key)).await?.map(|kv| kv.value))
    }
}

/// An error of a call about registers, whose keys are all Lockkeeper's own.
fn in_registers(fault: Fault) -> Error {
    explain(fault.into(), "readwrite", &[keys::OURS.as_bytes()])
}

/// What the only range of a transaction found.
fn only(answer: TxnAnswer) -> Option<KeyValue> {
    answer.ranges().next().and_then(|range| range.kvs.into_iter().next())
}

fn text(pass: &Pass) -> String {
    pass_text(pass, &keys::encode(pass.lock.as_bytes()))
}

pub(super) fn parse(key: &LockName, kv: &KeyValue) -> Result<Pass> {
    let read = || match parse_pass(std::str::from_utf8(&kv.value).ok()?, |lock| keys::decode(lock.as_bytes()))? {
        (pass, None) => Some(pass),
        _ => None,
    };
    read().ok_or_else(|| {
        Error::new(ErrorKind::Foreign, format!("the fence of register '{key}' holds something else")).in_store("etcd")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::{HolderId, Token};

    #[test]
    fn a_pass_survives_the_trip_and_anything_else_is_foreign() {
        let key = LockName::new("k").unwrap();
        let pass = Pass::new(LockName::new(b"a/b:\xff").unwrap(), Token::new(7).unwrap(), HolderId::from_u128(3));
        let kv = |value: String| KeyValue { value: value.into(), ..KeyValue::default() };
        assert_eq!(parse(&key, &kv(text(&pass))).unwrap(), pass);
        for bad in ["", "lk1:", "lk1:0:x:y", "lk2:1"] {
            assert_eq!(parse(&key, &kv(bad.into())).unwrap_err().kind(), ErrorKind::Foreign, "{bad}");
        }
    }
}
