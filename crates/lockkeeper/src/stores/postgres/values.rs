//! What travels to the server and back.

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Held, HolderRecord, Mode, Note};
use crate::token::{HolderId, Token};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

/// A holder's or a keeper's id, as the `uuid` it is kept as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id(pub(super) HolderId);

type Fault = Box<dyn std::error::Error + Sync + Send>;

impl ToSql for Id {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> std::result::Result<IsNull, Fault> {
        out.extend_from_slice(&self.0.to_u128().to_be_bytes());
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Id {
    fn from_sql(_: &Type, raw: &'a [u8]) -> std::result::Result<Self, Fault> {
        Ok(Self(HolderId::from_u128(u128::from_be_bytes(raw.try_into()?))))
    }

    accepts!(UUID);
}

/// One row of what our functions answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) holder: HolderId,
    pub(super) code: i32,
    pub(super) token: Option<i64>,
    pub(super) lease: Option<i64>,
    pub(super) place: Option<i32>,
    since: Option<i64>,
    note: Option<Note>,
}

impl Answer {
    pub(super) fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            holder: field::<Id>(row, 0)?.0,
            code: field(row, 1)?,
            token: field(row, 2)?,
            lease: field(row, 3)?,
            place: field(row, 4)?,
            since: field(row, 5)?,
            note: note(row, 6)?,
        })
    }

    /// What a plain statement says, which has no more to tell.
    pub(super) fn new(holder: HolderId, code: i32, token: Option<i64>) -> Self {
        Self { holder, code, token, lease: None, place: None, since: None, note: None }
    }

    pub(super) fn token(&self) -> Result<Token> {
        token(self.token)
    }

    /// Who is in the way.
    pub(super) fn held(self) -> Held {
        Held {
            holder: self.note,
            token: token(self.token).ok(),
            since: self.since.map(moment),
            remaining: self.lease.map(duration),
            place: self.place.and_then(|place| u32::try_from(place).ok()),
        }
    }
}

/// A column of a row that is what it should be.
pub(super) fn field<'a, T: FromSql<'a>>(row: &'a Row, i: usize) -> Result<T> {
    row.try_get(i).map_err(|e| unexpected_reply("a column of another type").with_source(e))
}

/// Three columns: host, pid, label; `None` when there is nobody.
pub(super) fn note(row: &Row, i: usize) -> Result<Option<Note>> {
    let (host, pid): (Option<&[u8]>, Option<i64>) = (field(row, i)?, field(row, i + 1)?);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let label: Option<&[u8]> = field(row, i + 2)?;
    let note = |host| {
        Note::new(text(host), pid.and_then(|p| u32::try_from(p).ok()).unwrap_or(0), text(label.unwrap_or_default()))
    };
    Ok(host.map(note))
}

/// A holder for people, from columns as `list.rs` selects them.
pub(super) fn holder(
    mode: Mode,
    note: Option<Note>,
    drawn: Option<i64>,
    since: Option<i64>,
    left: i64,
) -> HolderRecord {
    HolderRecord { mode, note, token: token(drawn).ok(), since: since.map(moment), remaining: Some(duration(left)) }
}

pub(super) fn token(number: Option<i64>) -> Result<Token> {
    Token::new(number.and_then(|n| u64::try_from(n).ok()).ok_or_else(|| unexpected_reply("no token"))?)
}

pub(super) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(super) fn moment(micros: i64) -> std::time::SystemTime {
    clock::wall_time(u64::try_from(micros).unwrap_or(0))
}

/// The server's functions are ours: an answer they do not give is a defect.
pub(super) fn unexpected_reply(what: &str) -> Error {
    Error::new(ErrorKind::Unexpected, format!("the server's functions answered {what}")).in_store("postgres")
}
