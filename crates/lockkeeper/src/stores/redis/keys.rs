//! Names of keys, and the text of values: what is readable with `redis-cli`.

use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
pub(in crate::stores) use crate::redis_slots::{SLOTS, companion};
use crate::redis_slots::{crc16, tag};
use crate::store::{HolderRecord, Mode, Note};
use crate::token::Token;
use crate::{HolderId, clock};
use std::time::Duration;

/// Names that begin so are Lockkeeper's own.
const OURS: &[u8] = b"lk:";

/// The keys of one lock that every step names; the others follow from the queue's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stores) struct Keys {
    pub(in crate::stores) lock: Vec<u8>,
    pub(in crate::stores) fence: Vec<u8>,
    pub(in crate::stores) queue: Vec<u8>,
}

impl Keys {
    pub(in crate::stores) fn of(name: &LockName) -> Result<Self> {
        let lock = name.as_bytes();
        if lock.starts_with(OURS) {
            return Err(Error::new(
                ErrorKind::InvalidName,
                "names that begin with 'lk:' are kept for Lockkeeper's own keys in Redis",
            )
            .for_lock(name));
        }
        Ok(Self::at(lock.to_vec()))
    }

    /// Those of a lock at `lock`.
    pub(super) fn at(lock: Vec<u8>) -> Self {
        Self { fence: companion(b'f', &lock), queue: companion(b'q', &lock), lock }
    }

    /// What a script is told; `all` adds those it could work out by itself. A Cluster that moves a slot key by key then
    /// refuses the call instead of letting the script see half of a lock.
    pub(super) fn declared(self, all: bool, holder: Option<HolderId>) -> Vec<Vec<u8>> {
        let tail = self.queue[4..].to_vec();
        let mut keys = vec![self.lock, self.fence, self.queue];
        if all {
            keys.extend(b"wrh".iter().map(|letter| [b"lk:", &[*letter][..], &tail].concat()));
            keys.extend(holder.map(|id| [b"lk:x", tail.as_slice(), b":", id.to_hex().as_bytes()].concat()));
        }
        keys
    }
}

/// The lock that a key of that letter belongs to: the way back from [`companion`].
pub(super) fn companion_of(letter: u8, key: &[u8]) -> Option<&[u8]> {
    let rest = key.strip_prefix(&[b'l', b'k', b':', letter])?;
    let lock = match rest.split_first()? {
        (b'/', lock) => lock,
        (b':', rest) => rest.strip_prefix(b"{")?.strip_suffix(b"}")?,
        (b'!', rest) => &rest[rest.iter().position(|byte| *byte == b'}')? + 1..],
        _ => return None,
    };
    (companion(letter, lock) == key).then_some(lock)
}

/// The Cluster slot of a key.
pub(super) fn slot(key: &[u8]) -> u16 {
    crc16(tag(key).unwrap_or(key)) % SLOTS
}

/// `x`, `s` or `p` with its limit.
pub(super) fn mode_text(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "x".into(),
        Mode::Shared => "s".into(),
        Mode::Permit { limit } => format!("p{limit}"),
    }
}

pub(super) fn parse_mode(text: &str) -> Option<Mode> {
    match text {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        _ => text.strip_prefix('p')?.parse().ok().map(|limit| Mode::Permit { limit }),
    }
}

/// `host:pid:label`, all of it ASCII without spaces.
pub(in crate::stores) fn note_text(note: &Note) -> String {
    let mut text = String::new();
    encode(&note.host, &mut text);
    text.push(':');
    text.push_str(&note.pid.to_string());
    text.push(':');
    encode(&note.label, &mut text);
    text
}

pub(super) fn parse_note(text: &str) -> Option<Note> {
    let mut fields = text.splitn(3, ':');
    let (host, pid, label) = (fields.next()?, fields.next()?, fields.next()?);
    Some(Note::new(decode(host)?, pid.parse().ok()?, decode(label)?))
}

fn encode(text: &str, into: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._/@+".contains(&byte) {
            into.push(byte.into());
        } else {
            into.push_str(&format!("%{byte:02x}"));
        }
    }
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

/// A holder from `token:ttl:since:flag:note`; only the mode when the text is not ours.
pub(in crate::stores) fn parse_holder(text: &str, mode: Mode, remaining: Option<Duration>) -> HolderRecord {
    let mut record = HolderRecord { remaining, ..HolderRecord::new(mode) };
    let mut fields = text.splitn(5, ':');
    let mut number = || fields.next().and_then(|field| field.parse().ok());
    let (token, _ttl, since): (_, Option<u64>, _) = (number(), number(), number());
    record.token = token.and_then(|token| Token::new(token).ok());
    record.since = since.map(clock::wall_time);
    record.note = fields.nth(1).and_then(parse_note);
    record
}

/// What follows the holder's id in the value of an Exclusive lock; `None` for a foreign value.
pub(in crate::stores) fn exclusive(value: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(value).ok()?.strip_prefix("lk1:")?;
    HolderId::from_hex(text.get(..32)?)?;
    text.get(32..)?.strip_prefix(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn companions_share_the_slot_and_never_collide() {
        let names: [&[u8]; 10] = [b"a", b"{a}", b"a}b", b"{}x", b"a{}b", b"{a}{b}", b"a{b", b"}", b"x{y}z", b"{a}}"];
        let mut seen = std::collections::HashSet::new();
        for name in names {
            for letter in *b"fqwrhx" {
                let key = companion(letter, name);
                assert_eq!(slot(&key), slot(name), "{}", name.escape_ascii());
                assert_eq!(companion_of(letter, &key), Some(name), "{}", name.escape_ascii());
                assert!(seen.insert(key), "{}", name.escape_ascii());
            }
        }
        // Figures of the Cluster specification.
        assert_eq!((crc16(b"123456789"), slot(b"{user1000}.following")), (0x31C3, slot(b"user1000")));
    }

    #[test]
    fn all_keys_of_a_lock_are_told_in_a_cluster() {
        let keys = Keys::of(&LockName::new("a").unwrap()).unwrap();
        let told = keys.clone().declared(true, Some(HolderId::from_u128(1)));
        let expected: Vec<Vec<u8>> = b"fqwrh".iter().map(|letter| companion(*letter, b"a")).collect();
        assert_eq!(told[1..6], expected[..]);
        assert_eq!(told[6], format!("lk:x:{{a}}:{:032x}", 1).into_bytes());
        assert_eq!(keys.declared(false, None).len(), 3);
    }

    #[test]
    fn our_own_keys_are_refused_as_names() {
        let error = Keys::of(&LockName::new("lk:f:{a}").unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName);
    }

    #[test]
    fn notes_survive_the_trip_as_ascii() {
        let note = Note::new("höst:1", 7, "a%b:c\n\u{1f512} ");
        let text = note_text(&note);
        assert!(text.is_ascii() && !text.contains(' '), "{text}");
        assert_eq!(parse_note(&text), Some(note));
        assert_eq!(parse_note("%zz:1:x"), None);
    }

    #[test]
    fn foreign_values_are_told_from_ours() {
        let ours = format!("lk1:{:032x}:17:300:5:-:h:1:l", 3);
        let info = exclusive(ours.as_bytes()).unwrap();
        let record = parse_holder(info, Mode::Exclusive, None);
        assert_eq!((record.token.unwrap().get(), record.note), (17, Some(Note::new("h", 1, "l"))));
        for foreign in ["lk1:x", "0123456789abcdef", "lk1:\u{e9}"] {
            assert_eq!(exclusive(foreign.as_bytes()), None);
        }
    }
}
