//! Names of keys, and the text of values, readable with `redis-cli`.

use super::driver::call::Call;
use crate::error::{Error, ErrorKind, Result};
use crate::mutant::planted;
use crate::name::LockName;
pub(in crate::stores) use crate::redis_slots::{SLOTS, companion};
use crate::redis_slots::{crc16, tag};
use crate::store::{Claim, HolderRecord, Mode, Note};
use crate::stores::shared::timing::TOMBSTONE_EXTRA;
use crate::token::{HolderId, Token};
use crate::{clock, text};
use std::sync::{Arc, Mutex, PoisonError};
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
        check_name(name)?;
        Ok(Self::at(name.as_bytes().to_vec()))
    }

    /// The keys of a lock at the key `lock`.
    pub(super) fn at(lock: Vec<u8>) -> Self {
        Self { fence: companion(b'f', &lock), queue: companion(b'q', &lock), lock }
    }

    /// The keys that a call declares: only the lock's if the script can derive the others. `all` declares all of them: a
    /// Cluster that moves a slot key by key then refuses the call. The script must not see half of a lock.
    pub(super) fn declared(self, all: bool, holder: Option<HolderId>) -> Vec<Vec<u8>> {
        let tail = self.queue[4..].to_vec();
        if !all && tail.starts_with(b":{") && self.fence.strip_prefix(b"lk:f") == Some(&tail) {
            return vec![self.lock];
        }
        let mut keys = vec![self.lock, self.fence, self.queue];
        if all {
            keys.extend(b"wrh".iter().map(|letter| [b"lk:", &[*letter][..], &tail].concat()));
            keys.extend(holder.map(|id| [b"lk:x", tail.as_slice(), b":", id.to_hex().as_bytes()].concat()));
        }
        keys
    }
}

/// Refuses the names of Lockkeeper's own keys.
pub(in crate::stores) fn check_name(name: &LockName) -> Result<()> {
    if !name.as_bytes().starts_with(OURS) {
        return Ok(());
    }
    let text = "names that begin with 'lk:' are kept for Lockkeeper's own keys in Redis";
    Err(Error::new(ErrorKind::InvalidName, text).for_lock(name))
}

/// Whether scripts can derive the keys of this lock from its name, which is no key of ours.
pub(super) fn is_simple(name: &[u8]) -> bool {
    !name.contains(&b'}') && !name.starts_with(OURS)
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

/// The same, appended to a text.
pub(super) fn push_millis(into: &mut Vec<u8>, duration: Duration) {
    push_number(into, u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX));
}

pub(super) fn push_number(into: &mut Vec<u8>, mut number: u64) {
    let begin = into.len();
    loop {
        into.push(b'0' + (number % 10) as u8);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    into[begin..].reverse();
}

/// `lk2:HOLDER`: how the value of a lock begins that this claim holds.
pub(super) fn push_holder(into: &mut Vec<u8>, holder: HolderId) {
    into.extend_from_slice(b"lk2:");
    for byte in holder.to_u128().to_be_bytes() {
        into.extend([byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
    }
}

/// `lk2:HOLDER-:TTL:NOTE:`: the value of a lock that this claim holds, without its token.
pub(super) fn push_head(into: &mut Vec<u8>, claim: &Claim, note: &str) {
    push_holder(into, claim.holder);
    into.extend_from_slice(b"-:");
    push_millis(into, claim.ttl);
    into.push(b':');
    into.extend_from_slice(note.as_bytes());
    into.push(b':');
}

/// The arguments of a release: the beginning of the value that it ends, and how long its tombstone lives. Without a
/// tombstone, the channel of the connection it goes through, if that has one.
pub(super) fn release_args(call: Call, claim: &Claim, own: Option<&str>) -> Call {
    let begin = |text: &mut Vec<u8>| {
        push_holder(text, claim.holder);
        text.push(b'-');
    };
    let tombstone_or_channel = |text: &mut Vec<u8>| {
        if claim.unsettled && !planted("no-tombstone") {
            push_millis(text, claim.ttl + TOMBSTONE_EXTRA);
        } else if let Some(own) = own {
            text.extend_from_slice(own.as_bytes());
        }
    };
    call.with(begin).with(tombstone_or_channel)
}

/// `x`, `s` or `p` with its limit.
pub(super) fn push_mode(into: &mut Vec<u8>, mode: Mode) {
    match mode {
        Mode::Exclusive => into.push(b'x'),
        Mode::Shared => into.push(b's'),
        Mode::Permit { limit } => {
            into.push(b'p');
            push_number(into, limit.into());
        }
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
fn note_text(note: &Note) -> String {
    let mut text = String::new();
    push_text(&mut text, &note.host);
    text.push(':');
    text.push_str(&note.pid.to_string());
    text.push(':');
    push_text(&mut text, &note.label);
    text
}

/// The text of the note that was used last: the claims of a lock share one.
#[derive(Debug, Default)]
pub(in crate::stores) struct Notes(Mutex<Option<(Arc<Note>, Arc<str>)>>);

impl Notes {
    pub(in crate::stores) fn text(&self, note: &Arc<Note>) -> Arc<str> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((known, text)) if Arc::ptr_eq(known, note) => text.clone(),
            _ => {
                let text: Arc<str> = note_text(note).into();
                *last = Some((note.clone(), text.clone()));
                text
            }
        }
    }
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

/// A holder from `token:ttl:since:flag:note`, or `flag:ttl:note:token`, where the token is the time of the grant; only the
/// mode when another program wrote the text.
pub(in crate::stores) fn parse_holder(text: &str, mode: Mode, remaining: Option<Duration>) -> HolderRecord {
    let mut record = HolderRecord { remaining, ..HolderRecord::new(mode) };
    if let Some((rest, token)) = text.strip_prefix(['-', 'w', 'h']).and_then(|text| text.rsplit_once(':')) {
        let token = token.parse().ok();
        record.token = token.and_then(|token| Token::new(token).ok());
        record.since = token.map(clock::wall_time);
        record.note = rest.splitn(3, ':').nth(2).and_then(parse_note);
        return record;
    }
    let text = text.strip_prefix(':').unwrap_or(text);
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
    let text = std::str::from_utf8(value).ok()?;
    let rest = text.strip_prefix("lk2:").or_else(|| text.strip_prefix("lk1:"))?;
    HolderId::from_hex(rest.get(..32)?)?;
    let rest = rest.get(32..).filter(|rest| rest.starts_with([':', '-', 'w', 'h']))?;
    Some(rest.strip_prefix(':').unwrap_or(rest))
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
        assert_eq!(keys.declared(false, None), [b"a"], "scripts derive the others");
        let keys = Keys::of(&LockName::new("a}b").unwrap()).unwrap();
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
    fn a_note_is_made_once_and_another_is_not_taken_for_it() {
        let (notes, first) = (Notes::default(), Arc::new(Note::new("h", 1, "first")));
        let text = notes.text(&first);
        assert!(Arc::ptr_eq(&text, &notes.text(&first)));
        assert_eq!(&*notes.text(&Arc::new(Note::new("h", 1, "second"))), "h:1:second");
        assert_eq!(notes.text(&first), text);
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
