//! Registers: small values behind a fence. They look alike in every layout.

use super::RedisStore;
use super::driver::call::{Call, Reply};
use super::driver::script::{self, Script, Terms, scripts};
use super::error::unexpected_reply;
use super::keys::{companion, millis};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::register::{Entry, Pass, Register, Written, check_value};
use crate::stores::shared::timing::ASK_LIMIT;
use async_trait::async_trait;
use std::time::Duration;

scripts! { "scripts/";
    REGISTER = "register";
    READ = "read";
}

impl RedisStore {
    async fn register(&self, script: &Script, call: Call) -> Result<Reply> {
        let wait = self.connections.options().wait.filter(|_| std::ptr::eq(script, &*REGISTER));
        let terms = Terms { limit: ASK_LIMIT, wait, several: false };
        let reply = script::run(&self.connections, script, &[call], terms).await.pop();
        reply.unwrap_or_else(|| Err(unexpected_reply("nothing"))).and_then(Reply::read)
    }

    /// The key of a register. The layout's prefix is part of it: one name in two layouts means two locks.
    fn register_key(&self, key: &LockName) -> Vec<u8> {
        companion(b'v', &[self.layout().prefix(), key.as_bytes()].concat())
    }

    fn register_call(&self, key: &LockName, pass: &Pass) -> Call {
        Call::new([self.register_key(key)])
            .arg(pass.lock.as_bytes())
            .arg(pass.token.to_string())
            .arg(pass.holder.to_hex())
    }
}

/// The fence belongs to another lock: the rule of fences says what is wrong.
fn other_lock(key: &LockName, pass: &Pass, reply: &Reply) -> Error {
    let lock = reply.bytes(1).and_then(|lock| LockName::new(lock).ok());
    let seen = lock.map(|lock| Pass::new(lock, pass.token, pass.holder));
    pass.clears(key, seen.as_ref()).err().unwrap_or_else(|| unexpected_reply("no lock's name"))
}

#[async_trait]
impl Register for RedisStore {
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        let reply = self.register(&REGISTER, self.register_call(key, pass).arg("r")).await?;
        match reply.code()? {
            1 => Ok(Entry::Entered(reply.bytes(1))),
            0 => Ok(Entry::Stale { seen: reply.token(1)? }),
            _ => Err(other_lock(key, pass, &reply)),
        }
    }

    async fn write(&self, key: &LockName, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<Written> {
        check_value(value)?;
        let ttl = ttl.map(millis).unwrap_or_default();
        let call = self.register_call(key, pass).arg("w").arg(value).arg(ttl);
        let reply = self.register(&REGISTER, call).await?;
        match reply.code()? {
            1 => Ok(Written::Written),
            0 => Ok(Written::Stale { seen: reply.token(1)? }),
            _ => Err(other_lock(key, pass, &reply)),
        }
    }

    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        Ok(self.register(&READ, Call::new([self.register_key(key)])).await?.bytes(1))
    }
}
