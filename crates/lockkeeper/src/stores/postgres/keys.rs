//! From a lock's name to the number of an advisory lock, which other programs must arrive at as well.
//!
//! PostgreSQL has two spaces of numbers that never meet: one `bigint`, or two `integer`s. A rule is right only if it
//! lands in the same space as the program it is to exclude.

use crate::error::{Error, ErrorKind, Result};
use crate::name::{LockName, escape};
use hmac::{Hmac, KeyInit as _, Mac as _};
use md5::{Digest as _, Md5};
use sha1::Sha1;
use sha2::Sha256;
use std::fmt;

/// The number of an advisory lock, in one of the two spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// `pg_advisory_lock(bigint)`.
    Big(i64),
    /// `pg_advisory_lock(integer, integer)`.
    Pair(i32, i32),
}

impl Key {
    /// The space as `pg_locks.objsubid` shows it: 1 or 2.
    #[cfg(feature = "postgres")]
    pub(crate) const fn space(self) -> i16 {
        match self {
            Self::Big(_) => 1,
            Self::Pair(..) => 2,
        }
    }

    /// Both halves in one number, as `classid << 32 | objid`.
    #[cfg(feature = "postgres")]
    pub(crate) fn number(self) -> i64 {
        match self {
            Self::Big(number) => number,
            Self::Pair(high, low) => (i64::from(high) << 32) | i64::from(low.cast_unsigned()),
        }
    }
}

/// As it is written in a call: `(1)` or `(1, 2)` without the parentheses.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Big(number) => write!(f, "{number}"),
            Self::Pair(high, low) => write!(f, "{high}, {low}"),
        }
    }
}

/// How a name becomes a [`Key`]: one rule for each of the usual clients. Default: `Native`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KeyRule {
    /// `Big`: the first 8 bytes of SHA-256 of the name. In SQL:
    /// `('x' || encode(substr(sha256(convert_to(NAME, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint`.
    #[default]
    Native,
    /// As .NET's DistributedLock.Postgres: `Pair` of the letters for up to 9 ASCII characters; the number itself for 16
    /// hexadecimal digits (`Big`) or `8,8` of them (`Pair`); otherwise `Big`, 8 bytes of SHA-1.
    Madelson,
    /// As sqlx's `PgAdvisoryLock::new`: `Big`, by HKDF-SHA256.
    Sqlx,
    /// As django-pglocks: `Big`, CRC-32 as a *signed* 32-bit number. Only 2³² keys: names collide, and then exclude each
    /// other.
    Crc32,
    /// As OpenStack's tooz: `Pair` of the first two bytes of MD5. Only 65,536 keys: names collide often.
    Tooz,
    /// The name is the number: `42` is `Big`, `1,2` is `Pair`.
    Raw,
}

impl KeyRule {
    /// The rules' names in a URL, in the order of `ALL`.
    #[cfg(feature = "postgres")]
    pub(crate) const NAMES: [&'static str; 6] = ["native", "madelson", "sqlx", "crc32", "tooz", "raw"];
    #[cfg(feature = "postgres")]
    pub(crate) const ALL: [Self; 6] = [Self::Native, Self::Madelson, Self::Sqlx, Self::Crc32, Self::Tooz, Self::Raw];

    /// The key of a lock's name.
    ///
    /// # Errors
    /// `InvalidName` for an invalid name, and where `Raw` finds no number.
    pub fn key(self, name: impl AsRef<[u8]>) -> Result<Key> {
        self.key_of(&LockName::new(name)?)
    }

    pub(crate) fn key_of(self, name: &LockName) -> Result<Key> {
        let bytes = name.as_bytes();
        Ok(match self {
            Self::Native => Key::Big(i64::from_be_bytes(first(&Sha256::digest(bytes)))),
            Self::Madelson => madelson(bytes),
            Self::Sqlx => Key::Big(i64::from_le_bytes(first(&hkdf(bytes, b"SQLx (Rust) Postgres advisory lock")))),
            Self::Crc32 => Key::Big(crc32(bytes).cast_signed().into()),
            Self::Tooz => {
                let [high, low] = first(&Md5::digest(bytes));
                Key::Pair(i32::from(high), i32::from(low))
            }
            Self::Raw => raw(bytes).ok_or_else(|| {
                let shown: String = escape(bytes).chars().take(60).collect();
                let text = format!(
                    "'{shown}' is no key: with key=raw a name is one number of 64 bits, such as 42, \
                     or two of 32 bits, such as 1,2"
                );
                Error::new(ErrorKind::InvalidName, text).in_store("postgres")
            })?,
        })
    }
}

/// The beginning of a hash; all hashes here are longer.
fn first<const N: usize>(hash: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&hash[..N]);
    out
}

/// Seven bits a letter from the left, a 0, then 1s.
fn madelson(name: &[u8]) -> Key {
    const LETTERS: usize = 9;
    if name.len() <= LETTERS && name.is_ascii() {
        let letters = name.iter().fold(0, |bits: u64, letter| bits << 7 | u64::from(*letter));
        let bits = (name.len()..LETTERS).fold(letters << 1, |bits, _| bits << 7 | 0x7f);
        return pair(bits);
    }
    let hex = |digits: &[u8]| {
        let text = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()))?;
        u64::from_str_radix(text, 16).ok()
    };
    match name.len() {
        16 => hex(name).map(|bits| Key::Big(bits.cast_signed())),
        17 if name[8] == b',' => hex(&name[..8]).zip(hex(&name[9..])).map(|(high, low)| pair(high << 32 | low)),
        _ => None,
    }
    .unwrap_or_else(|| Key::Big(i64::from_le_bytes(first(&Sha1::digest(name)))))
}

fn pair(bits: u64) -> Key {
    let half = |bits: u64| i32::from_be_bytes(first(&bits.to_be_bytes()[4..]));
    Key::Pair(half(bits >> 32), half(bits))
}

/// The first block of HKDF-SHA256 without a salt.
fn hkdf(secret: &[u8], info: &[u8]) -> [u8; 32] {
    let mac = |key: &[u8], text: &[u8]| {
        // The only error is a key of a length that cannot be; HMAC takes any.
        Hmac::<Sha256>::new_from_slice(key).map_or([0; 32], |mac| mac.chain_update(text).finalize().into_bytes().into())
    };
    mac(&mac(&[0; 32], secret), &[info, &[1]].concat())
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

fn raw(name: &[u8]) -> Option<Key> {
    let text = std::str::from_utf8(name).ok()?;
    match text.split_once(',') {
        None => text.parse().ok().map(Key::Big),
        Some((high, low)) => Some(Key::Pair(high.parse().ok()?, low.trim_start_matches(' ').parse().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(rule: KeyRule, name: &str) -> Key {
        rule.key(name).unwrap()
    }

    #[test]
    fn madelson_short_names_are_their_letters_as_a_pair() {
        assert_eq!(key(KeyRule::Madelson, "job"), Key::Pair(-708_897_793, -1));
        assert_eq!(key(KeyRule::Madelson, "a"), Key::Pair(-1_023_410_177, -1));
        assert_eq!(key(KeyRule::Madelson, "lock-name"), Key::Pair(-641_786_187, -1_146_032_694));
        assert_eq!(madelson(b""), Key::Pair(2_147_483_647, -1));
    }

    #[test]
    fn madelson_numbers_are_themselves_and_other_names_hashed() {
        assert_eq!(key(KeyRule::Madelson, "00000000000000ff"), Key::Big(255));
        assert_eq!(key(KeyRule::Madelson, "ffffffffFFFFFFFE"), Key::Big(-2));
        assert_eq!(key(KeyRule::Madelson, "00000001,ffffffff"), Key::Pair(1, -1));
        assert_eq!(key(KeyRule::Madelson, "80000000,00000002"), Key::Pair(i32::MIN, 2));
        assert_eq!(key(KeyRule::Madelson, "my-long-lock-name"), Key::Big(-6_292_990_556_957_758_089));
        assert_eq!(key(KeyRule::Madelson, "orders/42/settle"), Key::Big(-1_364_247_973_008_136_799));
        // What only looks like digits is hashed.
        for name in ["+000000000000001", "00000001.ffffffff", "+0000001,ffffffff"] {
            assert!(matches!(key(KeyRule::Madelson, name), Key::Big(k) if !(-2..=2).contains(&k)), "{name}");
        }
    }

    #[test]
    fn sqlx_keys_are_those_of_its_documentation() {
        assert_eq!(key(KeyRule::Sqlx, "my first Postgres advisory lock!"), Key::Big(-5_560_419_505_042_474_287));
        assert_eq!(key(KeyRule::Sqlx, "job"), Key::Big(-8_075_846_316_381_025_412));
    }

    #[test]
    fn tooz_has_two_bytes_and_crc32_is_signed() {
        assert_eq!(key(KeyRule::Tooz, "job"), Key::Pair(157, 221));
        // The check value of CRC-32, 0xcbf43926, is above 2^31.
        assert_eq!(key(KeyRule::Crc32, "123456789"), Key::Big(-873_187_034));
        assert_eq!(key(KeyRule::Crc32, "a"), Key::Big(i64::from(0xe8b7_be43_u32.cast_signed())));
    }

    #[test]
    fn a_raw_name_is_one_number_or_two() {
        assert_eq!(key(KeyRule::Raw, "-42"), Key::Big(-42));
        assert_eq!(key(KeyRule::Raw, "9223372036854775807"), Key::Big(i64::MAX));
        assert_eq!((key(KeyRule::Raw, "1,-2"), key(KeyRule::Raw, "1, -2")), (Key::Pair(1, -2), Key::Pair(1, -2)));
        for bad in ["job", "", "1,", ",1", "9223372036854775808", "2147483648,1", "1,2,3", "1.5", "\u{661}"] {
            assert_eq!(KeyRule::Raw.key(bad).map_err(|e| e.kind()), Err(ErrorKind::InvalidName), "{bad}");
        }
    }

    #[test]
    fn native_is_what_the_server_computes() {
        // SHA-256 of "abc" begins ba7816bf 8f01cfea.
        assert_eq!(key(KeyRule::Native, "abc"), Key::Big(0xba78_16bf_8f01_cfea_u64.cast_signed()));
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn both_spaces_are_shown_as_pg_locks_does() {
        assert_eq!((Key::Pair(1, -1).space(), Key::Pair(1, -1).number()), (2, 0x1_ffff_ffff));
        assert_eq!((Key::Big(-5).space(), Key::Big(-5).number()), (1, -5));
        assert_eq!((Key::Pair(1, 2).to_string(), Key::Big(-5).to_string()), ("1, 2".into(), "-5".into()));
    }
}
