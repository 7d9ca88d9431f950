//! The locks of Redisson: a hash at the name with one field per holder, `CLIENT:THREAD`, and a TTL.
//!
//! - `K`: our field is the holder's id, written as a client's UUID, and thread 0. No JVM has a thread 0, so no client takes
//!   it for its own re-entrance. A second field, `mode` = `write`, keeps `RReadWriteLock` out: without it, that lock takes
//!   the hash for free.
//! - `redisson_lock_token:{K}`: the counter of `RFencedLock`, raised to `max(last + 1, TIME in µs)`. Redisson counts on
//!   from there. It has no TTL: after one, Redisson would begin at 1 again.
//! - `lk:h:{K}`: which Lockkeeper client holds; `lk:x:{K}:HOLDER` tombstones, as in the plain layout.
//!
//! There is no line of waiters: a line that hands over would keep Redisson's waiters out for as long as ours come. The
//! first client that asks after a release gets the lock. A free lock is published where Redisson's waiters listen. Our
//! waiters watch the key, which also tells of holders that publish elsewhere (fair, read-write and spin locks).

use super::{Layout, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::store::{Mode, StoreInfo};
use crate::stores::redis::driver::script::{Script, scripts};
use crate::stores::redis::keys::{Keys, companion, slot};
use redis::{Cmd, Value};

scripts! { "../scripts/redisson/";
    ACQUIRE = "common" "acquire";
    RENEW = "common" "renew";
    RELEASE = "common" "release";
    BREAK = "common" "break";
    INSPECT = "common" "inspect";
}

#[derive(Debug)]
pub(super) struct Redisson;

impl Layout for Redisson {
    fn word(&self) -> &'static str {
        "redisson"
    }

    fn declared(&self, plain: StoreInfo) -> StoreInfo {
        StoreInfo { queue: false, push: false, shared: false, permits: false, ..plain }
    }

    fn check_mode(&self, mode: Mode) -> Result<()> {
        match mode {
            Mode::Exclusive => Ok(()),
            _ => Err(Error::unsupported("layout=redisson has Exclusive locks only").in_store("redis")),
        }
    }

    fn serves_several(&self) -> bool {
        false
    }

    fn keys(&self, name: &LockName, cluster: bool) -> Result<Keys> {
        let mut keys = Keys::of(name)?;
        keys.fence = prefixed(b"redisson_lock_token", name.as_bytes());
        if cluster && slot(&keys.fence) != slot(&keys.lock) {
            let text = "Redisson's keys of a name with single braces fall into different slots of a Cluster";
            return Err(Error::new(ErrorKind::InvalidName, text).in_store("redis").for_lock(name));
        }
        Ok(keys)
    }

    fn script(&self, step: Step) -> &'static Script {
        match step {
            Step::Acquire => &ACQUIRE,
            Step::Renew => &RENEW,
            Step::Release => &RELEASE,
            Step::Break => &BREAK,
            Step::Inspect => &INSPECT,
        }
    }

    fn must_watch(&self, _: bool, _: u32) -> bool {
        true
    }

    fn data_type(&self) -> &'static str {
        "hash"
    }

    fn mark(&self, key: &[u8]) -> Cmd {
        let mut cmd = redis::cmd("EXISTS");
        cmd.arg(companion(b'h', key));
        cmd
    }

    fn is_ours(&self, mark: &Value) -> bool {
        *mark == Value::Int(1)
    }
}

/// The key that Redisson derives from a lock's name.
fn prefixed(prefix: &[u8], name: &[u8]) -> Vec<u8> {
    if name.contains(&b'{') { [prefix, b":", name].concat() } else { [prefix, b":{", name, b"}"].concat() }
}
