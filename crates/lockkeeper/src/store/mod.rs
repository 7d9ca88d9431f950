//! What a store author writes: one trait of single atomic steps, and the values that go in and come out.
//!
//! A store never waits, never retries, keeps no background task for correctness and has no clock of its own: time comes
//! from its server or from the claim's stamp. Everything that involves time or order lives in the engine, once.
//! **Definite answers are values; an `Err` means only "unknown" or "impossible".**

mod answers;
mod check;
mod claim;
mod event;
mod info;
mod record;

pub use crate::clock::Stamp;
pub use crate::machine::slot;
pub use answers::{Attempt, Break, Grant, Held, LossReason, Release, Renewal};
pub use check::{Check, CheckState};
pub use claim::{Claim, Mode, Note};
pub use event::{Event, Sink};
pub use info::{Expiry, Guarantee, Runtime, StoreInfo};
pub use record::{Cursor, HolderRecord, Page, Record, WaiterRecord};

use crate::error::Result;
use crate::name::LockName;
use crate::register::Register;
use crate::token::Token;
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Where locks live. One instance belongs to one keeper; `Arc<dyn Store>` is how it is passed.
///
/// Every method answers each entry of its batch on its own, in the same order, in one atomic step per entry and one
/// round trip per call. A `try_acquire` batch never holds two claims of one name; batches come sorted by name.
/// Calls may be repeated, reordered and dropped half-way (the returned future is cancelled): each step compares the
/// holder id, so none of that can touch another holder's claim.
///
/// Where [`StoreInfo::expiry`] is not `Session`, a claim does not belong to the instance that took it: any instance over
/// the same locks renews and releases it, given the same [`Claim`].
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// What this store can do and promise; no I/O.
    fn info(&self) -> StoreInfo;

    /// Takes each lock if it is free, and draws the token in the same step.
    ///
    /// The same holder id again while held answers the same token with the lease *left*, so a repeat after a lost reply
    /// is safe. With [`Claim::queue`] a busy claim stays registered as a waiter, in order of arrival.
    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>>;

    /// Prolongs each claim, held or waiting alike; never re-creates one, and never shortens one.
    ///
    /// Never shortens: a renewal whose TTL is shorter than what is left, or one that was delayed behind a later one,
    /// leaves the end where it is. The engine counts on the latest end that it was told.
    ///
    /// A renewal may have a longer TTL than the acquire had, because another task of the keeper may inherit a claim: it
    /// is kept that long, by a session store too, or answered with the shorter time that it is kept.
    ///
    /// For a waiter it is the keep-alive of its place, and its way to learn of a grant whose push was lost. The grant is
    /// pushed to the instance through which the waiter was last kept alive.
    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>>;

    /// Ends each claim, held or waiting; idempotent; keeps the token counter.
    ///
    /// Hands over to, or wakes, the next waiter in the same step. With [`Claim::unsettled`] it leaves a tombstone in what
    /// `try_acquire` compares, so that an acquire still under way answers `Cancelled`.
    ///
    /// Once it is answered, the claim holds nothing that counts. `Released` means that this call found something of the
    /// claim to end; `NotHeld` that it found nothing, which is also what a repeat is told after a first call whose answer
    /// was lost. Where a majority of servers decides ([`StoreInfo::decisive`] is `false`), a server that the first call has
    /// not reached may still have had the claim: then a repeat may answer `Released` too.
    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>>;

    /// One lock for people to look at, `None` when it has neither holders nor waiters; never used to decide ownership.
    async fn inspect(&self, name: &LockName) -> Result<Option<Record>>;

    /// Locks whose names begin with `prefix`, in pages; for people.
    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page>;

    /// Takes the lock away from the holder with `token`: the operator's action, only for the token they saw.
    ///
    /// Draws a token above the broken one and hands over like a release.
    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break>;

    /// What the store does without being asked: tells `events`, keeps sessions alive, tidies up. Default: nothing.
    ///
    /// The engine calls it once, on the keeper's own thread, inside a Tokio runtime, and drops the future when the keeper
    /// ends. A future that returns has nothing left to do; the engine does not call it again.
    ///
    /// Events are hints: every one of them may be lost, late or repeated, and only speed suffers. `events` may be cloned and
    /// told from any thread. Nothing that exclusion depends on may stand here: no call waits for it.
    async fn tend(&self, events: Sink) {
        drop(events);
    }

    /// The registers that the store keeps beside the locks. Default: `None`, it keeps none.
    fn registers(&self) -> Option<&dyn Register> {
        None
    }

    /// Looks at the server for what could break locks of `ttl`: what `lockkeeper doctor` shows. Default: nothing.
    ///
    /// It only reads, and is called inside a Tokio runtime. What the server refuses to tell becomes a finding that is
    /// [`Unknown`](CheckState::Unknown) and names what was asked.
    async fn checks(&self, ttl: Duration) -> Vec<Check> {
        let _ = ttl;
        Vec::new()
    }
}

/// Opens the store that `url` names, without a keeper over it: for programs that speak to stores themselves, such as a
/// gateway. [`Keeper::connect`](crate::Keeper::connect) is what takes locks.
///
/// # Errors
/// `InvalidConfig` for a URL that cannot work. `Unsupported` when this build has no such store. Otherwise the error that
/// opening the store met.
///
/// # Cancellation
/// Nothing stays behind: a connection that is half open is closed.
pub async fn open(url: impl AsRef<str>) -> Result<Arc<dyn Store>> {
    crate::url::open(url.as_ref(), &crate::clock::Clock::System).await
}

/// Answers a batch one entry after another: for stores that cannot do better.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let answers = lockkeeper::store::each(&[1, 2], |n| async move { Ok(n + 1) }).await;
/// assert_eq!(answers.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [2, 3]);
/// # }
/// ```
pub async fn each<'a, C, T, F: Future<Output = Result<T>>>(
    claims: &'a [C],
    mut act: impl FnMut(&'a C) -> F,
) -> Vec<Result<T>> {
    let mut answers = Vec::with_capacity(claims.len());
    for claim in claims {
        answers.push(act(claim).await);
    }
    answers
}
