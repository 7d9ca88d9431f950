//! The locks of python-redis-lock: a string at `lock:NAME`, and the list `lock-signal:NAME` that its waiters sleep on.
//!
//! It is the plain layout at another key. Its scripts push an element whenever they leave the lock free. Our own waiters do
//! not read the list: one element wakes one waiter, and a cancelled waiter of ours would take it from one of theirs.

use super::{INSPECT, Layout, RENEW_MANY, Step};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::stores::redis::driver::script::{Script, scripts};
use crate::stores::redis::keys::Keys;
use crate::stores::redis::options::Kind;

scripts! { "../scripts/";
    ACQUIRE = "acquire_fast" "python_redis_lock" "common" "acquire" "several_end";
    RENEW = "renew_fast" "one" "python_redis_lock" "common" "renew";
    RELEASE = "release_each" "release_rest" "python_redis_lock" "common" "release" "several_end";
    BREAK = "one" "python_redis_lock" "common" "break";
}

#[derive(Debug)]
pub(super) struct PythonRedisLock;

impl Layout for PythonRedisLock {
    fn word(&self) -> &'static str {
        "python-redis-lock"
    }

    fn check_servers(&self, kind: &Kind) -> Result<()> {
        if *kind != Kind::Cluster {
            return Ok(());
        }
        let text =
            "layout=python-redis-lock cannot work in a Cluster: it keeps a lock and its signal in different slots";
        Err(Error::invalid_config(text).in_store("redis"))
    }

    fn check_name(&self, _: &LockName) -> Result<()> {
        Ok(())
    }

    fn keys(&self, name: &LockName, _: bool) -> Result<Keys> {
        Ok(Keys::at([self.prefix(), name.as_bytes()].concat()))
    }

    fn prefix(&self) -> &'static [u8] {
        b"lock:"
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

    fn renew_many(&self) -> Option<&'static Script> {
        Some(&RENEW_MANY)
    }
}
