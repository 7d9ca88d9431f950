//! For tests of code that uses locks: a clock moved by hand, forced loss, and a store that misbehaves on request.
//!
//! ```
//! use lockkeeper::testing::{self, Clock};
//! use lockkeeper::{Keeper, LossReason, Phase};
//! use std::time::Duration;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lockkeeper::Result<()> {
//! let clock = Clock::new();
//! let keeper = Keeper::builder().clock(&clock).connect("memory:").await?;
//! let guard = keeper.lock("job").acquire().await?;
//! clock.advance(Duration::from_secs(3600)); // renewed all the while
//! assert_eq!(guard.phase(), Phase::Held);
//! clock.suspend(Duration::from_secs(60)); // nothing ran meanwhile, as when a laptop sleeps
//! assert_eq!(guard.phase(), Phase::Lost(LossReason::Expired));
//!
//! let guard = keeper.lock("other").acquire().await?;
//! testing::lose(guard.lease(), LossReason::Broken);
//! assert_eq!(guard.lost().await, LossReason::Broken);
//! # Ok(())
//! # }
//! ```
//!
//! The paused clock of tokio (`start_paused = true`, `tokio::time::advance`) does not shorten a keeper's waits. A
//! keeper keeps time on a thread of its own, by the clock that it was built with. Without [`Clock`] a `.wait(60 s)`
//! takes 60 s.

#[cfg(feature = "internals")]
mod by_hand;
mod faults;
mod listener;

pub use crate::clock::manual::Clock;
#[cfg(feature = "internals")]
pub(crate) use by_hand::Hands;
pub use faults::{Faults, FaultyStore, Op};
pub use listener::Listener;

use crate::guard::Lease;
#[cfg(feature = "internals")]
use crate::keeper::Keeper;
use crate::store::LossReason;
use crate::stores::memory::MemoryStore;

/// Makes a guard lose its lock at once, as if the store had said so; the lock is free for others soon after. Takes a
/// [`Lease`], so that work inside [`Lock::with`](crate::Lock::with) can be made to lose too.
pub fn lose(lease: &Lease, reason: LossReason) {
    lease.lose(reason);
}

/// A memory store of its own whose leases end by `clock`: give the same clock to the keepers over it.
pub fn memory(clock: &Clock) -> MemoryStore {
    MemoryStore::on(clock.as_clock())
}

/// How much a keeper remembers at this moment; all zero when nothing is held, asked for or on its way.
#[cfg(feature = "internals")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Names with a local queue.
    pub queues: usize,
    /// Claims asked for, waiting, held or being released.
    pub claims: usize,
    /// Tasks between two turns.
    pub tasks: usize,
    /// Timers of claims and alarms.
    pub timers: usize,
    /// Tasks that sleep by the keeper's clock.
    pub alarms: usize,
}

/// What `keeper` remembers at this moment.
#[cfg(feature = "internals")]
pub fn leftovers(keeper: &Keeper) -> Leftovers {
    keeper.inner.engine.leftovers()
}
