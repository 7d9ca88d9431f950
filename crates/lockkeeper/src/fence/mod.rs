//! The resource's side: refuses a holder that was paused past its lease and does not know it yet.
//!
//! - [`Fence`]: a value in this process.
//! - [`postgres`], [`mysql`], [`sqlite`]: rows of your own database. The texts need no driver; a feature named after a
//!   driver and its version (`fence-tokio-postgres-0-7`, `fence-mysql-async-0-37`, `fence-rusqlite-0-41`) adds `enter`.
//! - [`redis`]: a plain string in Redis; `fence-redis-1` adds `enter` and `write`.
//!
//! A holder shows its [`Pass`], a Shared holder its [`SharedPass`]. One rule holds for every fence: **enter before the
//! first read** of the protected work. `docs/fencing.md` says why.

mod marks;
pub mod mysql;
pub mod postgres;
pub mod redis;
mod refusal;
pub mod sqlite;

pub use marks::Marks;
pub use refusal::{FenceError, Refusal};

use crate::error::{Error, ErrorKind, Result};
use crate::metrics;
use crate::name::LockName;
use crate::pass::{Pass, SharedPass};
use crate::token::Token;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The layout that this version installs in databases. Layout 1 had no mark of Shared holders: a stale Exclusive holder
/// could write after a Shared entry. Installing again upgrades it.
pub const LAYOUT: i64 = 2;

/// Whether an error, or any of its sources, is a fence's refusal of a stale token. It finds an error of kind `Stale`, a
/// [`FenceError`], and the error of a driver whose feature is on, for entries by plain SQL. Roll back and stop.
///
/// ```
/// # use lockkeeper::{Error, ErrorKind};
/// let error = Error::new(ErrorKind::Stale, "a later holder was here");
/// let wrapped = Error::unavailable("the order was not settled").with_source(error);
/// assert!(lockkeeper::fence::is_stale(&wrapped));
/// ```
///
/// With anyhow: `is_stale(error.as_ref())`. For drivers without a feature, each database's module has an `is_stale`
/// that takes the error's code.
pub fn is_stale(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(|error| {
        let ours = error.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::Stale);
        ours || OF_DRIVERS.iter().any(|says_stale| says_stale(error))
    })
}

/// The drivers' own errors, and those of their `enter`.
const OF_DRIVERS: &[fn(&(dyn std::error::Error + 'static)) -> bool] = &[
    #[cfg(feature = "fence-tokio-postgres-0-7")]
    postgres::says_stale,
    #[cfg(feature = "fence-mysql-async-0-37")]
    mysql::says_stale,
    #[cfg(feature = "fence-rusqlite-0-41")]
    sqlite::says_stale,
    #[cfg(feature = "fence-redis-1")]
    redis::says_stale,
];

/// A resource in this process that only the latest holder may touch.
///
/// [`enter`](Self::enter) before the first read: it raises the fence, so that an older holder's late write cannot slip
/// in between this holder's read and write.
///
/// ```
/// use lockkeeper::{Fence, Keeper};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let stock = Fence::new("stock", 5)?;
/// let keeper = Keeper::connect("memory:").await?;
/// let guard = keeper.lock("stock").acquire().await?;
/// let pass = guard.pass()?;
/// let seen = stock.enter(&pass, |n| *n)?;
/// stock.enter(&pass, |n| *n = seen - 1)?;
/// # assert_eq!(stock.enter(&pass, |n| *n)?, 4);
/// # guard.release().await
/// # }
/// ```
pub struct Fence<T> {
    name: LockName,
    inner: Mutex<(Marks, T)>,
}

impl<T> Fence<T> {
    /// A fence round `value`; `name` is for its messages.
    ///
    /// # Errors
    /// `InvalidName` when the name is empty or too long.
    pub fn new(name: impl AsRef<[u8]>, value: T) -> Result<Self> {
        let name = LockName::new(name)?;
        metrics::fence_used("in-process");
        Ok(Self { name, inner: Mutex::new((Marks::default(), value)) })
    }

    /// Raises the fence to `pass` and works on the value, in one step.
    ///
    /// # Errors
    /// `Stale` when a later holder has entered, Exclusive or Shared. `InvalidConfig` when the fence belongs to another lock.
    pub fn enter<R>(&self, pass: &Pass, act: impl FnOnce(&mut T) -> R) -> Result<R> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if !inner.0.enter(&self.name, pass)? {
            return Err(self.stale(pass.token, &inner.0));
        }
        Ok(act(&mut inner.1))
    }

    /// Reads the value under a Shared lock: passes unless a later Exclusive holder has entered, and keeps every earlier
    /// one out from now on. Shared holders do not keep each other out.
    ///
    /// # Errors
    /// `Stale` when a later Exclusive holder has entered. `InvalidConfig` when the fence belongs to another lock.
    pub fn enter_shared<R>(&self, pass: &SharedPass, act: impl FnOnce(&T) -> R) -> Result<R> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if !inner.0.enter_shared(&self.name, pass)? {
            return Err(self.stale(pass.token, &inner.0));
        }
        Ok(act(&inner.1))
    }

    /// Ends the fence and returns its value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner).1
    }

    fn stale(&self, shown: Token, seen: &Marks) -> Error {
        metrics::fence_rejected("in-process");
        let seen = seen.highest().map_or(0, Token::get);
        Error::new(
            ErrorKind::Stale,
            format!("token {shown} is stale: the fence of '{}' has seen {seen}, a later holder was here", self.name),
        )
    }
}

impl<T> fmt::Debug for Fence<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("name", &self.name).finish_non_exhaustive()
    }
}
