//! Where everything of a lock is kept in etcd. Pure.
//!
//! - `BASE/LEASE-N` an Exclusive claim, `BASE/s-LEASE-N` a Shared one, `BASE/p7-LEASE-N` a permit of 7; held or waiting, in
//!   the order of their creation. LEASE is the lease's id in hexadecimal, as other clients write it; N tells claims of one
//!   lease apart. Keys are used again: etcd remembers each one until the next compaction, and a reader of a line passes
//!   all that were ever in it. A claim's own is the key with its creation revision.
//! - BASE is the name itself, or for a name with a `/`: `/` and the name with `/` and `%` percent-encoded. With native
//!   names it is always the name.
//! - `/lk/lease/LEASE/session` lives as long as a lease; `/lk/lease/LEASE/x-HOLDER` says that a claim was broken.
//! - `/lk/fence/KEY` and `/lk/value/KEY` are a register; KEY is percent-encoded.

use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::store::Mode;
use crate::stores::etcd::proto::KeyValue;
use crate::text;
use crate::token::HolderId;

/// How names become keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// A `/` inside a name is escaped: no name is the beginning of another's keys.
    Encoded,
    /// As they are.
    Native,
}

/// What all keys that are no claims begin with. No claim does: an encoded name has a `%2F` after its first `/`.
pub(super) const OURS: &str = "/lk/";

/// The keys of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    /// What they begin with, up to and including the last `/`.
    pub(super) prefix: Vec<u8>,
    /// The first key after them.
    pub(super) end: Vec<u8>,
}

impl Keys {
    pub(super) fn of(names: Names, name: &LockName) -> Result<Self> {
        let base = base(names, name.as_bytes());
        if base == OURS.as_bytes()[..OURS.len() - 1] || base.starts_with(OURS.as_bytes()) {
            let text = "a name of an etcd lock must not begin with '/lk/': those keys are Lockkeeper's own";
            return Err(Error::new(ErrorKind::InvalidName, text).in_store("etcd").for_lock(name));
        }
        Ok(Self { prefix: [&base[..], b"/"].concat(), end: [&base[..], b"0"].concat() })
    }

    pub(super) fn all(&self) -> [&[u8]; 2] {
        [&self.prefix, &self.end]
    }

    /// The keys before and after those of Shared claims.
    pub(super) fn but_shared(&self) -> [[Vec<u8>; 2]; 2] {
        let with = |end: &[u8]| [&self.prefix[..], end].concat();
        [[self.prefix.clone(), with(b"s-")], [with(b"s."), self.end.clone()]]
    }

    pub(super) fn claim(&self, mode: Mode, lease: i64, number: u32) -> Vec<u8> {
        let kind = match mode {
            Mode::Exclusive => String::new(),
            Mode::Shared => "s-".to_owned(),
            Mode::Permit { limit } => format!("p{limit}-"),
        };
        [&self.prefix[..], format!("{kind}{lease:x}-{number}").as_bytes()].concat()
    }
}

fn base(names: Names, name: &[u8]) -> Vec<u8> {
    if names == Names::Native || !name.contains(&b'/') {
        return name.to_vec();
    }
    let mut base = b"/".to_vec();
    for &byte in name {
        match byte {
            b'/' => base.extend(b"%2F"),
            b'%' => base.extend(b"%25"),
            _ => base.push(byte),
        }
    }
    base
}

/// The name that a base stands for; `None` when it is none of ours.
pub(super) fn name_of(names: Names, base: &[u8]) -> Option<LockName> {
    let plain = match base.strip_prefix(b"/") {
        Some(rest) if names == Names::Encoded => decode(rest)?,
        _ => base.to_vec(),
    };
    // One key, one name: what would be written differently is not ours.
    (self::base(names, &plain) == base).then(|| LockName::new(plain).ok()).flatten()
}

/// The ranges of keys whose names may begin with `prefix`.
pub(super) fn ranges(names: Names, prefix: &[u8]) -> Vec<[Vec<u8>; 2]> {
    let mut starts = Vec::new();
    if names == Names::Native || !prefix.contains(&b'/') {
        starts.push(prefix.to_vec());
    }
    if names == Names::Encoded && !prefix.is_empty() {
        // As if it had a slash; a name that begins so has one, here or later.
        let mut with_slash = base(names, &[prefix, b"/"].concat());
        with_slash.truncate(with_slash.len() - 3);
        starts.push(with_slash);
    }
    starts.sort();
    starts
        .into_iter()
        .map(|start| {
            let end = after(&start);
            // An empty key would ask for none; no key is shorter than one byte.
            [if start.is_empty() { vec![0] } else { start }, end]
        })
        .collect()
}

/// The first key that does not begin with `prefix`; one zero byte means "to the end".
fn after(prefix: &[u8]) -> Vec<u8> {
    text::upper_bound(prefix).unwrap_or_else(|| vec![0])
}

/// Whether a key is none of a lock.
pub(super) fn is_ours(key: &[u8]) -> bool {
    key.starts_with(OURS.as_bytes())
}

/// The first key after those.
pub(super) fn after_ours() -> Vec<u8> {
    after(OURS.as_bytes())
}

/// What lives as long as a lease does.
pub(super) fn session(lease: i64) -> Vec<u8> {
    format!("{OURS}lease/{lease:x}/session").into_bytes()
}

/// The range of everything beside the claims of a lease.
pub(super) fn beside(lease: i64) -> [Vec<u8>; 2] {
    [format!("{OURS}lease/{lease:x}/").into_bytes(), format!("{OURS}lease/{lease:x}0").into_bytes()]
}

pub(super) fn tomb(lease: i64, holder: HolderId) -> Vec<u8> {
    format!("{OURS}lease/{lease:x}/x-{}", holder.to_hex()).into_bytes()
}

/// Whose tombstone that is.
pub(super) fn tomb_of(key: &[u8]) -> Option<HolderId> {
    let text = std::str::from_utf8(key).ok()?.strip_prefix(OURS)?;
    HolderId::from_hex(text.rsplit_once("/x-")?.1)
}

pub(super) fn fence(key: &LockName) -> Vec<u8> {
    [format!("{OURS}fence/").as_bytes(), encode(key.as_bytes()).as_bytes()].concat()
}

pub(super) fn value(key: &LockName) -> Vec<u8> {
    [format!("{OURS}value/").as_bytes(), encode(key.as_bytes()).as_bytes()].concat()
}

/// The mode that a claim's key tells, and what follows it; other clients' keys count as Exclusive.
pub(super) fn kind(suffix: &[u8]) -> (Mode, &[u8]) {
    if let Some(rest) = suffix.strip_prefix(b"s-") {
        return (Mode::Shared, rest);
    }
    let permit = || {
        let rest = suffix.strip_prefix(b"p")?;
        let dash = rest.iter().position(|byte| *byte == b'-')?;
        let limit = std::str::from_utf8(&rest[..dash]).ok()?.parse().ok()?;
        Some((Mode::Permit { limit }, &rest[dash + 1..]))
    };
    permit().unwrap_or((Mode::Exclusive, suffix))
}

/// How many of the last bits of a lease of one claim tell its TTL; see `claim/number.rs`.
pub(super) const TTL_BITS: u32 = 22;

/// The base of a claim's key, if it is one: the last part begins with the id of the lease that the key hangs on, or of
/// another lease of the same claim.
pub(super) fn base_of(kv: &KeyValue) -> Option<&[u8]> {
    let slash = kv.key.iter().rposition(|byte| *byte == b'/')?;
    let named = lease_in(&kv.key)?;
    (kv.lease != 0 && named >> TTL_BITS == kv.lease >> TTL_BITS).then_some(&kv.key[..slash])
}

/// The lease that a claim's key is named after.
pub(super) fn lease_in(key: &[u8]) -> Option<i64> {
    let slash = key.iter().rposition(|byte| *byte == b'/')?;
    let (_, rest) = kind(&key[slash + 1..]);
    let digits = rest.split(|byte| *byte == b'-').next()?;
    let lease = i64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    // One lease, one name: what would be written differently is none.
    (format!("{lease:x}").as_bytes() == digits).then_some(lease)
}

/// ASCII without `:`, `/` and control characters.
pub(super) fn encode(bytes: &[u8]) -> String {
    text::encode(bytes, b'%', |byte| byte.is_ascii_alphanumeric() || b"-._@+".contains(&byte))
}

pub(super) fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
    text::decode(bytes, b'%')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(bytes: impl AsRef<[u8]>) -> LockName {
        LockName::new(bytes).unwrap()
    }

    #[test]
    fn plain_names_are_where_other_clients_look_and_slashes_are_escaped() {
        let keys = |bytes: &str| Keys::of(Names::Encoded, &name(bytes)).unwrap();
        assert_eq!((&keys("a%").prefix[..], &keys("a%").end[..]), (&b"a%/"[..], &b"a%0"[..]));
        assert_eq!(keys("a/b%").prefix, b"/a%2Fb%25/");
        assert_eq!(Keys::of(Names::Native, &name("a/b")).unwrap().prefix, b"a/b/");
        for wrong in ["/lk", "/lk/lease"] {
            assert_eq!(Keys::of(Names::Native, &name(wrong)).unwrap_err().kind(), ErrorKind::InvalidName);
            assert!(Keys::of(Names::Encoded, &name(wrong)).is_ok());
        }
        let holder = HolderId::from_u128(1);
        assert_eq!(tomb_of(&tomb(0x7f, holder)), Some(holder));
        assert_eq!(tomb_of(&session(0x7f)), None);
    }

    proptest! {
        #[test]
        fn every_name_has_a_base_of_its_own_that_is_no_beginning_of_another(
            a in proptest::collection::vec(prop_oneof![Just(b'/'), Just(b'%'), Just(b'2'), Just(b'F'), any::<u8>()], 1..12),
            b in proptest::collection::vec(prop_oneof![Just(b'/'), Just(b'%'), Just(b'2'), Just(b'F'), any::<u8>()], 1..12),
        ) {
            let keys = |bytes: &[u8]| Keys::of(Names::Encoded, &name(bytes)).unwrap();
            prop_assert_eq!(name_of(Names::Encoded, &base(Names::Encoded, &a)), Some(name(&a)));
            if a != b {
                prop_assert!(!keys(&a).prefix.starts_with(&keys(&b).prefix));
            }
            // A listing under any beginning of the name looks where its keys are.
            for cut in 0..=a.len() {
                let found = ranges(Names::Encoded, &a[..cut]).iter().any(|[from, end]| {
                    let key = &keys(&a).prefix;
                    from <= key && (*end == [0] || key < end)
                });
                prop_assert!(found, "{:?} under {:?}", a, &a[..cut]);
            }
        }
    }
}
