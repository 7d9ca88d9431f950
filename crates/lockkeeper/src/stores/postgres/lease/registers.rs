//! Values behind a fence.

use super::PostgresStore;
use crate::error::Result;
use crate::name::LockName;
use crate::register::{Entry, Pass, Register, Written, check_value};
use crate::stores::postgres::values::{Id, field, unexpected_reply};
use crate::stores::shared::sql::{Passed, micros};
use async_trait::async_trait;
use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};

impl PostgresStore {
    /// Raises the fence, then reads, or writes a value that ends after a TTL.
    async fn pass(&self, key: &LockName, pass: &Pass, value: Option<&[u8]>, ttl: Option<i64>) -> Result<Passed> {
        let (key, lock) = (key.as_bytes(), pass.lock.as_bytes());
        let token = i64::try_from(pass.token.get()).unwrap_or(i64::MAX);
        let params: [(&(dyn ToSql + Sync), Type); 7] = [
            (&key, Type::BYTEA),
            (&lock, Type::BYTEA),
            (&token, Type::INT8),
            (&Id(pass.holder), Type::UUID),
            (&value.is_some(), Type::BOOL),
            (&value, Type::BYTEA),
            (&ttl, Type::INT8),
        ];
        let rows = self.ask("SELECT * FROM {s}.register($1, $2, $3, $4, $5, $6, $7)", &params).await?;
        let row = rows.first().ok_or_else(|| unexpected_reply("nothing"))?;
        Ok(Passed { code: field::<i32>(row, 0)?.into(), token: field(row, 1)?, value: field(row, 2)? })
    }
}

#[async_trait]
impl Register for PostgresStore {
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        self.pass(key, pass, None, None).await?.entry(key, pass).map_err(|e| e.in_store("postgres"))
    }

    async fn write(&self, key: &LockName, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<Written> {
        check_value(value)?;
        let passed = self.pass(key, pass, Some(value), ttl.map(micros)).await?;
        passed.written(key, pass).map_err(|e| e.in_store("postgres"))
    }

    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        let text = "SELECT value FROM {s}.register WHERE key = $1 AND (ends IS NULL OR ends > {now})";
        let rows = self.ask(text, &[(&key.as_bytes(), Type::BYTEA)]).await?;
        rows.first().map_or(Ok(None), |row| field(row, 0))
    }
}
