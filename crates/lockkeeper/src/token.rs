//! Fencing tokens and holder ids: the two numbers that tell one grant from another.

use crate::error::{Error, ErrorKind};
use std::fmt;

/// The fencing number of one grant.
///
/// For Exclusive grants it is strictly greater than every earlier token of that name. It is always positive and below
/// 2^53, so that it survives a trip through JSON, JavaScript and Lua.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    /// The largest token: 2^53 − 1.
    pub const MAX: Token = Token((1 << 53) - 1);

    /// A token from its number.
    ///
    /// # Errors
    /// `Unexpected` when the number is 0 or does not fit below 2^53: a store's counter was damaged.
    pub fn new(number: u64) -> Result<Self, Error> {
        if number == 0 || number > Self::MAX.0 {
            return Err(Error::new(
                ErrorKind::Unexpected,
                format!("{number} cannot be a token; tokens are 1 to {}", Self::MAX.0),
            ));
        }
        Ok(Self(number))
    }

    /// The number, to hand to whatever is written under the lock.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The number, as databases have numbers.
    pub(crate) fn to_i64(self) -> i64 {
        // Tokens are below 2^53.
        self.0.cast_signed()
    }

    /// The token after `previous` (0: none yet) on a store whose clock says `clock_us`: `max(previous + 1, clock)`.
    ///
    /// The clock is the floor that keeps tokens rising after a store has lost its data.
    ///
    /// # Errors
    /// `Unexpected` when the result would reach 2^53: never wraps.
    pub fn next(previous: u64, clock_us: u64) -> Result<Self, Error> {
        Self::new(previous.saturating_add(1).max(clock_us))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who holds: 128 random bits made afresh for every acquisition, compared in every later step.
///
/// It is the secret of a hold (a client that knows it can release), so `Debug` shows only its first four digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(u128);

impl HolderId {
    /// The id of a holder that is not known; no grant has it.
    pub const UNKNOWN: Self = Self(0);

    /// A fresh id from the operating system's random source.
    ///
    /// # Errors
    /// `Unexpected` when the system has no random source to offer.
    pub fn random() -> Result<Self, Error> {
        let mut bytes = [0; 16];
        fill(&mut bytes)?;
        Ok(Self(u128::from_be_bytes(bytes)))
    }

    /// That many fresh ids, for one call to the random source.
    pub(crate) fn many(count: usize) -> Result<Vec<Self>, Error> {
        let mut bytes = vec![0; count * size_of::<Self>()];
        fill(&mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|id| Self(u128::from_be_bytes(*id))).collect())
    }

    /// An id from its number: for stores that keep ids, and for stores local to a process, where a counter is enough.
    pub const fn from_u128(number: u128) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn to_u128(self) -> u128 {
        self.0
    }

    /// 32 hexadecimal digits.
    pub fn to_hex(self) -> String {
        format!("{:032x}", self.0)
    }

    /// Reads back [`to_hex`](Self::to_hex); `None` when it is anything else.
    pub fn from_hex(text: &str) -> Option<Self> {
        // Not `from_str_radix`, which multiplies 128 bits for each digit: this is on the way of every grant that is pushed.
        let mut halves = [0u64; 2];
        if text.len() != 32 {
            return None;
        }
        for (half, digits) in halves.iter_mut().zip(text.as_bytes().chunks_exact(16)) {
            for digit in digits {
                *half = *half << 4 | u64::from(char::from(*digit).to_digit(16)?);
            }
        }
        Some(Self(u128::from(halves[0]) << 64 | u128::from(halves[1])))
    }
}

fn fill(bytes: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(bytes)
        .map_err(|e| Error::new(ErrorKind::Unexpected, format!("the system's random source failed: {e}")))
}

impl fmt::Debug for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", &self.to_hex()[..4])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_never_wraps_and_never_falls() {
        assert_eq!(Token::next(0, 7).unwrap().get(), 7);
        assert_eq!(Token::next(9, 7).unwrap().get(), 10);
        assert_eq!(Token::next(Token::MAX.get() - 1, 0).unwrap(), Token::MAX);
        assert!(Token::next(Token::MAX.get(), 0).is_err());
        assert!(Token::next(u64::MAX, 0).is_err());
        assert!(Token::new(0).is_err());
    }

    #[test]
    fn a_holder_id_survives_its_text_and_hides_in_debug() {
        let id = HolderId::random().unwrap();
        assert_eq!(HolderId::from_hex(&id.to_hex()), Some(id));
        let text = "0123456789ABCDEFfedcba9876543210";
        assert_eq!(HolderId::from_hex(text), Some(HolderId::from_u128(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210)));
        for bad in [
            "",
            "xyz",
            &text[1..],
            "0123456789abcdef_edcba9876543210",
            "+123456789abcdefedcba98765432100",
            "é123456789abcdefedcba9876543210",
        ] {
            assert_eq!(HolderId::from_hex(bad), None, "{bad}");
        }
        assert!(!format!("{id:?}").contains(&id.to_hex()[4..]));
    }
}
