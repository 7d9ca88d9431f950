//! From a lock's name to one of `GET_LOCK`, which other programs must arrive at as well.
//!
//! MySQL takes 64 characters and folds case; MariaDB takes more and does not. So only lower case up to 64 is the same
//! everywhere, and that is kept as it is by every rule.

use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::stores::mysql::options::KeyRule;
use sha2::{Digest as _, Sha256, Sha512};

/// The most characters of a name.
const MAX_KEY: usize = 64;

/// Digits of the hashes: five bits each.
const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// How keys of ours that are not the name itself begin.
const HASHED: &str = "lk-hash-";

/// The session's own lock.
pub(super) const SESSION: &str = "lk-s-";

/// What `GET_LOCK` is asked for.
///
/// # Errors
/// `InvalidName` where the rule has no key for it.
pub(super) fn key(rule: KeyRule, name: &LockName) -> Result<String> {
    let wrong = |text: &str| Error::new(ErrorKind::InvalidName, text).for_lock(name).in_store("mysql");
    let text = std::str::from_utf8(name.as_bytes());
    match rule {
        KeyRule::Native => Ok(match text {
            Ok(text) if is_plain(text) => text.to_owned(),
            _ => {
                let mut key = HASHED.to_owned();
                digits(&Sha256::digest(name.as_bytes()), 51, &mut key);
                key
            }
        }),
        KeyRule::Madelson => {
            let text = text.map_err(|_| wrong("key=madelson has no rule for a name that is not UTF-8"))?;
            let lower = text.to_lowercase();
            if lower == text && text.chars().count() <= MAX_KEY {
                return Ok(lower);
            }
            let mut key: String = lower.chars().take(MAX_KEY - 32).collect();
            digits(&Sha512::digest(text.as_bytes()), 32, &mut key);
            Ok(key)
        }
        KeyRule::Raw => match text {
            Ok(text) if text.chars().count() <= MAX_KEY => Ok(text.to_owned()),
            _ => Err(wrong("with key=raw a name is at most 64 characters of UTF-8; key=native takes any")),
        },
    }
}

/// Compares equal with itself only, on every server.
fn is_plain(text: &str) -> bool {
    let kept = |b: u8| (b.is_ascii_graphic() || b == b' ') && !b.is_ascii_uppercase();
    text.len() <= MAX_KEY
        && text.bytes().all(kept)
        && !text.ends_with(' ')
        && !text.starts_with(HASHED)
        && !text.starts_with(SESSION)
}

/// The first `count` groups of five bits, least significant bit first.
fn digits(hash: &[u8], count: usize, out: &mut String) {
    for group in 0..count {
        let bit = |k: usize| hash.get(k / 8).map_or(0, |byte| usize::from(byte >> (k % 8) & 1));
        let value = (0..5).fold(0, |value, i| value | bit(group * 5 + i) << i);
        out.push(char::from(DIGITS[value]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(rule: KeyRule, name: &[u8]) -> String {
        key(rule, &LockName::new(name).unwrap()).unwrap()
    }

    #[test]
    fn madelson_names_are_those_of_the_dotnet_library() {
        assert_eq!(key_of(KeyRule::Madelson, b"Job"), "jobqzsu4okmtetpgbgp7fik6ip6vpav5r2x");
        let long = "x".repeat(70);
        let expected = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxa2c43imllfpmlp6d4lwcyytrulj2ticu";
        assert_eq!(key_of(KeyRule::Madelson, long.as_bytes()), expected);
        assert_eq!(key_of(KeyRule::Madelson, b"orders/42"), "orders/42");
        assert!(key(KeyRule::Madelson, &LockName::new(b"\xff").unwrap()).is_err());
    }

    #[test]
    fn plain_names_are_kept_by_every_rule() {
        for rule in [KeyRule::Native, KeyRule::Madelson, KeyRule::Raw] {
            assert_eq!(key_of(rule, b"orders/42 x"), "orders/42 x");
        }
        assert_eq!(key_of(KeyRule::Raw, b"Job"), "Job");
        assert!(key(KeyRule::Raw, &LockName::new([b'x'; 65]).unwrap()).is_err());
    }

    #[test]
    fn other_names_are_hashed_to_what_every_server_takes() {
        let names: [&[u8]; 8] =
            [b"Job", b"job ", b"a\n", &[b'x'; 65], "é".as_bytes(), b"\xff", b"lk-hash-a", b"lk-s-00"];
        let mut keys: Vec<String> = names.iter().map(|name| key_of(KeyRule::Native, name)).collect();
        assert!(keys.iter().all(|key| key.starts_with(HASHED) && key.len() <= MAX_KEY && is_lower(key)), "{keys:?}");
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), names.len());
    }

    fn is_lower(key: &str) -> bool {
        !key.bytes().any(|b| b.is_ascii_uppercase())
    }
}
