//! What a store finds wrong with its server: what `lockkeeper doctor` shows.

use std::borrow::Cow;

/// How bad a finding is, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// The server refused to tell, or did not answer.
    Unknown,
    /// Worth knowing; nothing is wrong.
    Note,
    /// Locks work, and can be forgotten, be slow or be lost under conditions that the finding names.
    Warn,
    /// Locks do not work here, or exclude nothing.
    Fail,
}

impl CheckState {
    /// The word for machines.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One finding of [`Store::checks`](super::Store::checks), in words for an operator. It never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// What was looked at, as one word that stays the same, such as `redis-eviction`.
    pub id: Cow<'static, str>,
    /// How bad it is.
    pub state: CheckState,
    /// Which server was asked. Default: empty, where there is only one.
    pub at: String,
    /// What was found.
    pub found: String,
    /// Why it matters for locks. Default: empty.
    pub why: Cow<'static, str>,
    /// What to do about it. Default: empty.
    pub fix: Cow<'static, str>,
}

impl Check {
    /// A finding without a reason and a remedy.
    pub fn new(id: impl Into<Cow<'static, str>>, state: CheckState, found: impl Into<String>) -> Self {
        let (at, why, fix) = (String::new(), Cow::Borrowed(""), Cow::Borrowed(""));
        Self { id: id.into(), state, at, found: found.into(), why, fix }
    }

    /// Says which server was asked: `host:port`, never a login.
    #[must_use]
    pub fn at(mut self, server: impl Into<String>) -> Self {
        self.at = server.into();
        self
    }

    /// Says why it matters for locks.
    #[must_use]
    pub fn why(mut self, why: impl Into<Cow<'static, str>>) -> Self {
        self.why = why.into();
        self
    }

    /// Says what to do about it.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<Cow<'static, str>>) -> Self {
        self.fix = fix.into();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_is_the_greatest() {
        use CheckState::{Fail, Note, Ok, Unknown, Warn};
        let all = [Ok, Unknown, Note, Warn, Fail];
        assert!(all.is_sorted(), "{all:?}");
        assert_eq!(all.map(CheckState::as_str), ["ok", "unknown", "note", "warn", "fail"]);
    }
}
