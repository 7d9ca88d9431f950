//! Fuzz targets that stores share: URLs must not tell their passwords, answers of SQL functions must not panic.

use crate::error::Result;
use std::fmt::Debug;

/// The password in the URLs of the corpus.
const SECRET: &str = "geheim";

/// Parses changed URLs of the corpus `target`. None may panic, and no error may tell the password: all that stands between
/// the user's colon and the next `@`, even if a `/` or `?` in it was not escaped. What is read must not tell it either.
pub(in crate::stores) fn urls<T: Debug>(target: &str, parse: impl Fn(&str) -> Result<T>) {
    testkit::fuzz_text(target, |url| {
        let parsed = parse(url);
        let Some(password) = password(url).filter(|password| password.contains(SECRET)) else { return };
        let told = match &parsed {
            // An error shows the value of an option, and then this is one.
            Err(_) if password.split_once('?').is_some_and(|(_, query)| query.contains('=')) => return,
            Err(error) => format!("{error} {error:?}"),
            // Cut at such a mark, it is no password but a host and a path.
            Ok(_) if password.contains(['/', '?']) => return,
            Ok(options) => format!("{options:?}"),
        };
        assert!(!told.contains(SECRET), "{url}: {told}");
    });
}

/// What stands where a password does, if the secret word is nowhere else.
fn password(url: &str) -> Option<&str> {
    let (user, rest) = url.split_once("://")?.1.split_once(':')?;
    let (password, rest) = rest.split_once('@')?;
    let other = user.contains(['/', '?', '@']) || [user, rest].iter().any(|text| text.contains(SECRET));
    (!other).then_some(password)
}

#[test]
fn what_counts_as_a_password() {
    for (url, found) in [("redis://u:geheim@h", "geheim"), ("redis://:x/y@h/1", "x/y"), ("redis://u:p?q@h", "p?q")] {
        assert_eq!(password(url), Some(found), "{url}");
    }
    for url in ["redis://geheim:x@h", "redis://u:geheim@geheim", "redis://h/geheim:x@y", "geheim"] {
        assert_eq!(password(url), None, "{url}");
    }
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod sql {
    use crate::clock::Stamp;
    use crate::name::LockName;
    use crate::register::Pass;
    use crate::store::{Claim, Mode};
    use crate::stores::shared::sql::{Answer, Passed, mode_number, mode_of, note};
    use crate::token::{HolderId, Token};
    use std::sync::Arc;
    use std::time::Duration;

    /// The numbers of a row from bytes: small ones, and those at the limits.
    fn numbers(bytes: &[u8]) -> impl Iterator<Item = Option<i64>> + '_ {
        let number = |byte: &u8| match byte {
            0..=99 => Some(i64::from(*byte)),
            100..=119 => Some(-i64::from(*byte)),
            120..=139 => Some(i64::MAX - i64::from(*byte - 120)),
            140..=159 => Some(i64::MIN + i64::from(*byte - 140)),
            160..=179 => Some(1 << (byte - 130)),
            _ => None,
        };
        bytes.iter().map(number).chain(std::iter::repeat(None))
    }

    #[test]
    fn any_row_of_a_function_is_read() {
        testkit::fuzz("sql_rows", |bytes| {
            let mut next = numbers(bytes);
            let mut take = || next.next().flatten();
            let (code, mode) = (take().unwrap_or(9), mode_of(take().unwrap_or_default()));
            let row = || {
                let mut next = numbers(bytes).skip(2);
                let mut take = || next.next().flatten();
                Answer {
                    holder: None,
                    code,
                    token: take(),
                    lease: take(),
                    place: take(),
                    since: take(),
                    note: note(Some(bytes), take(), Some(bytes)),
                }
            };
            let name = LockName::new("a").unwrap();
            let holder = HolderId::from_u128(7);
            let mut claim = Claim::new(name.clone(), holder, Duration::from_secs(1), Stamp::default(), Arc::default());
            claim.mode = mode;
            // What it becomes is printed too: a time far away must not overflow.
            let _ = format!("{:?} {:?}", row().attempt(&claim), row().renewal(&claim));
            let _ = format!("{:?} {}", row().release(&claim), row().held());
            let pass = Pass::new(name.clone(), Token::MAX, holder);
            let passed = || Passed { code, token: row().token, value: Some(bytes.to_vec()) };
            let _ = format!("{:?} {:?}", passed().entry(&name, &pass), passed().written(&name, &pass));
            if mode != (Mode::Permit { limit: 0 }) {
                assert_eq!(mode_of(mode_number(mode)), mode);
            }
        });
    }
}
