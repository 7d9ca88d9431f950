//! Claims as the statements and functions of the session want them.

use super::session::Fault;
use crate::error::Result;
use crate::name::LockName;
use crate::stores::postgres::keys::Key;
use crate::stores::postgres::values::{self, Id, unexpected_reply};
use crate::stores::shared::sql::Answer;
use crate::token::HolderId;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// A lock to take or to give back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) name: &'a LockName,
    pub(super) key: Key,
    pub(super) shared: bool,
    /// Whether another Shared holder of the session has it.
    pub(super) have: bool,
    pub(super) holder: HolderId,
}

/// Entries as the functions want them.
#[derive(Default)]
pub(super) struct Lists<'a> {
    pub(super) names: Vec<&'a [u8]>,
    pub(super) spaces: Vec<i16>,
    pub(super) keys: Vec<i64>,
    pub(super) shared: Vec<bool>,
    pub(super) have: Vec<bool>,
    pub(super) holders: Vec<Id>,
}

impl<'a> Lists<'a> {
    pub(super) fn new(entries: &[Entry<'a>]) -> Self {
        let mut lists = Self::default();
        for entry in entries {
            lists.names.push(entry.name.as_bytes());
            lists.spaces.push(entry.key.space());
            lists.keys.push(entry.key.number());
            lists.shared.push(entry.shared);
            lists.have.push(entry.have);
            lists.holders.push(Id(entry.holder));
        }
        lists
    }

    pub(super) fn params(&self) -> [&(dyn ToSql + Sync); 6] {
        [&self.names, &self.spaces, &self.keys, &self.shared, &self.have, &self.holders]
    }
}

/// The entries that were answered so.
pub(super) fn with_code<'a>(code: i64, entries: &[Entry<'a>], answers: &[Answer]) -> Vec<Entry<'a>> {
    entries.iter().zip(answers).filter(|(_, answer)| answer.code == code).map(|(entry, _)| *entry).collect()
}

/// One answer for each entry, in order.
pub(super) fn answers(count: usize, rows: &[Row]) -> Result<Vec<Answer>, Fault> {
    let read = rows.iter().map(values::answer).collect::<Result<Vec<_>>>().map_err(Fault::Refused)?;
    if read.len() == count { Ok(read) } else { Err(Fault::Refused(unexpected_reply("another number of rows"))) }
}
