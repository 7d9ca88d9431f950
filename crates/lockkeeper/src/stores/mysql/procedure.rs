//! The text of calls to our procedures, and what they answer.

use super::calls::{Reply, Step};
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::store::{Claim, Held, Mode, Note};
use crate::stores::shared::shedlock;
use crate::stores::shared::timing::TOMBSTONE_EXTRA;
use crate::token::{HolderId, Token};
use mysql_async::{Row, Value};
use std::fmt::Write as _;
use std::time::Duration;

/// What is asked of the server for one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Acquire,
    Renew,
    Release,
}

/// The call for one claim, without the plain statement that may do.
pub(super) fn claim(prefix: &str, shed: bool, op: Op, claim: &Claim, keeper: HolderId) -> Step {
    let (letter, arg) = match op {
        Op::Acquire => ('a', claim.stamp.as_micros()),
        Op::Renew => ('n', claim.stamp.as_micros()),
        Op::Release if claim.unsettled => ('r', micros(claim.ttl + TOMBSTONE_EXTRA)),
        Op::Release => ('r', 0),
    };
    let mut text = format!("CALL `{prefix}step`('{letter}',");
    hex(&mut text, claim.name.as_bytes());
    let (mode, ttl, life) = (mode_number(claim.mode), micros(claim.ttl), micros(claim.waiter_lease()));
    let arg = arg.min(i64::MAX as u64);
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        ",X'{}',{mode},{ttl},{life},{},{arg},X'{}',",
        claim.holder.to_hex(),
        u8::from(claim.queue),
        keeper.to_hex()
    );
    if op == Op::Acquire {
        hex(&mut text, clipped(&claim.note.host));
        let _ = write!(text, ",{},", claim.note.pid);
        hex(&mut text, clipped(&claim.note.label));
    } else {
        text.push_str("NULL,NULL,NULL");
    }
    finish(&mut text, shed, &claim.name, &claim.note.host);
    Step { name: claim.name.clone(), fast_path: None, text }
}

/// The call that breaks the grant with `token`.
pub(super) fn break_lock(prefix: &str, shed: bool, name: &LockName, token: Token) -> Step {
    let mut text = format!("CALL `{prefix}step`('b',");
    hex(&mut text, name.as_bytes());
    let _ = write!(text, ",NULL,0,0,0,0,{token},NULL,NULL,NULL,NULL");
    finish(&mut text, shed, name, "");
    Step { name: name.clone(), fast_path: None, text }
}

/// A call that only forgets what has ended.
pub(super) fn sweep(prefix: &str, shed: bool, name: &LockName) -> Step {
    let mut text = format!("CALL `{prefix}step`('r',");
    hex(&mut text, name.as_bytes());
    text.push_str(",NULL,0,0,0,0,0,NULL,NULL,NULL,NULL");
    finish(&mut text, shed, name, "");
    Step { name: name.clone(), fast_path: None, text }
}

/// A renewal of a name that cannot be: nothing is there, and nothing comes of it.
pub(super) fn probe(prefix: &str, shed: bool) -> String {
    let tail = if shed { ",'',''" } else { "" };
    format!("CALL `{prefix}step`('n','',NULL,0,0,0,0,0,NULL,NULL,NULL,NULL{tail})")
}

fn finish(text: &mut String, shed: bool, name: &LockName, host: &str) {
    if shed {
        text.push(',');
        hex(text, shedlock::key(name).as_bytes());
        text.push(',');
        hex(text, shedlock::locked_by(host).as_bytes());
    }
    text.push(')');
}

/// As much of a note as its column takes.
pub(super) fn clipped(text: &str) -> &[u8] {
    &text.as_bytes()[..text.len().min(1024)]
}

/// A hex literal, safe from SQL injection.
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

/// One row of what the procedures answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) code: i64,
    pub(super) token: Option<i64>,
    pub(super) lease: Option<i64>,
    pub(super) place: Option<i64>,
    since: Option<i64>,
    note: Option<Note>,
}

impl Answer {
    /// What was told of a claim with this TTL.
    ///
    /// `None`: another transaction keeps the row locked.
    pub(super) fn of(reply: &Reply, ttl: Duration) -> Result<Option<Self>> {
        let row = match reply {
            Reply::Row(row) => row,
            Reply::Locked => return Ok(None),
            Reply::FastPath(token) => {
                let (token, lease) = (i64::try_from(*token).ok(), i64::try_from(micros(ttl)).ok());
                return Ok(Some(Self { code: 1, token, lease, place: None, since: None, note: None }));
            }
        };
        Ok(Some(Self {
            code: number(row, 0)?.ok_or_else(|| unexpected_reply("no code"))?,
            token: number(row, 1)?,
            lease: number(row, 2)?,
            place: number(row, 3)?,
            since: number(row, 4)?,
            note: note(row, 5)?,
        }))
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

/// Three columns: host, pid, label; `None` when there is nobody.
pub(super) fn note(row: &Row, i: usize) -> Result<Option<Note>> {
    let (host, pid, label) = (bytes(row, i)?, number(row, i + 1)?, bytes(row, i + 2)?);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let pid = pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
    Ok(host.map(|host| Note::new(text(host), pid, text(label.unwrap_or_default()))))
}

pub(super) fn holder(row: &Row, i: usize) -> Result<HolderId> {
    let bytes = bytes(row, i)?.and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
    bytes
        .map(|bytes| HolderId::from_u128(u128::from_be_bytes(bytes)))
        .ok_or_else(|| unexpected_reply("a holder that is none"))
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

/// 0 for Exclusive, -1 for Shared, the limit for Permits.
fn mode_number(mode: Mode) -> i64 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => -1,
        Mode::Permit { limit } => limit.into(),
    }
}

/// The other way round.
pub(super) fn mode_of(number: i64) -> Mode {
    match u32::try_from(number) {
        Ok(0) => Mode::Exclusive,
        Ok(limit) => Mode::Permit { limit },
        Err(_) => Mode::Shared,
    }
}

/// Whole microseconds, rounded up: the server must not end a lease before we do.
pub(super) fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX).min(i64::MAX as u64 / 4)
}

/// The server's procedures are ours: an answer they do not give is a defect.
pub(super) fn unexpected_reply(what: &str) -> Error {
    Error::new(ErrorKind::Unexpected, format!("the server's procedures answered {what}")).in_store("mysql")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_name_reaches_the_text() {
        let mut text = String::new();
        hex(&mut text, b"'; DROP \xff");
        assert_eq!(text, "X'273b2044524f5020ff'");
    }

    #[test]
    fn modes_come_back() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { limit: 1 }, Mode::Permit { limit: u32::MAX }] {
            assert_eq!(mode_of(mode_number(mode)), mode);
        }
    }

    #[test]
    fn leases_are_rounded_up() {
        assert_eq!(micros(Duration::from_nanos(1001)), 2);
    }
}
