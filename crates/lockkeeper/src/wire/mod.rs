//! What a gateway and its clients say to each other: JSON over HTTP, version 1. For this repository's own crates; it may
//! change in any version.
//!
//! A name is `name`, or `name_hex` when it is not UTF-8: the same two fields as in the command line's JSON. Times are
//! milliseconds for people and scripts, and microseconds where a deadline is computed from them.

mod claims;
mod events;
mod info;
mod locks;
mod problem;
mod registers;

pub use claims::{Answer, Answers, Claims, WireClaim, WireGrant, WireHeld};
pub use events::{Told, WireEvent};
pub use info::Info;
pub use locks::{WireHolder, WireLock, WirePage, WireWaiter, mode_of, mode_word};
pub use problem::Problem;
pub use registers::{Entered, Fenced, WirePass};

use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::HolderId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The version of every object; grows when a field changes its meaning.
pub const VERSION: u32 = 1;

/// The header with the id of the client's keeper, to which events go.
pub const KEEPER_HEADER: &str = "lockkeeper-keeper";

/// The header with the id of the gateway that answered.
pub const GATEWAY_HEADER: &str = "lockkeeper-gateway";

/// The most claims of one request.
pub const MOST_CLAIMS: usize = 1000;

/// The port of a gateway.
pub const PORT: u16 = 7420;

/// The digits of a holder id: a secret, of which `Debug` shows the first four.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hidden(pub String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", self.0.chars().take(4).collect::<String>())
    }
}

impl From<HolderId> for Hidden {
    fn from(id: HolderId) -> Self {
        Self(id.to_hex())
    }
}

impl Hidden {
    /// The id, unless it is none that a claim can have.
    ///
    /// # Errors
    /// `InvalidConfig`, without the digits.
    pub fn id(&self) -> Result<HolderId> {
        let bad = "'holder' must be 32 hexadecimal digits, fresh and random for every acquisition";
        let id = HolderId::from_hex(&self.0).filter(|id| *id != HolderId::UNKNOWN);
        id.ok_or_else(|| Error::invalid_config(bad))
    }
}

/// Bytes as two hexadecimal digits each.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads back [`hex`]; `None` when it is anything else.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    digits.chunks(2).map(|pair| u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()).collect()
}

/// The two fields of a name: one of them is `None`.
pub fn named(name: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(name) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(hex(name))),
    }
}

/// The bytes of the two fields of a name.
///
/// # Errors
/// `InvalidName` unless exactly one is given, and the second in hexadecimal digits.
pub fn name_bytes(name: Option<&str>, name_hex: Option<&str>) -> Result<Vec<u8>> {
    let bad = |text: &str| Error::new(ErrorKind::InvalidName, text);
    match (name, name_hex) {
        (Some(name), None) => Ok(name.as_bytes().to_vec()),
        (None, Some(hex)) => unhex(hex).ok_or_else(|| bad("'name_hex' must be pairs of hexadecimal digits")),
        _ => Err(bad("a name is given as 'name', or as 'name_hex' when it is not UTF-8")),
    }
}

/// The name of the two fields.
///
/// # Errors
/// As [`name_bytes`], and for a name that no lock can have.
pub fn name_of(name: Option<&str>, name_hex: Option<&str>) -> Result<LockName> {
    LockName::new(name_bytes(name, name_hex)?)
}

/// A time as JSON numbers have it.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A time as JSON numbers have it.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_any_bytes_comes_back() {
        for name in [&b"orders/42"[..], b"\xff\x00", "käse".as_bytes()] {
            let (text, digits) = named(name);
            assert_eq!(name_of(text.as_deref(), digits.as_deref()).unwrap().as_bytes(), name);
        }
        for (name, digits) in
            [(None, None), (Some("a"), Some("61")), (None, Some("6")), (None, Some("zz")), (Some(""), None)]
        {
            assert_eq!(name_of(name, digits).unwrap_err().kind(), ErrorKind::InvalidName, "{name:?} {digits:?}");
        }
    }
}
