//! What a holder shows at a fence that lives in a database, and how the fence refuses.

use crate::error::{Error, ErrorKind, Result};
use crate::guard::Lease;
use crate::store::Mode;
use crate::token::{HolderId, Token};
use std::fmt;

/// Who enters a database's fence: a token, and the holder and store that tell it from an equal one.
///
/// [`of`](Self::of) a lease it is complete. [`exclusive`](Self::exclusive) and [`shared`](Self::shared) are for tokens
/// that came from elsewhere, such as the request of another service.
#[derive(Clone, PartialEq, Eq)]
pub struct Entrant {
    token: Token,
    holder: Option<String>,
    store: Option<String>,
    shared: bool,
}

impl Entrant {
    /// The holder of a lease, with the scheme of its store; enters as the lock is held, Exclusive or Shared.
    ///
    /// # Errors
    /// `Unsupported` for permits: their tokens have no order.
    pub fn of(lease: &Lease) -> Result<Self> {
        let shared = match lease.mode() {
            Mode::Exclusive => false,
            Mode::Shared => true,
            _ => {
                return Err(Error::unsupported("a permit cannot pass a fence: tokens of permits have no order")
                    .for_lock(lease.name()));
            }
        };
        let holder = (!shared).then(|| lease.cell.holder.to_hex());
        Ok(Self { token: lease.token(), holder, store: Some(lease.scheme().to_owned()), shared })
    }

    /// An Exclusive holder by its token. Without a holder every entrant of that token counts as the same.
    pub fn exclusive(token: Token) -> Self {
        Self { token, holder: None, store: None, shared: false }
    }

    /// A Shared holder by its token. Not for the token of an Exclusive grant: the fence would then refuse that grant.
    pub fn shared(token: Token) -> Self {
        Self { shared: true, ..Self::exclusive(token) }
    }

    /// Whose token it is; show it at every entry or at none. Default: not shown.
    #[must_use]
    pub fn holder(mut self, holder: HolderId) -> Self {
        self.holder = Some(holder.to_hex());
        self
    }

    /// Which store's number it is, such as its URL's scheme: a fence refuses numbers of two stores. Default: not shown.
    #[must_use]
    pub fn store(mut self, store: impl Into<String>) -> Self {
        self.store = Some(store.into());
        self
    }

    /// The token, as databases have numbers.
    pub fn number(&self) -> i64 {
        // Tokens are below 2^53.
        self.token.get().cast_signed()
    }

    /// The holder's id in hexadecimal digits, if it is shown.
    pub fn holder_hex(&self) -> Option<&str> {
        self.holder.as_deref()
    }

    /// The store, if it is shown.
    pub fn store_name(&self) -> Option<&str> {
        self.store.as_deref()
    }

    /// Whether it enters as a Shared holder.
    pub fn is_shared(&self) -> bool {
        self.shared
    }
}

impl fmt::Debug for Entrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The holder id is a secret while the lock is held.
        let mut shown = f.debug_struct("Entrant");
        shown.field("token", &self.token).field("store", &self.store).field("shared", &self.shared);
        shown.finish_non_exhaustive()
    }
}

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
            feature = "fence-tokio-postgres-0_7",
            feature = "fence-mysql_async-0_37",
            feature = "fence-rusqlite-0_41",
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
