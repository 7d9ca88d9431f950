//! A claim as its key and value show it, and which claims of a line hold. Pure.

use super::keys::{Keys, decode, encode, kind};
use super::proto::KeyValue;
use crate::clock;
use crate::error::Result;
use crate::store::{Claim, Held, HolderRecord, Mode, Note};
use crate::token::{HolderId, Token};

/// One claim in line, ours or another client's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: Vec<u8>,
    pub(super) mode: Mode,
    /// `None` for another client's, and where only keys were read.
    pub(super) holder: Option<HolderId>,
    note: Option<(Note, u64)>,
    pub(super) standing: Standing,
    pub(super) created: i64,
    pub(super) modified: i64,
    pub(super) lease: i64,
}

/// What a claim's value says of it. Only claims with a lease of their own say more than the least: any client must be
/// able to go on where another one has stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// Its token is the revision at which this value was written.
    #[default]
    Written,
    /// It stands in line, and has not taken the lock.
    Waits,
    /// It holds with this token. Its value was written again since, to hang on another lease.
    Holds(i64),
}

impl Entry {
    /// A key of another client counts as Exclusive.
    pub(super) fn read(keys: &Keys, kv: KeyValue) -> Self {
        let suffix = kv.key.get(keys.prefix.len()..).unwrap_or_default();
        let read = std::str::from_utf8(&kv.value).ok().and_then(parse_note);
        let standing = read.as_ref().map_or_else(Standing::default, |(_, _, standing)| *standing);
        let (holder, note) = read.map(|(holder, note, _)| (holder, note)).unzip();
        Self {
            mode: kind(suffix).0,
            holder,
            note,
            standing,
            created: kv.create_revision,
            modified: kv.mod_revision,
            lease: kv.lease,
            key: kv.key,
        }
    }

    pub(super) fn token(&self) -> Result<Token> {
        let Standing::Holds(revision) = self.standing else { return token(self.modified) };
        token(revision)
    }

    /// Its value for another lease: what it says of the claim stays true. `None` for another client's.
    pub(super) fn rewritten(&self) -> Option<Vec<u8>> {
        let standing = match self.standing {
            Standing::Written => Standing::Holds(self.modified),
            standing => standing,
        };
        let (note, since) = self.note.as_ref()?;
        Some(text(self.holder?, *since, note, standing))
    }

    pub(super) fn record(&self) -> HolderRecord {
        let (note, since) = self.note.clone().unzip();
        let (token, since) = (self.token().ok(), since.map(clock::wall_time));
        HolderRecord { note, token, since, ..HolderRecord::new(self.mode) }
    }

    /// What a refused claim is told.
    pub(super) fn held(&self, place: Option<u32>) -> Held {
        let HolderRecord { note, token, since, .. } = self.record();
        Held { holder: note, token, since, remaining: None, place }
    }
}

pub(super) fn token(revision: i64) -> Result<Token> {
    Token::new(u64::try_from(revision).unwrap_or(0))
}

/// How many at the head of a line hold: all that fit together, none overtaking.
pub(super) fn holders(line: &[Entry]) -> usize {
    let Some(first) = line.first() else { return 0 };
    let most = match first.mode {
        Mode::Exclusive => 1,
        Mode::Shared => usize::MAX,
        Mode::Permit { limit } => usize::try_from(limit).unwrap_or(usize::MAX),
    };
    line.iter().take_while(|entry| entry.mode == first.mode).count().min(most)
}

pub(super) fn note_text(claim: &Claim) -> Vec<u8> {
    text(claim.holder, clock::wall_micros(), &claim.note, Standing::Written)
}

/// The same of a claim that has not taken the lock.
pub(super) fn waiting_text(claim: &Claim) -> Vec<u8> {
    text(claim.holder, clock::wall_micros(), &claim.note, Standing::Waits)
}

/// `lk1:holder:since µs:pid:host:label`, host and label percent-encoded; then `:w` for a claim that waits, or `:` and the
/// token of one that was written again.
fn text(holder: HolderId, since: u64, note: &Note, standing: Standing) -> Vec<u8> {
    let (host, label) = (encode(note.host.as_bytes()), encode(note.label.as_bytes()));
    let standing = match standing {
        Standing::Written => String::new(),
        Standing::Waits => ":w".to_owned(),
        Standing::Holds(token) => format!(":{token}"),
    };
    format!("lk1:{}:{since}:{}:{host}:{label}{standing}", holder.to_hex(), note.pid).into_bytes()
}

/// Between which values the notes of a holder's claims lie.
pub(super) fn notes_of(holder: HolderId) -> [Vec<u8>; 2] {
    [":", ";"].map(|end| format!("lk1:{}{end}", holder.to_hex()).into_bytes())
}

fn parse_note(text: &str) -> Option<(HolderId, (Note, u64), Standing)> {
    let mut fields = text.strip_prefix("lk1:")?.splitn(6, ':');
    let holder = HolderId::from_hex(fields.next()?)?;
    let (since, pid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let mut text = || String::from_utf8(decode(fields.next()?.as_bytes())?).ok();
    let note = Note::new(text()?, pid, text()?);
    let standing = match fields.next() {
        None => Standing::Written,
        Some("w") => Standing::Waits,
        Some(token) => Standing::Holds(token.parse().ok()?),
    };
    Some((holder, (note, since), standing))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockName;
    use crate::stores::etcd::keys::{Names, base_of};

    fn name(bytes: impl AsRef<[u8]>) -> LockName {
        LockName::new(bytes).unwrap()
    }

    fn claim(note: Note) -> Claim {
        let ttl = std::time::Duration::from_secs(1);
        Claim::new(name("x"), HolderId::from_u128(9), ttl, clock::Stamp::default(), note.into())
    }

    fn entry(mode: Mode, lease: i64, number: u32) -> Entry {
        let keys = Keys::of(Names::Encoded, &name("x")).unwrap();
        let (key, value) = (keys.claim(mode, lease, number), note_text(&claim(Note::default())));
        Entry::read(&keys, KeyValue { key, value, lease, create_revision: 5, mod_revision: 7 })
    }

    #[test]
    fn a_claims_key_says_how_it_is_held_and_foreign_ones_exclude() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { limit: 12 }] {
            let entry = entry(mode, 0x5e, 9);
            assert_eq!((entry.mode, entry.holder), (mode, Some(HolderId::from_u128(9))));
            let kv = KeyValue { key: entry.key, lease: 0x5e, ..KeyValue::default() };
            assert_eq!(base_of(&kv), Some(&b"x"[..]));
        }
        let keys = Keys::of(Names::Encoded, &name("x")).unwrap();
        for suffix in ["694d7550", "", "px-1", "p-5e-1", "é"] {
            let key = [&keys.prefix[..], suffix.as_bytes()].concat();
            let foreign = Entry::read(&keys, KeyValue { key, ..KeyValue::default() });
            assert_eq!((foreign.mode, foreign.holder), (Mode::Exclusive, None), "{suffix}");
        }
        let config = KeyValue { key: b"app/config".to_vec(), ..KeyValue::default() };
        assert_eq!(base_of(&config), None);
    }

    #[test]
    fn those_at_the_head_hold_who_fit_together() {
        let [x, s, p] = [Mode::Exclusive, Mode::Shared, Mode::Permit { limit: 2 }];
        let count = |modes: &[Mode]| holders(&modes.iter().map(|mode| entry(*mode, 1, 1)).collect::<Vec<_>>());
        assert_eq!((count(&[]), count(&[x, x]), count(&[s, s, x, s]), count(&[p, p, p])), (0, 1, 2, 2));
        assert_eq!((count(&[p, s]), count(&[s, p]), count(&[p, Mode::Permit { limit: 3 }])), (1, 1, 1));
    }

    #[test]
    fn notes_survive_the_trip_as_ascii() {
        let note = Note::new("höst:1", 7, "a%b:c\n\u{1f512} ");
        let text = note_text(&claim(note.clone()));
        assert!(text.is_ascii(), "{text:?}");
        let (holder, (read, _), standing) = parse_note(std::str::from_utf8(&text).unwrap()).unwrap();
        assert_eq!((holder, read, standing), (HolderId::from_u128(9), note, Standing::Written));
        let between = |holder| {
            let [low, high] = notes_of(HolderId::from_u128(holder));
            low < text && text < high
        };
        assert_eq!([8, 9, 10].map(between), [false, true, false]);
        let odd = format!("{}:x", String::from_utf8_lossy(&text));
        for bad in ["", "lk1:1:x:%zz:y", &odd, &String::from_utf8_lossy(&text[..40])] {
            assert_eq!(parse_note(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_claim_that_moves_to_another_lease_keeps_its_token_or_its_place() {
        let keys = Keys::of(Names::Encoded, &name("x")).unwrap();
        let read = |value, revision| {
            let key = keys.claim(Mode::Exclusive, 1, 0);
            Entry::read(&keys, KeyValue { key, value, create_revision: 5, mod_revision: revision, lease: 1 })
        };
        let held = read(note_text(&claim(Note::new("h", 7, "l"))), 7);
        let moved = read(held.rewritten().unwrap(), 9);
        assert_eq!((moved.standing, moved.token().unwrap()), (Standing::Holds(7), token(7).unwrap()));
        assert_eq!(moved.record(), held.record());
        assert_eq!(read(moved.rewritten().unwrap(), 11).token().unwrap(), token(7).unwrap());
        let waits = read(waiting_text(&claim(Note::default())), 5);
        assert_eq!((waits.standing, read(waits.rewritten().unwrap(), 6).standing), (Standing::Waits, Standing::Waits));
        assert_eq!(read(b"another client's".to_vec(), 5).rewritten(), None);
    }
}
