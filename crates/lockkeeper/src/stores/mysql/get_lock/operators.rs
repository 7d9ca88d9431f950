//! What operators see and do.

use super::GetLockStore;
use super::acquire::key_text;
use super::keys::SESSION;
use super::session::Session;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::store::{Break, Cursor, HolderRecord, Mode, Page, Record};
use crate::stores::mysql::error::unexpected_reply;
use crate::stores::mysql::values::{bytes, hex, holder, literal, note, number};
use crate::stores::shared::sql::{moment, token as drawn};
use crate::stores::shared::timing::ASK_LIMIT;
use crate::text::upper_bound;
use crate::token::Token;
use mysql_async::Row;
use std::time::Duration;

/// How long an operator's break waits for the server to end the session, in seconds.
const BREAK_WAIT: u32 = 5;

/// The connection of the session that a row is about, if it lives.
const LIVE: &str = "IS_USED_LOCK(CONVERT(CONCAT('lk-s-', LOWER(HEX(session))) USING utf8mb4))";

/// What the session's own lock begins with, as the text of `LIVE` has it.
const _: () = assert!(matches!(SESSION.as_bytes(), b"lk-s-"));

impl GetLockStore {
    /// A row of `session` as a record, if it is about now.
    fn record_of(name: LockName, row: &Row) -> Result<Record> {
        let mut record = Record::new(name);
        let mut holder = HolderRecord::new(Mode::Exclusive);
        (holder.note, holder.token) = (note(row, 3)?, drawn(number(row, 1)?).ok());
        holder.since = number(row, 2)?.map(moment);
        record.holders.push(holder);
        Ok(record)
    }

    async fn used_by(&self, key: &str) -> Result<Option<i64>> {
        let rows = self.rows.ask(format!("SELECT IS_USED_LOCK({})", key_text(key))).await?;
        rows.first().map_or(Ok(None), |row| number(row, 0))
    }

    /// One lock.
    pub(super) async fn record(&self, name: &LockName) -> Result<Option<Record>> {
        let key = self.key(name)?;
        let text = format!(
            "SELECT name, token, since, host, pid, label FROM `{}session` WHERE {LIVE} = IS_USED_LOCK({}) AND name = {}",
            self.rows.prefix(),
            key_text(&key),
            literal(name.as_bytes())
        );
        if let Some(row) = self.rows.ask(text).await?.first() {
            return Self::record_of(name.clone(), row).map(Some);
        }
        let Some(connection) = self.used_by(&key).await? else { return Ok(None) };
        let mut record = Record::new(name.clone());
        record.holders.push(HolderRecord::new(Mode::Exclusive));
        record.remark = Some(format!("held by connection {connection} of the server, which is none of ours"));
        Ok(Some(record))
    }

    /// One page; locks of other programs have no names, and are not listed.
    pub(super) async fn page(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        let mut text = format!(
            "SELECT name, token, since, host, pid, label FROM `{}session` WHERE {LIVE} = IS_USED_LOCK(lock_key) AND name >= ",
            self.rows.prefix()
        );
        hex(&mut text, prefix);
        if let Some(end) = upper_bound(prefix) {
            text.push_str(" AND name < ");
            hex(&mut text, &end);
        }
        if let Some(cursor) = cursor {
            text.push_str(" AND name > ");
            hex(&mut text, &cursor.0);
        }
        text.push_str(&format!(" ORDER BY name LIMIT {}", Page::SIZE + 1));
        let rows = self.rows.ask(text).await?;
        let mut page = Page::default();
        for row in rows.iter().take(Page::SIZE) {
            let name = LockName::new(bytes(row, 0)?.unwrap_or_default())?;
            page.records.push(Self::record_of(name, row)?);
        }
        let more = rows.len() > Page::SIZE;
        page.next = page.records.last().filter(|_| more).map(|last| Cursor(last.name.as_bytes().to_vec()));
        Ok(page)
    }

    /// Ends the whole session that holds the lock: the server knows no other way.
    pub(super) async fn break_one(&self, name: &LockName, token: Token) -> Result<Break> {
        let (key, p) = (self.key(name)?, self.rows.prefix());
        let row = literal(name.as_bytes());
        let ask = format!(
            "SELECT session, IS_USED_LOCK({}) FROM `{p}session` \
             WHERE name = {row} AND token = {token} AND broken IS NULL AND {LIVE} = IS_USED_LOCK({})",
            key_text(&key),
            key_text(&key)
        );
        let rows = self.rows.ask(ask).await?;
        let Some(found) = rows.first() else { return Ok(Break::NotHeld) };
        let connection = number(found, 1)?.ok_or_else(|| unexpected_reply("no connection"))?;
        let alive = Session::alive_key(holder(found, 0)?);
        let mark = format!(
            "UPDATE `{p}session` SET broken = holder, token = GREATEST(token + 1, \
             TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', SYSDATE(6))) WHERE name = {row} AND token = {token}; \
             SELECT ROW_COUNT(), token, IS_USED_LOCK({}) FROM `{p}session` WHERE name = {row}",
            key_text(&key)
        );
        let rows = self.rows.ask(mark).await?;
        let Some(marked) = rows.first() else { return Ok(Break::NotHeld) };
        // The session has other locks: it is ended only if it still has this one, by the token that the operator saw.
        if number(marked, 0)? != Some(1) || number(marked, 2)? != Some(connection) {
            return Ok(Break::NotHeld);
        }
        let above = drawn(number(marked, 1)?)?;
        let end = format!("KILL {connection}; DO GET_LOCK({alive}, {BREAK_WAIT}); DO RELEASE_LOCK({alive})");
        self.rows.connections.query(end, ASK_LIMIT + Duration::from_secs(BREAK_WAIT.into())).await?;
        // The session gives its locks back one by one.
        for _ in 0..50 {
            if self.used_by(&key).await? != Some(connection) {
                return Ok(Break::Broken(above));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(Error::unavailable("the server has not ended the session yet").for_lock(name).in_store("mysql"))
    }
}
