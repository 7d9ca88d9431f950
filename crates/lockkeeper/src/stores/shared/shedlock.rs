//! ShedLock's table, as rules that a SQL store can follow: which row a name is, who has it, how time is written.
//!
//! ShedLock keeps `shedlock(name varchar(64) primary key, lock_until, locked_at, locked_by)`. A row whose `lock_until` has
//! passed is free; it is never deleted. Its times are UTC without a zone, from the database's clock when the
//! application says `usingDbTime()`. A store that takes the row first and then keeps it in step with its own lease
//! excludes those applications and is excluded by them.
//!
//! Here is what does not depend on the database; [`Dialect`] is what does.

use crate::error::Error;
use crate::name::LockName;
use sha2::{Digest as _, Sha256};

/// ShedLock's own name for its table.
pub(crate) const TABLE: &str = "shedlock";

/// The longest name ShedLock's column takes.
const MAX_KEY: usize = 64;

/// How the rows of other names begin.
const HASHED: &str = "lk-hash-";

/// What stands before the token in `locked_by`, so that a row of ours is known.
pub(crate) const MARK: &str = " lockkeeper:";

/// Which table, and what its times mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    /// Its name: letters, digits and underscores.
    pub(crate) name: String,
    /// An expression for the session time zone of the other applications, where the database converts by it.
    pub(crate) zone: String,
}

/// How a database writes what the rules need.
pub(crate) trait Dialect {
    /// The table's name, quoted.
    fn quoted(&self, table: &str) -> String;
    /// `micros` since 1970 as UTC without a zone.
    fn utc(&self, micros: &str) -> String;
    /// The table as ShedLock's documentation describes it, but comparing names byte by byte.
    fn create(&self, table: &str) -> String;
}

/// The row of a name: the name itself where every database and collation keeps it apart from others, otherwise a hash.
///
/// Upper case stays: applications use it, and a table that folds it is a choice of theirs.
pub(crate) fn key(name: &LockName) -> String {
    match std::str::from_utf8(name.as_bytes()) {
        Ok(text) if is_usual(text) => text.to_owned(),
        _ => {
            let hash = Sha256::digest(name.as_bytes());
            hash.iter().take(28).fold(HASHED.to_owned(), |text, byte| text + &format!("{byte:02x}"))
        }
    }
}

/// Trailing spaces count in some collations and not in others; what looks like one of our hashes is not taken for one.
fn is_usual(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_graphic() || b == b' ';
    text.len() <= MAX_KEY && text.bytes().all(plain) && !text.ends_with(' ') && !text.starts_with(HASHED)
}

/// What is said of a claim that is not Exclusive.
pub(crate) fn only_exclusive(store: &'static str) -> Error {
    Error::unsupported("ShedLock's table knows Exclusive locks only").in_store(store)
}

/// Who has it, for the people who read the table: the host, in plain letters. The store adds [`MARK`] and the token.
pub(crate) fn locked_by(host: &str) -> String {
    host.chars().filter(|c| c.is_ascii_graphic()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_names_are_kept_and_others_hashed() {
        let key = |bytes: &[u8]| key(&LockName::new(bytes).unwrap());
        for usual in ["reportJob", "a b", "orders/42", &"x".repeat(64)] {
            assert_eq!(key(usual.as_bytes()), usual);
        }
        let odd: [&[u8]; 6] = [&[b'x'; 65], b"a ", b"a\n", "é".as_bytes(), b"\xff", b"\0"];
        for bytes in odd {
            let hashed = key(bytes);
            assert!(hashed.starts_with("lk-hash-") && hashed.len() == 64, "{hashed}");
        }
        assert_ne!(key(b"a "), key(b"a  "));
    }

    #[test]
    fn hosts_cannot_break_the_column() {
        assert_eq!(locked_by("web-1\n\u{202e}é"), "web-1");
        assert_eq!(locked_by(&"x".repeat(500)).len(), 200);
    }
}
