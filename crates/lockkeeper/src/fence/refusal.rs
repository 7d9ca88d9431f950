//! How a fence that lives in a database refuses.

use crate::error::{Error, ErrorKind};
use std::fmt;

/// Why a fence refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// `LK001`: a later holder was here. Roll back and stop.
    Stale,
    /// `LK002`: the fence has seen numbers of another store, which do not compare. Reset it after a move.
    OtherStore,
    /// `LK003`: the name of the resource or the token is out of range.
    Invalid,
}

impl Refusal {
    /// The refusal with this code: `LK001`, `LK002` or `LK003`.
    pub(super) fn of_code(code: &str) -> Option<Self> {
        match code {
            "LK001" => Some(Self::Stale),
            "LK002" => Some(Self::OtherStore),
            "LK003" => Some(Self::Invalid),
            _ => None,
        }
    }

    const fn kind(self) -> ErrorKind {
        match self {
            Self::Stale => ErrorKind::Stale,
            Self::OtherStore => ErrorKind::InvalidConfig,
            Self::Invalid => ErrorKind::InvalidName,
        }
    }
}

/// Why a fence in a database was not entered.
#[derive(Debug)]
#[non_exhaustive]
pub enum FenceError<E> {
    /// The fence refused. Roll the transaction back.
    Refused {
        /// Why.
        refusal: Refusal,
        /// The database's own sentence.
        message: String,
    },
    /// The driver's own error: unreachable, not installed, a deadlock, …
    Driver(E),
}

impl<E> FenceError<E> {
    /// Whether a later holder was here: the lock is no longer ours, so roll back and stop.
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Refused { refusal: Refusal::Stale, .. })
    }

    #[cfg_attr(
        not(any(
            feature = "fence-tokio-postgres-0-7",
            feature = "fence-mysql-async-0-37",
            feature = "fence-rusqlite-0-41",
            feature = "fence-redis-1"
        )),
        allow(dead_code, reason = "only the helpers of drivers make one")
    )]
    pub(super) fn refused(fence: &'static str, refusal: Refusal, message: impl Into<String>) -> Self {
        if refusal == Refusal::Stale {
            crate::metrics::fence_rejected(fence);
        }
        Self::Refused { refusal, message: message.into() }
    }
}

impl<E: fmt::Display> fmt::Display for FenceError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { message, .. } => f.write_str(message),
            Self::Driver(error) => write!(f, "the fence could not be entered: {error}"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for FenceError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused { .. } => None,
            Self::Driver(error) => Some(error),
        }
    }
}

impl<E> From<E> for FenceError<E> {
    fn from(error: E) -> Self {
        Self::Driver(error)
    }
}

/// A stale token becomes `Stale`; a driver's error `Unavailable`, with the driver's own as its source.
impl<E: std::error::Error + Send + Sync + 'static> From<FenceError<E>> for Error {
    fn from(error: FenceError<E>) -> Self {
        match error {
            FenceError::Refused { refusal, message } => Self::new(refusal.kind(), message),
            FenceError::Driver(source) => {
                Self::unavailable("the database failed while the fence was entered").with_source(source)
            }
        }
    }
}
