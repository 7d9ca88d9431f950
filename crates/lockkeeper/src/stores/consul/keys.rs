//! Where things are in the key-value store, and what is written there.
//!
//! ```text
//! <prefix><name>/.lock                    a lock that is held: locked by the holder's session, with the flags of Go's
//!                                         api.Lock; the value says who. Absent when the lock is free.
//! <prefix>.lockkeeper/gate/<session>      written when a release found nothing of an acquire that may still be under
//!                                         way: every acquire compares it. Ends with its session.
//! <prefix>.lockkeeper/register/<name>     a register: fence and value
//! ```
//!
//! Names of printable ASCII are kept as they are. Everything else, and what a path would lose or take for something
//! else (empty parts, a '.' at the beginning of a part, a '/' at the end), is written `~XX` byte by byte; '~' and '%' too.

use super::options::bad;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::store::{Claim, Note};
use crate::text;
use crate::token::HolderId;

/// The flags of a lock key: what Go's api.Lock, and with it `consul lock`, insists on.
pub(super) const LOCK_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

/// What `consul lock PREFIX` adds to its prefix.
pub(super) const SUFFIX: &str = "/.lock";

const OWN: &str = ".lockkeeper/";

/// The keys of one URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    prefix: String,
    suffix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str, suffix: &str) -> Result<Self> {
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let plain = |text: &str| text.bytes().all(|b| b.is_ascii_graphic() && b != b'%' && b != b'~');
        let unusual = |part: &str| part.is_empty() || part.starts_with('.');
        if !prefix.is_empty() && (!plain(prefix) || prefix.split('/').any(unusual)) {
            return Err(bad(
                "the prefix of a Consul URL has parts of printable ASCII, divided by single '/', none beginning with '.'",
            ));
        }
        // '/.lock' is the convention; a suffix that could be the beginning of a name would mix names up.
        if !suffix.is_empty() && (!plain(suffix) || suffix.ends_with('/') || suffix.contains("//")) {
            return Err(bad("suffix: it is empty, or printable ASCII that does not end with '/', such as '/.lock'"));
        }
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(Self { prefix, suffix: suffix.to_owned() })
    }

    /// The key of a lock.
    pub(super) fn lock(&self, name: &LockName) -> String {
        let mut key = encode(name.as_bytes());
        if key.ends_with('/') {
            key.pop();
            key.push_str("~2F");
        }
        format!("{}{key}{}", self.prefix, self.suffix)
    }

    /// The name of a lock key; `None` for what is no lock of this URL.
    pub(super) fn name(&self, key: &str) -> Option<LockName> {
        let text = key.strip_prefix(&self.prefix)?.strip_suffix(&self.suffix)?;
        if text.starts_with(OWN) {
            return None;
        }
        let name = LockName::new(decode(text)?).ok()?;
        // A key of another client may only look like one of ours.
        (self.lock(&name) == key).then_some(name)
    }

    /// What all lock keys begin with whose names begin with `prefix`; others may begin with it too.
    pub(super) fn below(&self, prefix: &[u8]) -> String {
        let end = prefix.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
        format!("{}{}", self.prefix, encode(&prefix[..end]))
    }

    pub(super) fn gate(&self, session: &str) -> String {
        format!("{}{OWN}gate/{session}", self.prefix)
    }

    pub(super) fn register(&self, name: &LockName) -> String {
        format!("{}{OWN}register/{}", self.prefix, field(name.as_bytes()))
    }

    /// A key that is never written: reading it shows whether reading works.
    pub(super) fn nothing(&self) -> String {
        format!("{}{OWN}nothing", self.prefix)
    }
}

/// How a byte is written depends only on the byte before it. So the text of a prefix is a prefix of the text.
fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut before = b'/';
    for &byte in bytes {
        let plain =
            byte.is_ascii_graphic() && byte != b'~' && byte != b'%' && (before != b'/' || !b"/.".contains(&byte));
        text::push(&mut text, byte, b'~', plain);
        before = byte;
    }
    text
}

/// One part of a key or one field of a value.
pub(super) fn field(bytes: &[u8]) -> String {
    text::encode(bytes, b'~', |byte| byte.is_ascii_alphanumeric() || b"-_@+".contains(&byte))
}

pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    text::decode(text.as_bytes(), b'~')
}

/// A key in the path of a URL, or a value in its query.
pub(super) fn in_url(text: &str) -> String {
    text::encode(text.as_bytes(), b'%', |byte| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte))
}

/// What the value of a lock key says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Held {
        holder: HolderId,
        note: Note,
        /// Microseconds of the holder's wall clock, for people.
        since: u64,
    },
    /// An operator has taken it away from this holder.
    Broken(HolderId),
    /// Another client's words.
    Foreign,
}

impl Value {
    /// `lk1:<holder>:<since µs>:<pid>:<host>:<label>`.
    pub(super) fn of(claim: &Claim, wall_us: u64) -> Vec<u8> {
        let (note, holder) = (&claim.note, claim.holder.to_hex());
        let [host, label] = [&note.host, &note.label].map(|text| field(text.as_bytes()));
        format!("lk1:{holder}:{wall_us}:{}:{host}:{label}", note.pid).into_bytes()
    }

    pub(super) fn broken(holder: HolderId) -> Vec<u8> {
        format!("lk1:{}:broken", holder.to_hex()).into_bytes()
    }

    pub(super) fn parse(bytes: &[u8]) -> Self {
        Self::read(bytes).unwrap_or(Self::Foreign)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = std::str::from_utf8(bytes).ok()?.strip_prefix("lk1:")?.split(':');
        let holder = HolderId::from_hex(fields.next()?)?;
        let since = match fields.next()? {
            "broken" => return Some(Self::Broken(holder)),
            since => since.parse().ok()?,
        };
        let pid = fields.next()?.parse().ok()?;
        let mut text = || String::from_utf8(decode(fields.next()?)?).ok();
        let note = Note::new(text()?, pid, text()?);
        fields.next().is_none().then_some(Self::Held { holder, note, since })
    }

    pub(super) fn holder(&self) -> Option<HolderId> {
        match self {
            Self::Held { holder, .. } => Some(*holder),
            Self::Broken(_) | Self::Foreign => None,
        }
    }
}

/// The error of a key that is no lock.
pub(super) fn no_lock(key: &str) -> Error {
    let text =
        format!("the key '{}' holds data that is no lock: its flags differ", crate::name::escape(key.as_bytes()));
    Error::new(ErrorKind::Foreign, text).in_store("consul")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn keys() -> Keys {
        Keys::new("", SUFFIX).unwrap()
    }

    fn lock(text: impl AsRef<[u8]>) -> String {
        keys().lock(&LockName::new(text).unwrap())
    }

    #[test]
    fn plain_names_are_where_consul_lock_has_them() {
        assert_eq!(lock("service/web"), "service/web/.lock");
        assert_eq!(lock("a:b{c}?#*'\\=x+y..z"), "a:b{c}?#*'\\=x+y..z/.lock");
        assert_eq!(Keys::new("team/a/", "").unwrap().lock(&LockName::new("k").unwrap()), "team/a/k");
    }

    #[test]
    fn what_a_path_would_lose_is_written_out() {
        for (name, key) in [
            ("/", "~2F/.lock"),
            ("a/", "a~2F/.lock"),
            ("a//b", "a/~2Fb/.lock"),
            ("..", "~2E./.lock"),
            ("a/../b", "a/~2E./b/.lock"),
            (".lockkeeper/gate/x", "~2Elockkeeper/gate/x/.lock"),
            ("a b~%", "a~20b~7E~25/.lock"),
            ("\u{e9}", "~C3~A9/.lock"),
        ] {
            assert_eq!(lock(name), key);
        }
    }

    #[test]
    fn what_only_looks_like_a_lock_is_none() {
        for key in ["a", ".lock", "/.lock", "a//.lock", "~2/.lock", "~41/.lock", "\u{e9}/.lock", "a/./.lock"] {
            assert_eq!(keys().name(key), None, "{key}");
        }
        assert_eq!(Keys::new("", "").unwrap().name(".lockkeeper/register/a"), None);
    }

    #[test]
    fn a_value_says_who_and_hostile_ones_say_nothing() {
        let note = Arc::new(Note::new("h:\n", 7, "\u{1f512}"));
        let holder = HolderId::from_u128(9);
        let claim = Claim::new(
            LockName::new("x").unwrap(),
            holder,
            std::time::Duration::from_secs(10),
            crate::clock::Stamp::from_micros(0),
            note.clone(),
        );
        let value = Value::of(&claim, 5);
        assert_eq!(Value::parse(&value), Value::Held { holder, note: (*note).clone(), since: 5 });
        assert_eq!(Value::parse(&Value::broken(holder)), Value::Broken(holder));
        for hostile in ["", "lk1:", "lk1:zz:1:1:a:b", "lk2:x", "{\"Limit\":3}", "lk1:\u{0}"] {
            assert_eq!(Value::parse(hostile.as_bytes()), Value::Foreign, "{hostile}");
        }
        let more = [&value[..], b":more"].concat();
        assert_eq!(Value::parse(&more), Value::Foreign);
    }

    proptest! {
        #[test]
        fn names_come_back_and_stay_apart(
            a in proptest::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), Just(b'~'), any::<u8>()], 1..24),
            b in proptest::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), Just(b'~'), any::<u8>()], 1..24),
            cut in 0usize..24,
        ) {
            for suffix in [SUFFIX, ""] {
                let keys = Keys::new("p", suffix).unwrap();
                let [x, y] = [&a, &b].map(|bytes| LockName::new(bytes).unwrap());
                prop_assert_eq!(keys.name(&keys.lock(&x)), Some(x.clone()));
                prop_assert_eq!(x == y, keys.lock(&x) == keys.lock(&y));
                prop_assert!(keys.lock(&x).starts_with(&keys.below(&a[..cut.min(a.len())])));
                prop_assert!(keys.lock(&x)[2..].split('/').all(|part| !part.is_empty() && part != "." && part != ".."));
            }
        }

        #[test]
        fn any_value_is_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            Value::parse(&bytes);
            Value::parse(&[b"lk1:", &bytes[..]].concat());
        }
    }
}
