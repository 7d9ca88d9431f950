//! Values behind a fence.

use super::MysqlStore;
use crate::error::Result;
use crate::name::LockName;
use crate::register::{Entry, Pass, Register, Written, check_value};
use crate::stores::mysql::error::unexpected_reply;
use crate::stores::mysql::values::{NOW, bytes, hex, literal, number};
use crate::stores::shared::sql::{Passed, micros};
use async_trait::async_trait;
use std::fmt::Write as _;
use std::time::Duration;

impl MysqlStore {
    /// Raises the fence, then reads, or writes a value that ends after a TTL.
    async fn pass(&self, key: &LockName, pass: &Pass, value: Option<(&[u8], Option<Duration>)>) -> Result<Passed> {
        let mut text = format!("START TRANSACTION;CALL `{}enter`(", self.prefix());
        hex(&mut text, key.as_bytes());
        text.push(',');
        hex(&mut text, pass.lock.as_bytes());
        // Writing to a String cannot fail.
        let _ = write!(text, ",{},X'{}',{},", pass.token, pass.holder.to_hex(), u8::from(value.is_some()));
        match value {
            Some((bytes, _)) => hex(&mut text, bytes),
            None => text.push_str("NULL"),
        }
        match value.and_then(|(_, ttl)| ttl) {
            Some(ttl) => drop(write!(text, ",{}", micros(ttl))),
            None => text.push_str(",NULL"),
        }
        text.push_str(");COMMIT");
        let rows = self.ask(text).await?;
        let row = rows.first().ok_or_else(|| unexpected_reply("nothing"))?;
        let code = number(row, 0)?.ok_or_else(|| unexpected_reply("no code"))?;
        Ok(Passed { code, token: number(row, 1)?, value: bytes(row, 2)? })
    }
}

#[async_trait]
impl Register for MysqlStore {
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        self.pass(key, pass, None).await?.entry(key, pass).map_err(|e| e.in_store("mysql"))
    }

    async fn write(&self, key: &LockName, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<Written> {
        check_value(value)?;
        self.pass(key, pass, Some((value, ttl))).await?.written(key, pass).map_err(|e| e.in_store("mysql"))
    }

    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        let text = format!(
            "SELECT value FROM `{}register` WHERE name = {} AND (ends IS NULL OR ends > {NOW})",
            self.prefix(),
            literal(key.as_bytes())
        );
        self.ask(text).await?.first().map_or(Ok(None), |row| bytes(row, 0))
    }
}
