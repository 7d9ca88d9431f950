//! What is sent to a script, and what it answers.

use super::script::Script;
use crate::error::Result;
use crate::stores::redis::error::unexpected_reply;
use crate::token::Token;
use redis::{Cmd, RedisResult, Value};
use std::borrow::Cow;
use std::str::FromStr;

/// One run of a script.
#[derive(Debug)]
pub(in crate::stores) struct Call {
    /// The keys and the arguments one after the other, and where each ends.
    parts: Vec<u8>,
    ends: Vec<usize>,
    keys: usize,
}

impl Call {
    pub(in crate::stores) fn new(keys: impl IntoIterator<Item: AsRef<[u8]>>) -> Self {
        let call = Self { parts: Vec::with_capacity(256), ends: Vec::with_capacity(12), keys: 0 };
        let mut call = keys.into_iter().fold(call, Self::arg);
        call.keys = call.ends.len();
        call
    }

    pub(in crate::stores::redis) fn empty() -> Self {
        Self { parts: Vec::with_capacity(192), ends: Vec::with_capacity(4), keys: 0 }
    }

    /// Adds a key of two parts, before any argument.
    pub(in crate::stores::redis) fn key(self, prefix: &[u8], rest: &[u8]) -> Self {
        let mut call = self.with(|parts| {
            parts.extend_from_slice(prefix);
            parts.extend_from_slice(rest);
        });
        call.keys += 1;
        call
    }

    /// Adds the argument that `write` appends.
    pub(in crate::stores::redis) fn with(mut self, write: impl FnOnce(&mut Vec<u8>)) -> Self {
        write(&mut self.parts);
        self.ends.push(self.parts.len());
        self
    }

    pub(in crate::stores) fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.parts.extend_from_slice(arg.as_ref());
        self.ends.push(self.parts.len());
        self
    }

    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let mut begin = 0;
        self.ends.iter().map(move |end| &self.parts[std::mem::replace(&mut begin, *end)..*end])
    }

    /// Whether the script finds all keys of the lock from one.
    pub(super) fn is_simple(&self) -> bool {
        self.keys == 1
    }

    /// The key that decides the server of a Cluster.
    pub(super) fn first_key(&self) -> &[u8] {
        self.parts().next().filter(|_| self.keys > 0).unwrap_or_default()
    }

    pub(in crate::stores) fn command(&self, script: &Script) -> Cmd {
        let mut cmd = Cmd::with_capacity(self.ends.len() + 3, self.parts.len() + 64);
        cmd.arg("EVALSHA").arg(script.hash()).arg(self.keys);
        for part in self.parts() {
            cmd.arg(part);
        }
        cmd
    }
}

/// The most calls in one run of a script: the server answers no other client meanwhile.
pub(super) const TOGETHER: usize = 32;

/// One run of a script for several calls that name one key each.
pub(super) fn together<'a>(script: &Script, calls: impl ExactSizeIterator<Item = &'a Call> + Clone) -> Cmd {
    let (size, parts) = calls.clone().fold((64, 3), |(size, parts), c| (size + c.parts.len(), parts + c.ends.len()));
    let mut cmd = Cmd::with_capacity(parts, size);
    cmd.arg("EVALSHA").arg(script.hash()).arg(calls.len());
    for call in calls.clone() {
        cmd.arg(call.first_key());
    }
    for part in calls.flat_map(|call| call.parts().skip(1)) {
        cmd.arg(part);
    }
    cmd
}

/// The answers to the calls of one run.
pub(in crate::stores::redis) fn apart(answer: RedisResult<Value>, calls: usize) -> Vec<RedisResult<Value>> {
    match answer {
        answer if calls == 1 => vec![answer],
        Ok(Value::Array(mut answers)) => {
            answers.resize(calls, Value::Nil);
            answers.into_iter().map(Value::extract_error).collect()
        }
        Ok(_) => vec![Ok(Value::Nil); calls],
        Err(error) => (0..calls).map(|_| Err(error.clone())).collect(),
    }
}

/// What a script answered: a list, in most cases with a code first.
#[derive(Debug)]
pub(in crate::stores) struct Reply(pub(in crate::stores) Vec<Value>);

impl Reply {
    pub(in crate::stores) fn read(value: Value) -> Result<Self> {
        match value {
            Value::Array(fields) => Ok(Self(fields)),
            _ => Err(unexpected_reply("no list")),
        }
    }

    pub(in crate::stores) fn code(&self) -> Result<i64> {
        match self.0.first() {
            Some(Value::Int(code)) => Ok(*code),
            _ => Err(unexpected_reply("no code")),
        }
    }

    pub(in crate::stores) fn text(&self, place: usize) -> Result<Cow<'_, str>> {
        text(self.0.get(place).unwrap_or(&Value::Nil))
    }

    /// A number, be it an integer or text; `what` says what it should have been.
    pub(in crate::stores) fn number<T: FromStr>(&self, place: usize, what: &str) -> Result<T> {
        self.text(place)?.parse().map_err(|_| unexpected_reply(&format!("{what} that is no number")))
    }

    pub(in crate::stores) fn token(&self, place: usize) -> Result<Token> {
        Token::new(self.number(place, "a token")?)
    }

    pub(in crate::stores) fn bytes(&self, place: usize) -> Option<Vec<u8>> {
        bytes(self.0.get(place))
    }
}

/// A string or a number as text.
pub(in crate::stores) fn text(value: &Value) -> Result<Cow<'_, str>> {
    match value {
        Value::BulkString(bytes) => {
            std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| unexpected_reply("text that is no UTF-8"))
        }
        Value::SimpleString(text) => Ok(Cow::Borrowed(text)),
        Value::Int(number) => Ok(Cow::Owned(number.to_string())),
        _ => Err(unexpected_reply("no text")),
    }
}

/// The bytes of a string, if it is one.
pub(in crate::stores) fn bytes(value: Option<&Value>) -> Option<Vec<u8>> {
    match value {
        Some(Value::BulkString(bytes)) => Some(bytes.clone()),
        Some(Value::SimpleString(text)) => Some(text.clone().into_bytes()),
        _ => None,
    }
}
