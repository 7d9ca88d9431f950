//! Errors as `application/problem+json`.

use super::{Hidden, WireHeld, name_of, named};
use crate::error::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

/// What went wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// The word of its kind.
    pub kind: String,
    /// One sentence.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// Which lock it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// The same, when it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_hex: Option<String>,
    /// Who holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<WireHeld>,
    /// The id of the caller's own claim, so that it can go on with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<Hidden>,
    /// The highest token that a fence has seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<u64>,
    /// Why a lock was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether the same request may succeed later.
    pub retryable: bool,
}

impl Problem {
    /// A problem of any kind; `kind` may be a word that only gateways use.
    pub fn new(kind: &str, status: u16, title: impl Into<String>) -> Self {
        Self { kind: kind.into(), status, title: title.into(), ..Self::default() }
    }

    /// An error of the library. What the caller of a gateway has sent wrong is a mistake of its own: 400.
    pub fn of(error: &Error) -> Self {
        let status = match error.kind() {
            ErrorKind::InvalidConfig | ErrorKind::InvalidName => 400,
            kind => kind.http_status(),
        };
        let (lock, lock_hex) = error.lock().map_or((None, None), |lock| named(lock.as_bytes()));
        Self {
            kind: error.kind().as_str().into(),
            title: error.message().into(),
            status,
            lock,
            lock_hex,
            held: error.held().map(Into::into),
            retryable: error.is_retryable(),
            ..Self::default()
        }
    }

    /// The error again, as a client of the gateway meets it.
    pub fn error(self) -> Error {
        let kind = match ErrorKind::from_word(&self.kind) {
            Some(ErrorKind::Busy) => ErrorKind::Busy,
            // It is the gateway that is closed or asked for too much, and not this client's keeper.
            _ if self.retryable => ErrorKind::Unavailable,
            Some(kind) => kind,
            None => match self.status {
                401 | 403 => ErrorKind::Denied,
                400..=499 => ErrorKind::InvalidConfig,
                502..=504 => ErrorKind::Unavailable,
                _ => ErrorKind::Unexpected,
            },
        };
        let mut error = Error::new(kind, self.title);
        if let Ok(lock) = name_of(self.lock.as_deref(), self.lock_hex.as_deref()) {
            error = error.for_lock(&lock);
        }
        match self.held {
            Some(held) => error.with_held(held.into()),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_comes_back_as_what_it_means_to_the_client() {
        for (kind, status, retryable, means) in [
            ("busy", 409, true, ErrorKind::Busy),
            ("closed", 503, true, ErrorKind::Unavailable),
            ("limited", 429, true, ErrorKind::Unavailable),
            ("unavailable", 503, true, ErrorKind::Unavailable),
            ("denied", 403, false, ErrorKind::Denied),
            ("unauthenticated", 401, false, ErrorKind::Denied),
            ("foreign", 409, false, ErrorKind::Foreign),
            ("too-large", 413, false, ErrorKind::InvalidConfig),
            ("word of a later version", 500, false, ErrorKind::Unexpected),
        ] {
            let problem = Problem { retryable, ..Problem::new(kind, status, "said") };
            assert_eq!(problem.error().kind(), means, "{kind}");
        }
    }
}
