//! Small values kept beside the locks and guarded by a fence: what fenced writes, run-once and elections stand on.

pub use crate::pass::Pass;

use crate::error::{Error, Result};
use crate::name::LockName;
use crate::token::Token;
use async_trait::async_trait;
use std::time::Duration;

/// Refuses a value that is too large: what [`Register::write`] begins with.
///
/// # Errors
/// `InvalidConfig`, with the size and the limit.
pub fn check_value(value: &[u8]) -> Result<()> {
    if value.len() <= MAX_VALUE {
        return Ok(());
    }
    Err(Error::invalid_config(format!("the value has {} bytes; a register keeps at most {MAX_VALUE}", value.len())))
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
