//! What an election has in the store: a lock that says which term leads, and a register that says who that is.

use super::super::kept::Kept;
use super::super::patience::pause;
use super::Leader;
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::Keeper;
use crate::lock::Lock;
use crate::name::escape;
use crate::store::Note;
use crate::timing::back_off;
use crate::token::Token;
use serde::{Deserialize, Serialize};
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

/// What stands in the register.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Proclaimed {
    pub(super) term: u64,
    pub(super) sequence: u64,
    pub(super) value: String,
    pub(super) host: String,
    pub(super) pid: u32,
    pub(super) label: String,
}

impl Proclaimed {
    fn leader(self) -> Result<Leader> {
        let holder = Note::new(self.host, self.pid, self.label);
        Ok(Leader { term: Token::new(self.term)?, sequence: self.sequence, value: self.value, holder })
    }
}

impl Office {
    pub(super) fn new(keeper: &Keeper, name: &[u8]) -> Self {
        // An empty name stays empty, and invalid: the recipe's prefix alone names no election.
        let name = if name.is_empty() { Vec::new() } else { [b"election/", name].concat() };
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
        let record = self.keeper.inspect(&self.name).await?;
        Ok(record.and_then(|record| record.holders.iter().filter_map(|holder| holder.token).max()))
    }

    /// The leader, if the term that holds the lock has proclaimed itself.
    ///
    /// First the lock, then the register. An earlier term in the register is over, because another one holds the lock. A
    /// later one was granted between the two looks, so it has led since the caller asked.
    pub(super) async fn leader(&self) -> Result<Option<Leader>> {
        let Some(term) = self.holder().await? else { return Ok(None) };
        let proclaimed = self.register.read().await?.filter(|proclaimed| proclaimed.term >= term.get());
        proclaimed.map(Proclaimed::leader).transpose()
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
        let holder = self.holder().await?.map_or(0, Token::get);
        let proclaimed = self.register.read().await?.map_or(0, |proclaimed| proclaimed.term);
        Ok(holder.max(proclaimed))
    }
}

impl fmt::Debug for Office {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", escape(&self.name))
    }
}
