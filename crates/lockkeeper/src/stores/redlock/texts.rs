//! The texts that nodes are sent: keys, and the value that a claim proposes for the lock.

use crate::error::Result;
use crate::name::LockName;
use crate::store::Claim;
use crate::stores::redis::driver::call::Call;
use crate::stores::redis::keys::{check_name, companion};
use crate::token::HolderId;
use std::io::Write;

/// How many digits the id of a holder has.
const DIGITS: usize = 32;

/// Refuses names that nodes cannot have.
pub(super) fn check(name: &LockName) -> Result<()> {
    check_name(name)
}

/// A call that names the lock, and its fence where the scripts cannot derive that.
pub(super) fn call(name: &LockName) -> Call {
    let lock = name.as_bytes();
    if lock.iter().any(|byte| matches!(byte, b'{' | b'}')) {
        Call::new([lock, &companion(b'f', lock)])
    } else {
        Call::new([lock])
    }
}

/// The key of a claim's tombstone.
pub(super) fn tombstone(name: &LockName, holder: HolderId) -> Vec<u8> {
    let mut key = companion(b'x', name.as_bytes());
    key.push(b':');
    push_hex(&mut key, holder);
    key
}

/// `lk1:HOLDER:`: how the values of a claim begin.
pub(super) fn mine(holder: HolderId) -> Vec<u8> {
    let mut text = Vec::with_capacity(5 + DIGITS);
    push_mine(&mut text, holder);
    text
}

/// The value of a lock that `claim` takes with the token `proposal`.
pub(super) fn value(claim: &Claim, proposal: &str, ttl: &str, since: u64, attempt: u64, note: &str) -> Vec<u8> {
    let mut text = Vec::with_capacity(112 + note.len());
    push_mine(&mut text, claim.holder);
    // Writing into a vector cannot fail.
    let _ = write!(text, "{proposal}:{ttl}:{since}:{attempt}:{note}");
    text
}

fn push_mine(text: &mut Vec<u8>, holder: HolderId) {
    text.extend_from_slice(b"lk1:");
    push_hex(text, holder);
    text.push(b':');
}

fn push_hex(text: &mut Vec<u8>, holder: HolderId) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let bytes = holder.to_u128().to_be_bytes();
    text.extend(bytes.iter().flat_map(|byte| [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;
    use crate::error::ErrorKind;
    use crate::store::{Mode, Note};
    use crate::stores::redis::keys::{Notes, exclusive, parse_holder};
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn a_value_is_read_back() {
        let (holder, note) = (HolderId::random().unwrap(), Arc::new(Note::new("host", 7, "a:b")));
        let name = LockName::new("a").unwrap();
        let claim = Claim::new(name, holder, Duration::from_secs(4), Stamp::from_micros(9), note.clone());
        let value = value(&claim, "1700000000000001", "4000", 1_700_000_000_000_000, 9, &Notes::default().text(&note));
        assert!(value.starts_with(&mine(holder)) && mine(holder) == format!("lk1:{}:", holder.to_hex()).as_bytes());
        let record = parse_holder(exclusive(&value).unwrap(), Mode::Exclusive, None);
        assert_eq!(record.token.map(|token| token.get()), Some(1_700_000_000_000_001));
        assert_eq!(record.note.as_ref(), Some(&*note));
    }

    #[test]
    fn names_of_our_own_keys_are_refused() {
        assert_eq!(check(&LockName::new("lk:a").unwrap()).unwrap_err().kind(), ErrorKind::InvalidName);
        assert!(check(&LockName::new("a{b}").unwrap()).is_ok());
    }
}
