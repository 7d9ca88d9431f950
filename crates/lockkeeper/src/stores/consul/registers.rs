//! Registers: one key each, changed by comparing its index.
//!
//! The value is `lk1:<token>:<holder>:<lock>:<end>`, a line feed, and the bytes. The end is `none` without a value, `-`
//! for one that stays, or the microsecond at which it ends by the wall clocks of whoever writes and reads: Consul ends
//! no key by itself.

use super::api::{Op, Txn};
use super::core::{ASK_LIMIT, Core};
use super::names::{decode, field};
use crate::clock::wall_micros;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::register::{Entry, Pass, Written, check_value};
use crate::token::{HolderId, Token};
use std::time::Duration;

/// How often others may come between reading and writing.
const MOST_RACES: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    seen: Pass,
    value: Option<Vec<u8>>,
    ends: Option<u64>,
}

impl Kept {
    fn bytes(&self) -> Vec<u8> {
        let ends = match (&self.value, self.ends) {
            (None, _) => "none".to_owned(),
            (Some(_), None) => "-".to_owned(),
            (Some(_), Some(us)) => us.to_string(),
        };
        let Pass { lock, token, holder, .. } = &self.seen;
        let head = format!("lk1:{token}:{}:{}:{ends}\n", holder.to_hex(), field(lock.as_bytes()));
        [head.as_bytes(), self.value.as_deref().unwrap_or_default()].concat()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let at = bytes.iter().position(|b| *b == b'\n')?;
        let (head, value) = (std::str::from_utf8(&bytes[..at]).ok()?, &bytes[at + 1..]);
        let mut fields = head.strip_prefix("lk1:")?.split(':');
        let token = Token::new(fields.next()?.parse().ok()?).ok()?;
        let holder = HolderId::from_hex(fields.next()?)?;
        let lock = LockName::new(decode(fields.next()?)?).ok()?;
        let (value, ends) = match fields.next()? {
            "none" => (None, None),
            "-" => (Some(value.to_vec()), None),
            us => (Some(value.to_vec()), Some(us.parse().ok()?)),
        };
        Some(Self { seen: Pass::new(lock, token, holder), value, ends })
    }

    fn live(self, now: u64) -> Option<Vec<u8>> {
        self.value.filter(|_| self.ends.is_none_or(|ends| ends > now))
    }
}

impl Core {
    pub(super) async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        Ok(match self.raise(key, pass, None).await? {
            Ok(value) => Entry::Entered(value),
            Err(seen) => Entry::Stale { seen },
        })
    }

    pub(super) async fn write(
        &self,
        key: &LockName,
        pass: &Pass,
        value: &[u8],
        ttl: Option<Duration>,
    ) -> Result<Written> {
        check_value(value)?;
        Ok(match self.raise(key, pass, Some((value, ttl))).await? {
            Ok(_) => Written::Written,
            Err(seen) => Written::Stale { seen },
        })
    }

    pub(super) async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        let kept = self.kept(key, &self.http.options.keys.register(key)).await?.0;
        Ok(kept.and_then(|kept| kept.live(wall_micros())))
    }

    /// A register as it stands, and its index; 0 when there is none.
    async fn kept(&self, key: &LockName, path: &str) -> Result<(Option<Kept>, u64)> {
        let Some(entry) = self.http.get(path, ASK_LIMIT).await?.0 else { return Ok((None, 0)) };
        let foreign = || {
            let text = format!("the register '{key}' holds data that Lockkeeper did not write");
            Error::new(ErrorKind::Foreign, text).in_store("consul")
        };
        Ok((Some(Kept::parse(&entry.value).ok_or_else(foreign)?), entry.modify_index))
    }

    /// Raises the fence, with or without a value: what was there, or the token in the way.
    async fn raise(
        &self,
        key: &LockName,
        pass: &Pass,
        change: Option<(&[u8], Option<Duration>)>,
    ) -> Result<std::result::Result<Option<Vec<u8>>, Token>> {
        let path = self.http.options.keys.register(key);
        for _ in 0..MOST_RACES {
            let (kept, index) = self.kept(key, &path).await?;
            let seen = kept.as_ref().map(|kept| &kept.seen);
            if !pass.clears(key, seen)? {
                return Ok(Err(seen.map_or(pass.token, |seen| seen.token)));
            }
            let now = wall_micros();
            let next = match change {
                None => {
                    let (value, ends) = kept.as_ref().map_or((None, None), |kept| (kept.value.clone(), kept.ends));
                    Kept { seen: pass.clone(), value, ends }
                }
                Some((value, ttl)) => {
                    let ends = ttl.map(|ttl| now.saturating_add(u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX)));
                    Kept { seen: pass.clone(), value: Some(value.to_vec()), ends }
                }
            };
            let was = kept.clone().and_then(|kept| kept.live(now));
            // Nothing new to write, and the read was as good as one after it.
            if kept.as_ref() == Some(&next) {
                return Ok(Ok(was));
            }
            if let Txn::Done(_) = self.http.txn(vec![Op::cas(&path, index, &next.bytes())], ASK_LIMIT).await? {
                return Ok(Ok(was));
            }
        }
        Err(Error::unavailable("too many others write the register at the same time").in_store("consul"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_register_comes_back() {
        let seen = Pass::new(LockName::new("a:b\n").unwrap(), Token::new(7).unwrap(), HolderId::from_u128(3));
        for (value, ends) in [(None, None), (Some(vec![]), None), (Some(b"x\ny".to_vec()), Some(9))] {
            let kept = Kept { seen: seen.clone(), value, ends };
            assert_eq!(Kept::parse(&kept.bytes()), Some(kept));
        }
        let kept = Kept { seen, value: Some(vec![1]), ends: Some(9) };
        assert_eq!((kept.clone().live(8), kept.live(9)), (Some(vec![1]), None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            Kept::parse(&bytes);
            Kept::parse(&[b"lk1:7:", &bytes[..], b"\n"].concat());
        }
    }
}
