//! For the tests of every store's options: URLs that must be refused.

use crate::error::{ErrorKind, Result};
use std::fmt::Debug;

/// The password in the URLs of these tests.
const SECRET: &str = "geheim";

/// Checks that every URL of `urls`, one a line, is a mistake of the caller, and that no error tells the password.
pub(in crate::stores) fn refused<T: Debug>(parse: impl Fn(&str) -> Result<T>, urls: &str) {
    for url in urls.lines().map(str::trim).filter(|url| !url.is_empty()) {
        let error = parse(url).expect_err(url);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
        assert!(!format!("{error:?}").contains(SECRET), "{url}: {error:?}");
    }
}
