//! A register as its users see it: one key, and what a holder does with it.

use super::Inner;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::register::{Entry, Pass, Register, Written};
use crate::store::Store;
use crate::token::Token;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A small value in the store, at most 64 KiB, guarded by a fence: only the latest Exclusive holder writes it.
///
/// [`Keeper::register`](crate::Keeper::register) makes one; it is cheap to clone and owns its keeper. Its key has the
/// keeper's prefix, as lock names have.
///
/// ```
/// use lockkeeper::Keeper;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let keeper = Keeper::connect("memory:").await?;
/// let guard = keeper.lock("stock").acquire().await?;
/// let (stock, pass) = (keeper.register("stock"), guard.pass()?);
/// let before = stock.enter(&pass).await?; // first: from here on no earlier holder can write
/// stock.write(&pass, b"5", None).await?;
/// # assert_eq!((before, stock.read().await?), (None, Some(b"5".to_vec())));
/// # guard.release().await
/// # }
/// ```
#[derive(Clone)]
pub struct FencedRegister {
    keeper: Arc<Inner>,
    key: Result<LockName>,
}

impl FencedRegister {
    pub(super) fn new(keeper: Arc<Inner>, key: &[u8]) -> Self {
        let key = keeper.full_name(key);
        Self { keeper, key }
    }

    /// Raises the fence to `pass`, then reads the value, in one step: before the first read of the protected work.
    ///
    /// # Errors
    /// `Stale` when a later holder has been there. `Unsupported` when the store keeps no registers. `InvalidConfig` when
    /// another lock guards the register. `Unavailable` when the store gives no answer.
    ///
    /// # Cancellation
    /// The fence may or may not have been raised; enter again.
    pub async fn enter(&self, pass: &Pass) -> Result<Option<Vec<u8>>> {
        let (key, shown) = (self.ready()?, pass.clone());
        let ask =
            self.keeper.engine.ask_store(move |s| Box::pin(async move { registers(s)?.enter(&key, &shown).await }));
        match ask.await.map_err(|e| self.keeper.during(e, "enter"))? {
            Entry::Entered(value) => Ok(value),
            Entry::Stale { seen } => Err(self.stale("enter", pass.token, seen)),
        }
    }

    /// Writes the value if `pass` is not stale, in one step. A `ttl` ends the value, never the fence; `None` keeps it.
    ///
    /// # Errors
    /// `Stale` when a later holder has been there, and then nothing was written; otherwise as [`enter`](Self::enter).
    /// `InvalidConfig` also for a value of more than 64 KiB.
    ///
    /// # Cancellation
    /// The value may or may not have been written.
    pub async fn write(&self, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<()> {
        let (key, shown, value) = (self.ready()?, pass.clone(), value.to_vec());
        let ask = self
            .keeper
            .engine
            .ask_store(move |s| Box::pin(async move { registers(s)?.write(&key, &shown, &value, ttl).await }));
        match ask.await.map_err(|e| self.keeper.during(e, "write"))? {
            Written::Written => Ok(()),
            Written::Stale { seen } => Err(self.stale("write", pass.token, seen)),
        }
    }

    /// Reads the value without showing a pass; `None` when there is none.
    ///
    /// # Errors
    /// `Unsupported` when the store keeps no registers. `Unavailable` when the store gives no answer.
    ///
    /// # Cancellation
    /// Changes nothing.
    pub async fn read(&self) -> Result<Option<Vec<u8>>> {
        let key = self.ready()?;
        let ask = self.keeper.engine.ask_store(move |s| Box::pin(async move { registers(s)?.read(&key).await }));
        ask.await.map_err(|e| self.keeper.during(e, "read"))
    }

    /// The key, unless it is invalid or this process is a fork.
    fn ready(&self) -> Result<LockName> {
        let key = self.key.clone()?;
        self.keeper.engine.check_fork()?;
        Ok(key)
    }

    fn stale(&self, op: &'static str, shown: Token, seen: Token) -> Error {
        crate::metrics::fence_rejected("register");
        let key = self.key.as_ref().map(LockName::to_string).unwrap_or_default();
        let text = format!("token {shown} is stale: the fence of '{key}' has seen {seen}, a later holder was here");
        self.keeper.during(Error::new(ErrorKind::Stale, text), op)
    }
}

impl fmt::Debug for FencedRegister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedRegister").field("key", &self.key).finish_non_exhaustive()
    }
}

/// The store's registers; the one place that asks for them.
fn registers(store: &dyn Store) -> Result<&dyn Register> {
    store.registers().ok_or_else(|| {
        let scheme = store.info().scheme;
        Error::unsupported(format!(
            "{scheme} keeps no registers; a redis://, postgres://, mysql://, etcd:// or sqlite: URL has them"
        ))
    })
}
