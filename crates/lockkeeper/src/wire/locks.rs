//! Locks as operators see them: the objects of `show --json` and `ls --json`.

use super::{hex, millis, name_of, named, unhex};
use crate::error::{Error, Result};
use crate::store::{Cursor, HolderRecord, Mode, Note, Page, Record, WaiterRecord};
use crate::token::Token;
use serde::{Deserialize, Serialize};
use std::time::{Duration, UNIX_EPOCH};

/// The mode's word, and its limit.
pub fn mode_word(mode: Mode) -> (&'static str, Option<u32>) {
    match mode {
        Mode::Exclusive => ("exclusive", None),
        Mode::Shared => ("shared", None),
        Mode::Permit { limit } => ("permit", Some(limit)),
    }
}

/// A mode from its word and its limit.
///
/// # Errors
/// `InvalidConfig` for another word, and for a limit where none belongs or none where one does.
pub fn mode_of(word: &str, limit: Option<u32>) -> Result<Mode> {
    match (word, limit) {
        ("exclusive", None) => Ok(Mode::Exclusive),
        ("shared", None) => Ok(Mode::Shared),
        ("permit", Some(limit)) if limit > 0 => Ok(Mode::Permit { limit }),
        ("permit", _) => Err(Error::invalid_config("the mode 'permit' needs a 'limit' of 1 or more")),
        ("exclusive" | "shared", Some(_)) => Err(Error::invalid_config("only the mode 'permit' has a 'limit'")),
        _ => Err(Error::invalid_config("'mode' must be exclusive, shared or permit")),
    }
}

/// A page of a listing.
#[derive(Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `Page`")]
pub struct WirePage {
    pub v: u32,
    pub locks: Vec<WireLock>,
    /// Where to go on, as `cursor` of the next request.
    pub next: Option<String>,
}

/// One lock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `Record`")]
pub struct WireLock {
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    pub holders: Vec<WireHolder>,
    pub waiting: u32,
    pub remark: Option<String>,
    pub waiters: Vec<WireWaiter>,
}

/// One holder; never its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `HolderRecord`")]
pub struct WireHolder {
    pub mode: String,
    pub limit: Option<u32>,
    pub host: Option<String>,
    pub pid: Option<u32>,
    pub label: Option<String>,
    pub token: Option<u64>,
    pub since_ms: Option<u64>,
    /// By the clock of the program that wrote this.
    pub held_ms: Option<u64>,
    pub remaining_ms: Option<u64>,
}

/// One waiter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `WaiterRecord`")]
pub struct WireWaiter {
    pub mode: String,
    pub limit: Option<u32>,
    pub host: Option<String>,
    pub pid: Option<u32>,
    pub label: Option<String>,
}

fn note_of(host: Option<String>, pid: Option<u32>, label: Option<String>) -> Option<Note> {
    Some(Note::new(host?, pid.unwrap_or(0), label.unwrap_or_default()))
}

impl From<&Record> for WireLock {
    fn from(record: &Record) -> Self {
        let (name, name_hex) = named(record.name.as_bytes());
        let holders = record.holders.iter().map(Into::into).collect();
        let waiters = record.waiters.iter().map(Into::into).collect();
        Self { name, name_hex, holders, waiting: record.waiting, remark: record.remark.clone(), waiters }
    }
}

impl TryFrom<WireLock> for Record {
    type Error = Error;

    fn try_from(wire: WireLock) -> Result<Self> {
        let mut record = Self::new(name_of(wire.name.as_deref(), wire.name_hex.as_deref())?);
        record.holders = wire.holders.into_iter().map(TryInto::try_into).collect::<Result<_>>()?;
        record.waiters = wire.waiters.into_iter().map(TryInto::try_into).collect::<Result<_>>()?;
        (record.waiting, record.remark) = (wire.waiting, wire.remark);
        Ok(record)
    }
}

impl From<&HolderRecord> for WireHolder {
    fn from(holder: &HolderRecord) -> Self {
        let (mode, limit) = mode_word(holder.mode);
        let note = holder.note.as_ref();
        Self {
            mode: mode.into(),
            limit,
            host: note.map(|note| note.host.clone()),
            pid: note.map(|note| note.pid),
            label: note.map(|note| note.label.clone()),
            token: holder.token.map(Token::get),
            since_ms: holder.since.map(|since| since.duration_since(UNIX_EPOCH).map_or(0, millis)),
            held_ms: holder.since.map(|since| since.elapsed().map_or(0, millis)),
            remaining_ms: holder.remaining.map(millis),
        }
    }
}

impl TryFrom<WireHolder> for HolderRecord {
    type Error = Error;

    fn try_from(wire: WireHolder) -> Result<Self> {
        let mut holder = Self::new(mode_of(&wire.mode, wire.limit)?);
        holder.note = note_of(wire.host, wire.pid, wire.label);
        holder.token = wire.token.map(Token::new).transpose()?;
        holder.since = wire.since_ms.map(|ms| UNIX_EPOCH + Duration::from_millis(ms));
        holder.remaining = wire.remaining_ms.map(Duration::from_millis);
        Ok(holder)
    }
}

impl From<&WaiterRecord> for WireWaiter {
    fn from(waiter: &WaiterRecord) -> Self {
        let (mode, limit) = mode_word(waiter.mode);
        let note = waiter.note.as_ref();
        Self {
            mode: mode.into(),
            limit,
            host: note.map(|note| note.host.clone()),
            pid: note.map(|note| note.pid),
            label: note.map(|note| note.label.clone()),
        }
    }
}

impl TryFrom<WireWaiter> for WaiterRecord {
    type Error = Error;

    fn try_from(wire: WireWaiter) -> Result<Self> {
        Ok(Self::new(mode_of(&wire.mode, wire.limit)?, note_of(wire.host, wire.pid, wire.label)))
    }
}

impl From<&Page> for WirePage {
    fn from(page: &Page) -> Self {
        let next = page.next.as_ref().map(|cursor| hex(&cursor.0));
        Self { v: super::VERSION, locks: page.records.iter().map(Into::into).collect(), next }
    }
}

impl TryFrom<WirePage> for Page {
    type Error = Error;

    fn try_from(wire: WirePage) -> Result<Self> {
        let records = wire.locks.into_iter().map(TryInto::try_into).collect::<Result<_>>()?;
        Ok(Self { records, next: wire.next.map(|next| cursor_of(&next)).transpose()? })
    }
}

/// A cursor from the text of an earlier page.
fn cursor_of(text: &str) -> Result<Cursor> {
    unhex(text).map(Cursor).ok_or_else(|| Error::invalid_config("'cursor' must be the 'next' of an earlier page"))
}

impl WirePage {
    /// A cursor from the text of an earlier page.
    ///
    /// # Errors
    /// `InvalidConfig` for anything else.
    pub fn cursor(text: &str) -> Result<Cursor> {
        cursor_of(text)
    }
}
