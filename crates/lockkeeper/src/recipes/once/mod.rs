//! An effect that happens once for a key: the first result is stored, and every later caller gets it back.
//!
//! The register and the lock of a key are both `once/KEY`. The register holds one JSON object: who runs, or what came out.
//! `docs/recipes/once.md` has its layout, and what this recipe cannot do.

mod begin;
#[cfg(test)]
mod fuzz;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod record;
#[cfg(not(feature = "internals"))]
pub(super) mod record;
mod turn;

pub(crate) use begin::Begun;
pub use turn::Running;

use crate::error::{Error, Result};
use crate::keeper::Keeper;
use crate::lock::Lock;
use record::{DEFAULT_KEEP, Terms};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

/// The largest result, in bytes of JSON: what a register keeps, less 1 KiB for what stands beside the result.
pub const MAX_RESULT: usize = crate::register::MAX_VALUE - 1024;

impl Keeper {
    /// Describes an effect that is to happen once for `key`, such as `charge/42`; no I/O. Default: 24 h of retention.
    pub fn once(&self, key: impl AsRef<[u8]>) -> Once {
        let name = record::name(key.as_ref());
        Once {
            lock: self.lock(&name),
            keeper: self.clone(),
            name,
            terms: Terms::default(),
            keep: DEFAULT_KEEP,
            limit: MAX_RESULT,
            on_failure: OnFailure::default(),
            in_progress: InProgress::default(),
        }
    }
}

/// What becomes of a key whose work has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// The next caller with the same fingerprint tries again.
    #[default]
    Retry,
    /// The failure's text is stored like a result, and every later caller gets it as an error of kind `Failed`.
    Keep,
}

/// What a caller does while another one runs the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum InProgress {
    /// Waits in line, for as long as [`Once::wait`] allows, and gets the other's result.
    #[default]
    Wait,
    /// Gets an error of kind `Busy` at once.
    Refuse,
}

/// An effect that happens once for its key, made by [`Keeper::once`]; cheap to clone. Needs a store with registers.
///
/// ```
/// use lockkeeper::{Error, Keeper};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let keeper = Keeper::connect("memory:").await?;
/// let charge = keeper.once("charge/42").fingerprint("42 EUR from Ada");
/// let first: u32 = charge.run(async |_| Ok::<_, Error>(17)).await?;
/// let again: u32 = charge.run(async |_| Ok::<_, Error>(18)).await?; // not run: the first result is stored
/// assert_eq!((first, again), (17, 17));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing happens until it is run"]
pub struct Once {
    keeper: Keeper,
    name: Vec<u8>,
    lock: Lock,
    terms: Terms,
    keep: Duration,
    limit: usize,
    on_failure: OnFailure,
    in_progress: InProgress,
}

impl Once {
    /// What makes the request this one: its body, say. The store keeps a SHA-256 of it; a caller that comes with the same
    /// key and another fingerprint gets an error of kind `Mismatch`. Default: none, and nothing is compared.
    pub fn fingerprint(mut self, request: impl AsRef<[u8]>) -> Self {
        self.terms = self.terms.fingerprint(request.as_ref());
        self
    }

    /// How long the result is kept, from 1 ms to 3650 days; etcd counts whole seconds. Then the next caller runs the work
    /// again. It has nothing to do with the lock's TTL. Default: 24 h.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// The version of the result's type, at most 64 bytes. A stored result with another tag is an error, never a second
    /// run. Default: no tag.
    pub fn schema(mut self, tag: impl Into<String>) -> Self {
        self.terms.schema = Some(tag.into());
        self
    }

    /// The largest result that is stored, in bytes of JSON. Work whose result is larger is done and does not run again,
    /// and every caller gets the same error. Default, and the most: 63 KiB.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// What becomes of the key when the work fails. Default: [`OnFailure::Retry`].
    pub fn on_failure(mut self, policy: OnFailure) -> Self {
        self.on_failure = policy;
        self
    }

    /// What this caller does while another one runs the work. Default: [`InProgress::Wait`].
    pub fn in_progress(mut self, choice: InProgress) -> Self {
        self.in_progress = choice;
        self
    }

    /// How long to wait for another caller's run; see [`Lock::wait`]. Default: the keeper's, for ever.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.lock = self.lock.wait(wait);
        self
    }

    /// How long the lock outlives a runner that was killed; see [`Lock::ttl`]. Default: the keeper's, 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// The longest a run may take; see [`Lock::max_hold`]. Default: the keeper's, none.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.lock = self.lock.max_hold(max_hold);
        self
    }

    /// A few words that others see during the run; see [`Lock::label`]. Default: the keeper's.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.lock = self.lock.label(label);
        self
    }

    /// Answers with the stored result, in one round trip and without a lock; or runs `work` under the lock and stores its
    /// result.
    ///
    /// A runner that is killed, cancelled or loses its lock is taken over by the next caller, with a higher token;
    /// [`Running::taken_over`] tells the work. What the first runner did until then, `once` cannot know: fence it with
    /// [`Running::pass`], or ask for it. If the first runner's result comes after all, it is refused with `Stale`.
    ///
    /// An `Err` of the work is a failure, which may be tried again. An outcome that is final, such as a declined card,
    /// should be part of the result.
    ///
    /// # Errors
    /// What the work returns. `Mismatch` for another fingerprint, `Failed` for a kept failure. `Busy` when another caller
    /// still runs it. `InvalidConfig` for a result that was too large, has another schema or cannot be read as `T`, and
    /// for settings out of range. `Lost` when the lock was lost and the work cancelled. `Stale` when another caller has
    /// taken over. `Unsupported` when the store keeps no registers. `Unavailable` when the store gives no answer: before
    /// the work has begun, or when the result could not be stored; then the next caller takes over.
    ///
    /// # Cancellation
    /// Drops the work and releases the lock; the next caller takes over. While the result is being stored, it may or may
    /// not be stored.
    pub async fn run<T, E, F>(&self, work: impl FnOnce(Running) -> F) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<Error> + Display,
        F: Future<Output = Result<T, E>>,
    {
        match self.begin().await? {
            Begun::Settled(result) => Ok(result),
            Begun::Ours(turn) => {
                let outcome = turn.perform(work(turn.running().clone())).await?;
                turn.finish(outcome).await
            }
        }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// It can be shared with any thread, as every handle can.
const _: () = {
    const fn all<T: Send + Sync + 'static>() {}
    all::<Once>();
    all::<Running>();
};
