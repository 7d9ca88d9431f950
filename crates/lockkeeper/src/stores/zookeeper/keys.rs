//! What is written where. A lock is a directory below the URL's path, a claim a child of it:
//!
//! | layout | Exclusive | Shared | Permit |
//! |---|---|---|---|
//! | `curator` | `_c_<guid>-lock-N` | `_c_<guid>-__READ__N` | `_c_<guid>-permit-<limit>-lock-N` |
//! | `curator-rw` | `_c_<guid>-__WRIT__N` | the same | the same |
//! | `kazoo` | `<guid>__lock__N` | `<guid>__rlock__N` | `<guid>-permit-<limit>__lock__N` |
//! | `bare` | `lock-N` | – | – |
//!
//! `N` is the number that the server draws, ten digits; the guid is the holder's. Whatever the layout, readers count all
//! of these. A child's data is `lk1:<holder>:<c or m>:<host>:<pid>:<label>`: the token is the zxid of the child's
//! creation, or of its change.

use crate::error::{Error, ErrorKind, Result};
use crate::name::{LockName, escape};
use crate::store::{Mode, Note};
use crate::text;
use crate::token::HolderId;

/// Where registers are kept, beside the locks: no name is written like that.
pub(super) const REGISTERS: &str = "%registers";

/// The node that every server has at its root and no client may write to.
const RESERVED: &[u8] = b"zookeeper";

/// What a directory of a lock that was broken has as its data, before the zxid of the child that was taken away.
pub(super) const BROKEN: &str = "lk1:broken:";

/// How claims are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Curator,
    CuratorRw,
    Kazoo,
    Bare,
}

impl Layout {
    pub(super) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "curator" => Self::Curator,
            "curator-rw" => Self::CuratorRw,
            "kazoo" => Self::Kazoo,
            "bare" => Self::Bare,
            _ => return None,
        })
    }

    /// Whether it has names for the other modes.
    pub(super) fn has_modes(self) -> bool {
        self != Self::Bare
    }

    /// The name of a claim's child, up to the number.
    pub(super) fn prefix(self, mode: Mode, holder: HolderId) -> String {
        let hex = holder.to_hex();
        let guid = || format!("_c_{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
        match (self, mode) {
            (Self::Bare, _) => "lock-".to_owned(),
            (Self::Kazoo, Mode::Exclusive) => format!("{hex}__lock__"),
            (Self::Kazoo, Mode::Shared) => format!("{hex}__rlock__"),
            (Self::Kazoo, Mode::Permit { limit }) => format!("{hex}-permit-{limit}__lock__"),
            (_, Mode::Shared) => format!("{}-__READ__", guid()),
            (_, Mode::Permit { limit }) => format!("{}-permit-{limit}-lock-", guid()),
            (Self::CuratorRw, Mode::Exclusive) => format!("{}-__WRIT__", guid()),
            (Self::Curator, Mode::Exclusive) => format!("{}-lock-", guid()),
        }
    }
}

/// What a child says of itself by its name: how it wants to hold, and its number. `None`: no claim of any known client.
pub(super) fn parse_child(child: &str) -> Option<(Mode, i64)> {
    const MARKS: [(&str, Mode); 5] = [
        ("lock-", Mode::Exclusive),
        ("__lock__", Mode::Exclusive),
        ("__WRIT__", Mode::Exclusive),
        ("__READ__", Mode::Shared),
        ("__rlock__", Mode::Shared),
    ];
    MARKS.into_iter().find_map(|(mark, mode)| {
        let (before, number) = child.rsplit_once(mark)?;
        let digits = number.strip_prefix('-').unwrap_or(number);
        if digits.is_empty() || digits.len() > 10 || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let number = number.parse().ok()?;
        match before.rsplit_once("-permit-") {
            Some((_, limit)) if mode == Mode::Exclusive => {
                let limit = limit.trim_end_matches('-').parse().ok()?;
                Some((Mode::Permit { limit }, number))
            }
            _ => Some((mode, number)),
        }
    })
}

/// One component of a path for any bytes, and back: injective. What a path may hold stays as it is, so that a lock is
/// found under the name that other clients gave it; the rest is written as `%` and two digits for each byte.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    // Names that mean something else in a path.
    let whole = matches!(bytes, b"." | b"..") || bytes == RESERVED;
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let first = whole && out.is_empty();
            if is_plain(c) && !first {
                out.push(c);
            } else {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|b| push_byte(&mut out, b));
            }
        }
        chunk.invalid().iter().for_each(|b| push_byte(&mut out, *b));
    }
    out
}

/// Servers refuse the other ones, and characters beyond the first plane travel differently in each client.
fn is_plain(c: char) -> bool {
    matches!(c, ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{f900}'..='\u{ffef}') && c != '%' && c != '/'
}

fn push_byte(out: &mut String, byte: u8) {
    text::push(out, byte, b'%', false);
}

/// The bytes that [`encode`] made this of; `None` when it did not.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    text::decode(text.as_bytes(), b'%').filter(|bytes| encode(bytes) == text)
}

/// The name of the lock whose directory is called so, if it is one.
pub(super) fn name_of(dir: &str) -> Option<LockName> {
    LockName::new(decode(dir)?).ok()
}

/// A child's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Data {
    pub(super) holder: HolderId,
    /// Whether the token was drawn anew after the child had been made.
    pub(super) redrawn: bool,
    pub(super) note: Note,
}

/// [`encode`] with the separator taken out too.
pub(super) fn field(bytes: &[u8]) -> String {
    encode(bytes).replace(':', "%3A")
}

impl Data {
    pub(super) fn of(holder: HolderId, note: &Note, redrawn: bool) -> Self {
        Self { holder, redrawn, note: note.clone() }
    }

    pub(super) fn text(&self) -> String {
        let how = if self.redrawn { 'm' } else { 'c' };
        let Note { host, pid, label, .. } = &self.note;
        format!("lk1:{}:{how}:{}:{pid}:{}", self.holder.to_hex(), field(host.as_bytes()), field(label.as_bytes()))
    }

    /// `None` for another client's data.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut fields = text.strip_prefix("lk1:")?.split(':');
        let holder = HolderId::from_hex(fields.next()?)?;
        let redrawn = match fields.next()? {
            "c" => false,
            "m" => true,
            _ => return None,
        };
        let mut word = || String::from_utf8(text::decode(fields.next()?.as_bytes(), b'%')?).ok();
        let (host, pid, label) = (word()?, word()?.parse().ok()?, word()?);
        Some(Self { holder, redrawn, note: Note::new(host, pid, label) })
    }
}

/// The error of a directory with a child that no known client makes: it may be another client's way to hold the lock.
pub(super) fn foreign(child: &str) -> Error {
    let child: String = escape(child.as_bytes()).chars().take(80).collect();
    Error::new(
        ErrorKind::Foreign,
        format!(
            "its directory has a child '{child}', which is no claim of a known lock client; remove it, or use another name"
        ),
    )
}

/// A limit that differs from the one in use.
pub(super) fn limits_differ(limit: u32, used: u32) -> Error {
    Error::invalid_config(format!(
        "a permit of {limit} was asked for while the name is in use with a limit of {used}; all must agree"
    ))
}

/// A zxid as a token's number.
pub(super) fn token(zxid: i64) -> Result<crate::token::Token> {
    crate::token::Token::new(u64::try_from(zxid).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn children_of_every_client_are_read() {
        let holder = HolderId::from_u128(7);
        for layout in [Layout::Curator, Layout::CuratorRw, Layout::Kazoo] {
            for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { limit: 12 }] {
                let child = format!("{}0000000042", layout.prefix(mode, holder));
                assert_eq!(parse_child(&child), Some((mode, 42)), "{child}");
            }
        }
        assert_eq!(parse_child("lock-0000000003"), Some((Mode::Exclusive, 3)));
        assert_eq!(parse_child("_c_0b1-lock--000000003"), Some((Mode::Exclusive, -3)));
        assert_eq!(parse_child("0a__lock__0000000003"), Some((Mode::Exclusive, 3)));
        for odd in ["", "lock-", "meta", "lock-12x", "x-latch-0000000001", "__READ__", "lock-99999999999", "!"] {
            assert_eq!(parse_child(odd), None, "{odd}");
        }
    }

    #[test]
    fn names_stay_as_they_are_where_a_path_allows_it() {
        assert_eq!(encode("orders-42 é".as_bytes()), "orders-42 é");
        assert_eq!(encode(b"a/b%"), "a%2Fb%25");
        assert_eq!(
            (encode(b"."), encode(b".."), encode(b"zookeeper")),
            ("%2E".into(), "%2E.".into(), "%7Aookeeper".into())
        );
        assert_eq!(encode("\u{1f512}".as_bytes()), "%F0%9F%94%92");
        for odd in ["%", "%zz", REGISTERS, "%61", "a%2f", "zookeeper", "."] {
            assert_eq!(decode(odd), None, "{odd}");
        }
    }

    #[test]
    fn data_comes_back_and_that_of_other_clients_is_not_taken_for_ours() {
        let data = Data { holder: HolderId::from_u128(9), redrawn: true, note: Note::new("a:b %", 7, "x\n\u{1f512}") };
        assert_eq!(Data::parse(data.text().as_bytes()), Some(data));
        for odd in [&b""[..], b"127.0.0.1", b"\xff", b"lk1:", b"lk1:0:c:h:1:l", b"__REVOKE__"] {
            assert_eq!(Data::parse(odd), None);
        }
    }

    proptest! {
        #[test]
        fn every_name_comes_back_exact(bytes in proptest::collection::vec(any::<u8>(), 1..80)) {
            let text = encode(&bytes);
            prop_assert_eq!(decode(&text), Some(bytes));
            prop_assert!(!text.contains('/') && !matches!(text.as_str(), "." | ".." | "zookeeper"));
        }

        #[test]
        fn children_never_panic(child in ".*") {
            let _ = parse_child(&child);
            let _ = decode(&child);
        }
    }
}
