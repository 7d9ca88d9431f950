//! Small values kept beside the locks and guarded by a fence: what fenced writes, run-once and elections stand on.

use crate::error::{Error, Result};
use crate::name::LockName;
use crate::token::{HolderId, Token};
use async_trait::async_trait;
use std::time::Duration;

/// What a holder shows at a fence: which lock, which grant.
///
/// A fence lets it pass on a higher token than it has seen, or on an equal one of the *same* holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Pass {
    /// The lock that was granted.
    pub lock: LockName,
    /// The token of the grant.
    pub token: Token,
    /// The holder of the grant.
    pub holder: HolderId,
}

impl Pass {
    /// A pass from its parts; a guard makes its own with [`Guard::pass`](crate::Guard::pass).
    pub fn new(lock: LockName, token: Token, holder: HolderId) -> Self {
        Self { lock, token, holder }
    }

    /// Whether a fence that only Exclusive holders enter, and that has seen `seen`, lets this pass through: the rule of
    /// registers. A fence that Shared holders enter too goes by [`Marks`](crate::fence::Marks).
    ///
    /// # Errors
    /// `InvalidConfig` when the fence belongs to another lock: tokens of different locks do not compare.
    pub fn clears(&self, key: &LockName, seen: Option<&Pass>) -> Result<bool> {
        let Some(seen) = seen else { return Ok(true) };
        compares(key, &seen.lock, &self.lock)?;
        Ok(self.token > seen.token || (self.token == seen.token && self.holder == seen.holder))
    }
}

/// Refuses tokens of a lock other than `guard`, the one that guards `key` so far.
pub(crate) fn compares(key: &LockName, guard: &LockName, lock: &LockName) -> Result<()> {
    if guard == lock {
        return Ok(());
    }
    Err(Error::invalid_config(format!(
        "'{key}' is guarded by lock '{guard}', so a token of lock '{lock}' means nothing there"
    )))
}

/// Refuses a value that is too large: what [`Register::write`] begins with.
///
/// # Errors
/// `InvalidConfig`, with the size and the limit.
pub fn check_value(value: &[u8]) -> Result<()> {
    if value.len() <= MAX_VALUE {
        return Ok(());
    }
    Err(Error::invalid_config(format!("a register value has {} bytes; at most {MAX_VALUE} are kept", value.len())))
}

/// The register part of a store: a key, a small value, and the highest pass seen.
///
/// Only Exclusive holders have a pass, so only they enter and write. A Shared holder reads without one, and its read may
/// be overtaken by a write of a later Exclusive holder, or of one that is late.
///
/// **`ttl` ends the value, never the fence**: the fence of a key is remembered for at least 24 hours after its last use.
#[async_trait]
pub trait Register: Send + Sync {
    /// Raises the fence to `pass`, then reads, in one step: call it before the first read of the protected work.
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry>;

    /// Writes if `pass` is not stale, raising the fence in the same step. `ttl` of `None` keeps the value.
    async fn write(&self, key: &LockName, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<Written>;

    /// The value, without showing a pass.
    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>>;
}

/// The largest value a register keeps, in bytes.
pub const MAX_VALUE: usize = 64 * 1024;

/// How long a fence is remembered after its last use.
pub const FENCE_LIFE: Duration = Duration::from_secs(24 * 3600);

/// The answer to `enter`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The fence is raised; the value as it stands.
    Entered(Option<Vec<u8>>),
    /// A later holder has been here.
    Stale {
        /// The highest token the fence has seen.
        seen: Token,
    },
}

/// The answer to `write`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Written.
    Written,
    /// A later holder has been here; nothing was written.
    Stale {
        /// The highest token the fence has seen.
        seen: Token,
    },
}
