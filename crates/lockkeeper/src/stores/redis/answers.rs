//! What the scripts answer, read back.

use super::keys;
use super::script::bytes;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::register::Pass;
use crate::store::{Claim, Mode, Record, WaiterRecord};
use crate::token::Token;
use redis::Value;
use std::time::Duration;

/// The fence belongs to another lock: the rule itself says what is wrong.
pub(super) fn other_lock(key: &LockName, pass: &Pass, fields: &[Value]) -> Error {
    let lock = bytes(fields.get(1)).and_then(|lock| LockName::new(lock).ok());
    let seen = lock.map(|lock| Pass::new(lock, pass.token, pass.holder));
    pass.clears(key, seen.as_ref()).err().unwrap_or_else(|| odd("a fence that is none"))
}

/// Reads `{value, PTTL, holders, waiters}`.
pub(super) fn record(name: &LockName, fields: Vec<Value>) -> Result<Option<Record>> {
    let [value, left, Value::Array(holders), Value::Array(waiters)] = fields.as_slice() else {
        return Err(odd("a short reply"));
    };
    let left_of = |text: &str| text.parse::<u64>().ok().map(Duration::from_millis);
    let mut record = Record::new(name.clone());
    if let Some(value) = bytes(Some(value)) {
        let mode = std::str::from_utf8(&value).ok().and_then(|v| v.strip_prefix("lk1")).and_then(keys::parse_mode);
        match mode.filter(|mode| *mode != Mode::Exclusive) {
            Some(mode) => {
                for pair in holders.chunks_exact(2) {
                    record.holders.push(keys::parse_holder(&text(&pair[0])?, mode, left_of(&text(&pair[1])?)));
                }
                record.holders.sort_by_key(|holder| (holder.since, holder.token));
            }
            None => {
                let left = left_of(&text(left)?);
                record.holders.push(keys::parse_holder(keys::exclusive(&value).unwrap_or(""), Mode::Exclusive, left));
            }
        }
    }
    for waiter in waiters {
        // `mode:keeper:note`.
        let entry = text(waiter)?;
        let mut fields = entry.splitn(3, ':');
        let mode = fields.next().and_then(keys::parse_mode).unwrap_or(Mode::Exclusive);
        record.waiters.push(WaiterRecord::new(mode, fields.nth(1).and_then(keys::parse_note)));
    }
    record.waiting = u32::try_from(record.waiters.len()).unwrap_or(u32::MAX);
    Ok((!record.holders.is_empty() || record.waiting > 0).then_some(record))
}

/// Answers that are neither yes nor no.
pub(super) fn refused(claim: &Claim, fields: &[Value]) -> Error {
    let detail = fields.get(1).and_then(|value| text(value).ok()).unwrap_or_default();
    match (code(fields), claim.mode) {
        (Ok(3), Mode::Permit { limit }) => Error::invalid_config(format!(
            "a permit of {limit} was asked for while the name is in use with a limit of {detail}; all must agree"
        )),
        (Ok(4), _) => {
            let hint = match detail.as_str() {
                "hash" => " (a Redisson lock is one: layout=redisson)",
                "string" => " (a lock of the plain layout is one)",
                _ => "",
            };
            let text = format!("the key of this lock holds a {detail} of another program{hint}");
            Error::new(ErrorKind::Foreign, text + "; use another name or prefix")
        }
        (Ok(5), _) => out_of_tokens(),
        _ => odd("an unknown code"),
    }
    .in_store("redis")
}

pub(super) fn out_of_tokens() -> Error {
    let text = "the token counter of this lock has reached its end (2^53): somebody wrote to its fence key";
    Error::new(ErrorKind::Unexpected, text).in_store("redis")
}

pub(super) fn odd(what: &str) -> Error {
    Error::new(ErrorKind::Unexpected, format!("a script answered {what}")).in_store("redis")
}

pub(super) fn reply(answer: Result<Value>) -> Result<Vec<Value>> {
    match answer? {
        Value::Array(fields) => Ok(fields),
        _ => Err(odd("something that is no list")),
    }
}

pub(super) fn code(fields: &[Value]) -> Result<i64> {
    match fields.first() {
        Some(Value::Int(code)) => Ok(*code),
        _ => Err(odd("no code")),
    }
}

pub(super) fn text(value: &Value) -> Result<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).map_err(|_| odd("text that is no UTF-8")),
        Value::SimpleString(text) => Ok(text.clone()),
        Value::Int(number) => Ok(number.to_string()),
        _ => Err(odd("no text")),
    }
}

pub(super) fn token(value: Option<&Value>) -> Result<Token> {
    let number = value.and_then(|value| text(value).ok()).and_then(|text| text.parse().ok());
    Token::new(number.ok_or_else(|| odd("no token"))?)
}
