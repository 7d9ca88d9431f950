//! What an election has in the store: a lock that says which term leads, and a register that says who that is.

use super::super::kept::Kept;
use super::super::patience::pause;
use super::Leader;
use super::proclaimed::{Proclaimed, holding, latest, leader};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::Keeper;
use crate::lock::Lock;
use crate::name::escape;
use crate::timing::back_off;
use crate::token::Token;
use std::fmt;
use std::time::Duration;

/// The lock and the register of one election.
#[derive(Clone)]
pub(super) struct Office {
    pub(super) keeper: Keeper,
    /// Of both, without the keeper's prefix.
    name: Vec<u8>,
    pub(super) register: Kept<Proclaimed>,
}

impl Office {
    pub(super) fn new(keeper: &Keeper, name: &[u8]) -> Self {
        let name = super::proclaimed::name(name);
        Self { register: Kept::new(keeper.register(&name)), keeper: keeper.clone(), name }
    }

    pub(super) fn lock(&self) -> Lock {
        self.keeper.lock(&self.name)
    }

    pub(super) fn now(&self) -> Stamp {
        self.keeper.inner.engine.now()
    }

    /// Sleeps until then.
    ///
    /// # Errors
    /// `Closed` when the keeper has ended, whose alarms all ring at once: the caller's loop must not spin.
    pub(super) async fn sleep_until(&self, at: Stamp) -> Result<()> {
        pause(&self.keeper, at.since(self.now())).await;
        if self.now() >= at {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Closed, "the keeper was closed"))
    }

    /// The term that holds the lock.
    async fn holder(&self) -> Result<Option<Token>> {
        Ok(holding(self.keeper.inspect(&self.name).await?.as_ref()))
    }

    /// The leader, if the term that holds the lock has proclaimed itself.
    pub(super) async fn leader(&self) -> Result<Option<Leader>> {
        leader(|| self.keeper.inspect(&self.name), || self.register.read()).await
    }

    /// Waits until another candidate has led after `term`, for at most `limit`; whether one has.
    pub(super) async fn another_after(&self, term: Token, limit: Duration) -> Result<bool> {
        let end = self.now().after(limit);
        for times in 0.. {
            match self.latest().await {
                Ok(latest) if latest > term.get() => return Ok(true),
                Err(error) if !error.is_retryable() => return Err(error),
                _ => {}
            }
            let now = self.now();
            if now >= end {
                break;
            }
            let pause = back_off(Duration::from_millis(50), times, limit / 20);
            self.sleep_until(now.after(pause).min(end)).await?;
        }
        Ok(false)
    }

    /// The latest term that can be seen: one that has ended already stands in the register only.
    async fn latest(&self) -> Result<u64> {
        let holder = self.holder().await?;
        Ok(latest(holder, self.register.read().await?.as_ref()))
    }
}

impl fmt::Debug for Office {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", escape(&self.name))
    }
}
