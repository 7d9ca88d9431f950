//! A register by compare-and-swap, for stores that keep bytes with a version: the fence is read, judged here, and written
//! together with the value if no other client has written since.

use crate::error::{Error, Result};
use crate::mutant::planted;
use crate::name::LockName;
use crate::register::{Entry, Pass, Register, Written, check_value};
use crate::token::{HolderId, Token};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;

/// Maximum compare-and-swap attempts; every failed one means that another client made progress.
const MAX_RACES: u32 = 200;

/// A value to write, and for how long it is kept.
pub(in crate::stores) type Change<'a> = Option<(&'a [u8], Option<Duration>)>;

/// What a store must do for registers.
#[async_trait]
pub(in crate::stores) trait Versioned: Send + Sync {
    /// As errors name the store.
    const STORE: &'static str;

    /// What was read: the version that [`swap`](Self::swap) compares, and the value where it is stored with the fence.
    type Found: Send;

    /// The highest pass that the fence has seen, and what else was read. `race` counts the swaps that failed before.
    async fn load(&self, key: &LockName, race: u32) -> Result<(Option<Pass>, Self::Found)>;

    /// Raises the fence to `pass`, with `change` the value too, if the register is still as `found`. The value as it stands
    /// then, or `None` if another client has written since.
    async fn swap(
        &self,
        key: &LockName,
        found: Self::Found,
        pass: &Pass,
        change: Change<'_>,
    ) -> Result<Option<Option<Vec<u8>>>>;

    /// The value, unless it has ended.
    async fn value(&self, key: &LockName) -> Result<Option<Vec<u8>>>;
}

/// The registers of a store.
#[derive(Debug)]
pub(in crate::stores) struct Registers<V>(pub(in crate::stores) Arc<V>);

impl<V: Versioned> Registers<V> {
    /// The value after the swap, or the token that bars the way.
    async fn raise(
        &self,
        key: &LockName,
        pass: &Pass,
        change: Change<'_>,
    ) -> Result<std::result::Result<Option<Vec<u8>>, Token>> {
        for race in 0..MAX_RACES {
            let (seen, found) = self.0.load(key, race).await?;
            if !pass.clears(key, seen.as_ref())? {
                return Ok(Err(seen.map_or(pass.token, |seen| seen.token)));
            }
            // A planted bug: see `mutant.rs`.
            if change.is_none() && planted("fence-on-write-only") {
                return Ok(Ok(self.0.value(key).await?));
            }
            if let Some(value) = self.0.swap(key, found, pass, change).await? {
                return Ok(Ok(value));
            }
        }
        Err(Error::unavailable("too many other clients write this register at the same time").in_store(V::STORE))
    }
}

#[async_trait]
impl<V: Versioned> Register for Registers<V> {
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        Ok(match self.raise(key, pass, None).await? {
            Ok(value) => Entry::Entered(value),
            Err(seen) => Entry::Stale { seen },
        })
    }

    async fn write(&self, key: &LockName, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<Written> {
        check_value(value)?;
        Ok(match self.raise(key, pass, Some((value, ttl))).await? {
            Ok(_) => Written::Written,
            Err(seen) => Written::Stale { seen },
        })
    }

    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        self.0.value(key).await
    }
}

/// `lk1:<token>:<holder>:<lock>`; the store encodes the lock's name, without colons.
pub(in crate::stores) fn pass_text(pass: &Pass, lock: &str) -> String {
    format!("lk1:{}:{}:{lock}", pass.token, pass.holder.to_hex())
}

/// A pass, and what follows it behind a colon.
pub(in crate::stores) fn parse_pass(
    text: &str,
    decode: impl Fn(&str) -> Option<Vec<u8>>,
) -> Option<(Pass, Option<&str>)> {
    let mut fields = text.strip_prefix("lk1:")?.splitn(4, ':');
    let token = Token::new(fields.next()?.parse().ok()?).ok()?;
    let holder = HolderId::from_hex(fields.next()?)?;
    let lock = LockName::new(decode(fields.next()?)?).ok()?;
    Some((Pass::new(lock, token, holder), fields.next()))
}

/// Fence and value in one place: a [`pass_text`], `:<end>`, a line feed, and the value.
///
/// The end is `none` without a value, `-` for a value that stays, or a number by a clock of the store's choice.
#[cfg(any(feature = "consul", feature = "zookeeper"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stores) struct StoredRegister {
    pub(in crate::stores) seen: Pass,
    pub(in crate::stores) value: Option<Vec<u8>>,
    pub(in crate::stores) ends: Option<u64>,
}

#[cfg(any(feature = "consul", feature = "zookeeper"))]
impl StoredRegister {
    /// What stands after `old` when `pass` has entered, or has written a value that ends when `ends_at` says.
    pub(in crate::stores) fn next(
        old: Option<&Self>,
        pass: &Pass,
        change: Change<'_>,
        ends_at: impl FnOnce(Duration) -> u64,
    ) -> Self {
        let (value, ends) = match change {
            None => old.map_or((None, None), |old| (old.value.clone(), old.ends)),
            Some((value, ttl)) => (Some(value.to_vec()), ttl.map(ends_at)),
        };
        Self { seen: pass.clone(), value, ends }
    }

    pub(in crate::stores) fn bytes(&self, encode: impl Fn(&[u8]) -> String) -> Vec<u8> {
        let ends = match (&self.value, self.ends) {
            (None, _) => "none".to_owned(),
            (Some(_), None) => "-".to_owned(),
            (Some(_), Some(ends)) => ends.to_string(),
        };
        let head = format!("{}:{ends}\n", pass_text(&self.seen, &encode(self.seen.lock.as_bytes())));
        [head.as_bytes(), self.value.as_deref().unwrap_or_default()].concat()
    }

    pub(in crate::stores) fn parse(bytes: &[u8], decode: impl Fn(&str) -> Option<Vec<u8>>) -> Option<Self> {
        let at = bytes.iter().position(|b| *b == b'\n')?;
        let (head, value) = (std::str::from_utf8(&bytes[..at]).ok()?, &bytes[at + 1..]);
        let (seen, ends) = parse_pass(head, decode)?;
        let (value, ends) = match ends? {
            "none" => (None, None),
            "-" => (Some(value.to_vec()), None),
            ends => (Some(value.to_vec()), Some(ends.parse().ok()?)),
        };
        Some(Self { seen, value, ends })
    }

    /// The value, unless it has ended by `now`.
    pub(in crate::stores) fn live(self, now: u64) -> Option<Vec<u8>> {
        self.value.filter(|_| self.ends.is_none_or(|ends| ends > now))
    }
}

#[cfg(all(test, any(feature = "consul", feature = "zookeeper")))]
mod tests {
    use super::*;
    use crate::text;
    use proptest::prelude::*;

    fn encode(bytes: &[u8]) -> String {
        text::encode(bytes, b'~', |byte| byte.is_ascii_alphanumeric())
    }

    fn parse(bytes: &[u8]) -> Option<StoredRegister> {
        StoredRegister::parse(bytes, |text| text::decode(text.as_bytes(), b'~'))
    }

    #[test]
    fn a_register_comes_back_and_damage_is_noticed() {
        let lock = LockName::new(b"a:b\n%3A/\xff").unwrap();
        let seen = Pass::new(lock, Token::new(7).unwrap(), HolderId::from_u128(3));
        for (value, ends) in [(None, None), (Some(vec![]), None), (Some(b"x\ny\0".to_vec()), Some(9))] {
            let stored = StoredRegister { seen: seen.clone(), value, ends };
            assert_eq!(parse(&stored.bytes(encode)), Some(stored));
        }
        for bad in [&b""[..], b"\n", b"lk1:7:x:y:-\n", b"lk1:0:00000000000000000000000000000003:a:-\n", b"2026-01-01"] {
            assert_eq!(parse(bad), None);
        }
        let stored = StoredRegister { seen, value: Some(vec![1]), ends: Some(9) };
        assert_eq!((stored.clone().live(8), stored.live(9)), (Some(vec![1]), None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            parse(&bytes);
            parse(&[b"lk1:7:", &bytes[..], b"\n"].concat());
        }
    }
}
