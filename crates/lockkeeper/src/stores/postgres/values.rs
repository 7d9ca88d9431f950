//! What travels to the server and back.

use crate::error::{Error, Result};
use crate::store::Note;
use crate::stores::shared::sql::{self, Answer};
use crate::token::HolderId;
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

/// One row of what the functions answer.
pub(super) fn answer(row: &Row) -> Result<Answer> {
    Ok(Answer {
        holder: Some(field::<Id>(row, 0)?.0),
        code: field::<i32>(row, 1)?.into(),
        token: field(row, 2)?,
        lease: field(row, 3)?,
        place: field::<Option<i32>>(row, 4)?.map(i64::from),
        since: field(row, 5)?,
        note: note(row, 6)?,
    })
}

/// A column of a row that is what it should be.
pub(super) fn field<'a, T: FromSql<'a>>(row: &'a Row, i: usize) -> Result<T> {
    row.try_get(i).map_err(|e| unexpected_reply("a column of another type").with_source(e))
}

/// Three columns: host, pid, label.
pub(super) fn note(row: &Row, i: usize) -> Result<Option<Note>> {
    Ok(sql::note(field(row, i)?, field(row, i + 1)?, field(row, i + 2)?))
}

/// An answer that the functions do not give.
pub(super) fn unexpected_reply(what: &str) -> Error {
    sql::unexpected_reply(what).in_store("postgres")
}
