//! Leader election: of several candidates one leads, and the others can find out which.
//!
//! **How.** A leader holds the lock `election/NAME`. Its *term* is the token of that grant, so terms only rise. It then
//! proclaims a value, such as its address, in the register `election/NAME`, where the fence refuses earlier terms.
//!
//! **Two ways to lead.** [`Election::lead`] runs a body while this candidate leads, cancels it in time, and campaigns
//! again. [`Election::campaign`] gives a [`Leadership`] to hold.
//!
//! **Followers** ask [`Election::leader`], or follow [`Election::observe`].

#[cfg(test)]
mod fuzz;
mod lead;
mod leadership;
mod observer;
mod office;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod proclaimed;
#[cfg(not(feature = "internals"))]
#[allow(unreachable_pub, reason = "the models see all of it, by the feature `internals`")]
pub(super) mod proclaimed;

pub use lead::After;
pub(crate) use lead::Rounds;
pub use leadership::{Leadership, Term};
pub use observer::Observer;

use super::patience::need_registers;
use crate::error::{Error, Result};
use crate::keeper::{Keeper, note};
use crate::lock::Lock;
use crate::store::Note;
use crate::token::Token;
use office::Office;
use proclaimed::check_value;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The largest value that a leader proclaims, in bytes: room for addresses, far from the 64 KiB of a register even when
/// every character has to be escaped.
pub const MAX_VALUE: usize = 4096;

/// Soon enough for a person or a client that looks for its leader, and no load for a store.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Two calls each hundredth of a second are a load that no caller means.
const LOOK_FLOOR: Duration = Duration::from_millis(10);

/// A wait with a limit that is never reached: without one the keeper would warn after 30 s, and candidates wait for days.
const AS_LONG_AS_IT_TAKES: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

impl Keeper {
    /// Describes an election; no I/O. Its lock and its register are both called `election/NAME`, after the keeper's prefix.
    /// An invalid name surfaces at the first use.
    pub fn election(&self, name: impl AsRef<[u8]>) -> Election {
        Election {
            office: Office::new(self, name.as_ref()),
            ttl: None,
            wait: None,
            label: None,
            value: String::new(),
            look_every: LOOK_EVERY,
        }
    }
}

/// One leader among candidates; cheap to clone, owns its keeper. Settings left alone are the keeper's.
///
/// ```
/// use lockkeeper::Keeper;
/// use lockkeeper::recipes::election::After;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let keeper = Keeper::connect("memory:").await?;
/// let election = keeper.election("scheduler").value("10.0.0.7:8080");
/// election
///     .lead(|term| async move {
///         // Runs while this process leads; dropped at an await before its lease can end.
///         println!("I lead, term {}", term.number());
///         After::Stop
///     })
///     .await?;
/// # assert!(election.leader().await?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "an election does nothing until it is campaigned in or looked at"]
pub struct Election {
    office: Office,
    ttl: Option<Duration>,
    wait: Option<Duration>,
    label: Option<String>,
    value: String,
    look_every: Duration,
}

/// Who leads, as it proclaimed itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The token of its grant: every later leader's is greater.
    pub term: Token,
    /// Counts the values that were proclaimed in this term, from 1.
    pub sequence: u64,
    /// What it proclaimed last, such as its address.
    pub value: String,
    /// The leader's machine, process and label.
    pub holder: Note,
}

impl Election {
    /// How long a leader that died stays leader, at worst. Default: the keeper's, 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long [`campaign`](Self::campaign) waits; [`lead`](Self::lead) waits for as long as it takes. Default: the
    /// keeper's, for ever.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// A few words about this candidate, at most 200 bytes. Default: the keeper's.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// What [`lead`](Self::lead) proclaims when a term begins, such as this candidate's address; at most 4096 bytes.
    /// Default: an empty text.
    pub fn value(mut self, value: impl Into<String>) -> Self {
        self.value = value.into();
        self
    }

    /// How often an [`Observer`] looks, at least 10 ms: a register cannot be watched. Each look is two calls to the store.
    /// Default: 1 s.
    pub fn look_every(mut self, look_every: Duration) -> Self {
        self.look_every = look_every;
        self
    }

    /// Waits until this candidate leads, and proclaims `value`, of at most 4096 bytes.
    ///
    /// # Errors
    /// `Busy` when [`wait`](Self::wait) ended first. `Lost`, `Stale` or `Unavailable` when the term ended, or the store
    /// failed, before the value was proclaimed; the lock is then given back. `Unsupported` on a store without registers.
    /// `InvalidConfig` for a value that is too long. Otherwise as [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// # Cancellation
    /// Nothing stays behind: a lock that was granted is given back. The value may stay in the register, but no
    /// [`leader`](Self::leader) names it.
    pub async fn campaign(&self, value: impl Into<String>) -> Result<Leadership> {
        let wait = self.wait.or(self.office.keeper.inner.defaults.wait).unwrap_or(AS_LONG_AS_IT_TAKES);
        self.campaign_for(value.into(), wait).await
    }

    async fn campaign_for(&self, value: String, wait: Duration) -> Result<Leadership> {
        need_registers(&self.office.keeper, "an election")?;
        check_value(&value)?;
        let note = self.note()?;
        let guard = self.lock().wait(wait).acquire().await?;
        let term = Term::new(self.office.clone(), guard.lease().clone(), note)?;
        // Cancelled in time, as all work: a value that is proclaimed too late is refused, and must not be waited for. The
        // guard that is dropped with an error gives the lock back.
        guard.run(term.proclaim(value)).await.flatten()?;
        Ok(Leadership::new(guard, term))
    }

    /// Who leads at this moment, if its lease has not ended and it has proclaimed itself.
    ///
    /// `None` also while a new leader holds the lock and has not proclaimed its first value: the term before is over then.
    /// A leader that has died is named until its lease ends.
    ///
    /// # Errors
    /// `Unsupported` on a store without registers. `Unavailable` when the store gives no answer. `Foreign` when the
    /// register holds a value that no leader wrote.
    ///
    /// # Cancellation
    /// Changes nothing.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        need_registers(&self.office.keeper, "an election")?;
        self.office.leader().await
    }

    /// Follows the leaders: first the one of now, then each that is found later, also when it proclaims another value. No
    /// I/O yet.
    ///
    /// It looks every [`look_every`](Self::look_every), because a register cannot be watched. Of what happens between two
    /// looks it tells the latest.
    pub fn observe(&self) -> Observer {
        let checked = need_registers(&self.office.keeper, "an election").and_then(|()| check_look(self.look_every));
        Observer::new(self.office.clone(), self.look_every, checked.err())
    }

    fn lock(&self) -> Lock {
        let mut lock = self.office.lock();
        if let Some(ttl) = self.ttl {
            lock = lock.ttl(ttl);
        }
        if let Some(label) = &self.label {
            lock = lock.label(label);
        }
        lock
    }

    fn note(&self) -> Result<Arc<Note>> {
        match &self.label {
            Some(label) => note(label).map(Arc::new),
            None => Ok(self.office.keeper.inner.defaults.note.clone()),
        }
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("name", &self.office).finish_non_exhaustive()
    }
}

fn check_look(look_every: Duration) -> Result<()> {
    if look_every >= LOOK_FLOOR {
        return Ok(());
    }
    let short = crate::duration::short;
    let text = format!("look_every {} is too short; it must be at least {}", short(look_every), short(LOOK_FLOOR));
    Err(Error::invalid_config(text))
}
