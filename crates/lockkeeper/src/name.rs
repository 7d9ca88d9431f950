//! Lock names: 1–512 bytes, printed so that they cannot harm a terminal or a log.

use crate::error::{Error, ErrorKind};
use std::fmt::{self, Write as _};
use std::sync::Arc;

/// The name of one lock, such as `orders/42`: 1–512 bytes, any bytes.
///
/// Two names are the same lock only if their bytes are equal: case, Unicode normalisation and trailing spaces all
/// count. `Display` escapes whatever could move a cursor or break a log line; [`as_bytes`](Self::as_bytes) is exact.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<[u8]>);

impl LockName {
    /// The longest name, in bytes. Every store can keep that many, exactly or as a collision-checked hash.
    pub const MAX_LEN: usize = 512;

    /// Checks and keeps a name.
    ///
    /// # Errors
    /// `InvalidName` when it is empty or longer than [`MAX_LEN`](Self::MAX_LEN) bytes.
    pub fn new(name: impl AsRef<[u8]>) -> Result<Self, Error> {
        let bytes = name.as_ref();
        if bytes.is_empty() {
            return Err(Error::new(ErrorKind::InvalidName, "a lock name is empty; it must have 1 to 512 bytes"));
        }
        if bytes.len() > Self::MAX_LEN {
            return Err(Error::new(
                ErrorKind::InvalidName,
                format!("a lock name has {} bytes; it must have 1 to {}", bytes.len(), Self::MAX_LEN),
            ));
        }
        Ok(Self(bytes.into()))
    }

    /// The exact bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape(&self.0))
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl AsRef<[u8]> for LockName {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Text that is safe to print: control characters, invisible direction marks, invalid UTF-8 and the backslash itself
/// become `\xNN` or `\u{NNNN}`, so different bytes always print differently.
#[doc(hidden)]
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                c if c.is_ascii_control() => push(&mut out, format_args!("\\x{:02x}", c as u32)),
                c if c.is_control() || is_invisible(c) => push(&mut out, format_args!("\\u{{{:x}}}", c as u32)),
                c => out.push(c),
            }
        }
        for b in chunk.invalid() {
            push(&mut out, format_args!("\\x{b:02x}"));
        }
    }
    out
}

fn push(out: &mut String, text: fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = out.write_fmt(text);
}

/// Characters that reorder or hide their neighbours on a screen.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn length_is_checked_with_a_sentence_that_names_the_limit() {
        assert!(LockName::new("").unwrap_err().to_string().contains("1 to 512"));
        assert!(LockName::new([b'x'; 513]).unwrap_err().to_string().contains("513 bytes"));
        assert!(LockName::new([b'x'; 512]).is_ok());
    }

    #[test]
    fn printing_escapes_what_could_move_a_cursor() {
        let name = LockName::new(b"a\x1b[2J\r\n\xff\\").unwrap();
        assert_eq!(name.to_string(), "a\\x1b[2J\\x0d\\x0a\\xff\\\\");
        assert_eq!(LockName::new("a\u{202e}b").unwrap().to_string(), "a\\u{202e}b");
    }

    proptest! {
        #[test]
        fn different_bytes_print_differently(a in proptest::collection::vec(any::<u8>(), 1..40), b in proptest::collection::vec(any::<u8>(), 1..40)) {
            prop_assert_eq!(a == b, escape(&a) == escape(&b));
            prop_assert!(!escape(&a).chars().any(char::is_control));
        }
    }
}
