//! Names of keys, and the text of values, readable with `redis-cli`.

use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
pub(in crate::stores) use crate::redis_slots::{SLOTS, companion};
use crate::redis_slots::{crc16, tag};
use crate::store::{HolderRecord, Mode, Note};
use crate::token::{HolderId, Token};
use crate::{clock, text};
use std::time::Duration;

/// Names of Lockkeeper's own keys begin with this.
const OURS: &[u8] = b"lk:";

/// The keys of one lock that every step names; scripts derive the others from the queue's key.
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

    /// The keys of a lock at the key `lock`.
    pub(super) fn at(lock: Vec<u8>) -> Self {
        Self { fence: companion(b'f', &lock), queue: companion(b'q', &lock), lock }
    }

    /// The keys that a call declares; `all` adds those that the script could derive. A Cluster that moves a slot key by
    /// key then refuses the call: the script must not see half of a lock.
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

/// The lock that a companion key of this letter belongs to: the inverse of [`companion`].
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

/// The glob pattern of SCAN for keys that begin with `prefix`.
pub(in crate::stores) fn scan_pattern(prefix: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(prefix.len() + 1);
    for byte in prefix {
        if b"*?[]\\^".contains(byte) {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern.push(b'*');
    pattern
}

/// Whole milliseconds, rounded up: the server must not end a lease before the keeper does.
pub(in crate::stores) fn millis(duration: Duration) -> String {
    duration.as_micros().div_ceil(1000).to_string()
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
    push_text(&mut text, &note.host);
    text.push(':');
    text.push_str(&note.pid.to_string());
    text.push(':');
    push_text(&mut text, &note.label);
    text
}

pub(super) fn parse_note(text: &str) -> Option<Note> {
    let mut fields = text.splitn(3, ':');
    let (host, pid, label) = (fields.next()?, fields.next()?, fields.next()?);
    Some(Note::new(decode(host)?, pid.parse().ok()?, decode(label)?))
}

fn push_text(into: &mut String, text: &str) {
    for byte in text.bytes() {
        text::push(into, byte, b'%', byte.is_ascii_alphanumeric() || b"-._/@+".contains(&byte));
    }
}

fn decode(text: &str) -> Option<String> {
    String::from_utf8(text::decode(text.as_bytes(), b'%')?).ok()
}

/// A holder from `token:ttl:since:flag:note`; only the mode when another program wrote the text.
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

/// The text after the holder's id in the value of an Exclusive lock; `None` for another program's value.
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
    fn all_keys_of_a_lock_are_declared_in_a_cluster() {
        let keys = Keys::of(&LockName::new("a").unwrap()).unwrap();
        let declared = keys.clone().declared(true, Some(HolderId::from_u128(1)));
        let expected: Vec<Vec<u8>> = b"fqwrh".iter().map(|letter| companion(*letter, b"a")).collect();
        assert_eq!(declared[1..6], expected[..]);
        assert_eq!(declared[6], format!("lk:x:{{a}}:{:032x}", 1).into_bytes());
        assert_eq!(keys.declared(false, None).len(), 3);
    }

    #[test]
    fn our_own_keys_are_refused_as_names() {
        let error = Keys::of(&LockName::new("lk:f:{a}").unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName);
    }

    #[test]
    fn notes_are_stored_as_ascii_and_read_back() {
        let note = Note::new("höst:1", 7, "a%b:c\n\u{1f512} ");
        let text = note_text(&note);
        assert!(text.is_ascii() && !text.contains(' '), "{text}");
        assert_eq!(parse_note(&text), Some(note));
        assert_eq!(parse_note("%zz:1:x"), None);
    }

    #[test]
    fn foreign_values_are_distinguished_from_ours() {
        let ours = format!("lk1:{:032x}:17:300:5:-:h:1:l", 3);
        let info = exclusive(ours.as_bytes()).unwrap();
        let record = parse_holder(info, Mode::Exclusive, None);
        assert_eq!((record.token.unwrap().get(), record.note), (17, Some(Note::new("h", 1, "l"))));
        for foreign in ["lk1:x", "0123456789abcdef", "lk1:\u{e9}"] {
            assert_eq!(exclusive(foreign.as_bytes()), None);
        }
    }
}
