//! Registers of the store behind the gateway.

use super::{Core, SCHEME, in_query, refused};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::register::{Entry, Pass, Register, Written, check_value};
use crate::stores::shared::timing::ASK_LIMIT;
use crate::token::Token;
use crate::wire::{Entered, Fenced, Problem, named};
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;

/// The way to the registers.
#[derive(Debug)]
pub(super) struct Registers(pub(super) Arc<Core>);

impl Registers {
    /// What was asked for, or the token of a later holder.
    async fn show<T: DeserializeOwned>(&self, path: &str, request: &Fenced) -> Result<Result<T, Token>> {
        match self.0.post(path, request, ASK_LIMIT).await? {
            Ok(answer) => Ok(Ok(answer)),
            Err(Problem { seen: Some(seen), .. }) => Ok(Err(Token::new(seen)?)),
            Err(problem) => Err(refused(problem)),
        }
    }
}

fn value(entered: &Entered) -> Result<Option<Vec<u8>>> {
    let bad = |e| Error::new(ErrorKind::Unexpected, "a value without base64").with_source(e).in_store(SCHEME);
    entered.bytes().map_err(bad)
}

fn request(key: &LockName, pass: &Pass) -> Fenced {
    let (key, key_hex) = named(key.as_bytes());
    Fenced { key, key_hex, pass: pass.into(), value64: None, ttl_ms: None }
}

#[async_trait]
impl Register for Registers {
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        match self.show("/v1/registers/enter", &request(key, pass)).await? {
            Ok(entered) => Ok(Entry::Entered(value(&entered)?)),
            Err(seen) => Ok(Entry::Stale { seen }),
        }
    }

    async fn write(&self, key: &LockName, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<Written> {
        check_value(value)?;
        let mut request = request(key, pass);
        request.value64 = Some(STANDARD.encode(value));
        // Rounded up: a value must not end early.
        request.ttl_ms = ttl.map(|ttl| crate::wire::millis(ttl + Duration::from_micros(999)));
        match self.show::<serde::de::IgnoredAny>("/v1/registers/write", &request).await? {
            Ok(_) => Ok(Written::Written),
            Err(seen) => Ok(Written::Stale { seen }),
        }
    }

    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        value(&self.0.get(&format!("/v1/registers?{}", in_query("key", key.as_bytes()))).await?)
    }
}
