//! What travels to the server and back.

use super::error::unexpected_reply;
use crate::error::Result;
use crate::store::Note;
use crate::stores::shared::sql;
use crate::token::HolderId;
use mysql_async::{Row, Value};

/// The server's clock, in microseconds.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', SYSDATE(6))";

/// As much of a note as its column takes.
pub(super) fn clipped(text: &str) -> &[u8] {
    &text.as_bytes()[..text.len().min(1024)]
}

/// Adds a hex literal, safe from SQL injection.
pub(super) fn hex(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    text.reserve(bytes.len() * 2 + 3);
    text.push_str("X'");
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text.push('\'');
}

/// A hex literal.
pub(super) fn literal(bytes: &[u8]) -> String {
    let mut text = String::new();
    hex(&mut text, bytes);
    text
}

/// Hex literals with commas between them.
pub(super) fn literals<'a>(all: impl Iterator<Item = &'a [u8]>) -> String {
    all.map(literal).collect::<Vec<_>>().join(",")
}

/// A column with a number, or none.
pub(super) fn number(row: &Row, i: usize) -> Result<Option<i64>> {
    match row.as_ref(i) {
        Some(Value::NULL) => Ok(None),
        Some(Value::Int(n)) => Ok(Some(*n)),
        Some(Value::UInt(n)) => i64::try_from(*n).map(Some).map_err(|_| unexpected_reply("a number that is too large")),
        Some(Value::Bytes(text)) => {
            let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
            number.map(Some).ok_or_else(|| unexpected_reply("something that is no number"))
        }
        _ => Err(unexpected_reply("a column of another type")),
    }
}

/// A column with bytes, or none.
pub(super) fn bytes(row: &Row, i: usize) -> Result<Option<Vec<u8>>> {
    match row.as_ref(i) {
        Some(Value::NULL) => Ok(None),
        Some(Value::Bytes(bytes)) => Ok(Some(bytes.clone())),
        _ => Err(unexpected_reply("a column of another type")),
    }
}

/// Three columns: host, pid, label.
pub(super) fn note(row: &Row, i: usize) -> Result<Option<Note>> {
    let (host, label) = (bytes(row, i)?, bytes(row, i + 2)?);
    Ok(sql::note(host.as_deref(), number(row, i + 1)?, label.as_deref()))
}

pub(super) fn holder(row: &Row, i: usize) -> Result<HolderId> {
    let bytes = bytes(row, i)?.and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
    let id = bytes.map(|bytes| HolderId::from_u128(u128::from_be_bytes(bytes)));
    id.ok_or_else(|| unexpected_reply("a holder that is none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_name_reaches_the_text() {
        assert_eq!(literal(b"'; DROP \xff"), "X'273b2044524f5020ff'");
    }
}
