//! Several names at once: all of them or none.
//!
//! The names are taken in one order, the same for all callers, so two callers never wait for each other in a circle. All
//! that are free are taken in one call. While the first busy one is waited for, only names before it are held.

use super::several::{Several, settings};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, Lease};
use crate::keeper::Keeper;
use crate::name::LockName;
use crate::pass::Pass;
use crate::store::LossReason;
use crate::token::Token;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

impl Keeper {
    /// Describes several locks that are taken together; no I/O. The library sorts the names and drops repeated ones.
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory:").await?;
    /// let both = keeper.lock_all(["account/7", "account/3"]).acquire().await?;
    /// both.run(async { /* move the money */ }).await?;
    /// both.release().await
    /// # }
    /// ```
    pub fn lock_all<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> LockAll {
        LockAll(Several::new(self, names))
    }
}

/// Several locks, to be taken together. Settings left alone are the keeper's; they hold for every name.
#[derive(Clone, Debug)]
#[must_use = "locks do nothing until they are acquired"]
pub struct LockAll(Several);

settings!(LockAll);

impl LockAll {
    /// Takes all of them if all are free; `None` when one is not. One call to the store.
    ///
    /// # Errors
    /// `InvalidConfig` for an empty list, or one of more than 1,000 names; otherwise as [`Lock::try_acquire`](crate::Lock::try_acquire). On an error
    /// nothing is held.
    ///
    /// # Cancellation
    /// Nothing stays behind.
    pub async fn try_acquire(&self) -> Result<Option<GuardAll>> {
        match self.take(Some(Duration::ZERO)).await {
            Ok(all) => Ok(Some(all)),
            Err(error) if error.kind() == ErrorKind::Busy => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes all of them, waiting for as long as [`wait`](Self::wait) allows.
    ///
    /// # Errors
    /// `Busy` when the wait ended, with the lock that was still held by another client; otherwise as
    /// [`try_acquire`](Self::try_acquire). On an error nothing is held.
    ///
    /// # Cancellation
    /// Nothing stays behind: what was taken so far is released.
    pub async fn acquire(&self) -> Result<GuardAll> {
        self.take(self.0.wait()).await
    }

    async fn take(&self, wait: Option<Duration>) -> Result<GuardAll> {
        self.0.check("lock_all")?;
        let Several { keeper, locks, .. } = &self.0;
        let engine = &keeper.inner.engine;
        let end = wait.map(|wait| engine.now().after(wait));
        let specs = locks.iter().map(|lock| lock.spec(Some(Duration::ZERO))).collect::<Result<Vec<_>>>()?;
        let mut held = GuardAll { guards: Vec::new(), keeper: keeper.clone() };
        loop {
            let from = held.guards.len();
            let made = |taken| locks[0].made(taken);
            let mut refused = None;
            let mut beyond = GuardAll { guards: Vec::new(), keeper: keeper.clone() };
            for (at, answer) in engine.try_many(&specs[from..], made).await.into_iter().enumerate() {
                match answer {
                    Ok(Ok(guard)) if refused.is_none() => held.guards.push(guard),
                    Ok(Ok(guard)) => beyond.guards.push(guard),
                    Ok(Err(holder)) => refused = refused.or(Some((from + at, Ok(holder)))),
                    Err(error) => refused = refused.or(Some((from + at, Err(error)))),
                }
            }
            // What lies behind the one to be waited for is given back first, or two callers could wait in a circle.
            beyond.give_back().await;
            let taken = match refused {
                Some((_, Err(error))) => Err(error),
                Some((at, Ok(holder))) => match end.map(|end| end.since(engine.now())) {
                    Some(left) if left.is_zero() => Err(locks[at].busy(holder, wait)),
                    Some(left) => locks[at].clone().wait(left).acquire().await,
                    None => locks[at].clone().wait_forever().acquire().await,
                }
                .map(Some),
                None => Ok(None),
            };
            match taken {
                Ok(guard) => held.guards.extend(guard),
                Err(error) => {
                    held.give_back().await;
                    return Err(error);
                }
            }
            match held.check() {
                Ok(()) if held.guards.len() == locks.len() => return Ok(held),
                Ok(()) => {}
                // One was lost while another was waited for: begin again.
                Err(_) => held.give_back().await,
            }
        }
    }
}

/// Several held locks, each with a token of its own. Dropping it releases all of them in the background.
#[must_use = "a guard that is dropped at once releases its locks at once"]
#[derive(Debug)]
pub struct GuardAll {
    /// In the order of their names.
    guards: Vec<Guard>,
    keeper: Keeper,
}

impl GuardAll {
    /// A read-only view of each lock, in the order of their names.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.guards.iter().map(Guard::lease)
    }

    /// The guard of one name; `None` when it is not among them.
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&Guard> {
        let name = self.keeper.inner.full_name(name.as_ref()).ok()?;
        self.guards.iter().find(|guard| *guard.name() == name)
    }

    /// The fencing number of one name; `None` when it is not among them.
    pub fn token(&self, name: impl AsRef<[u8]>) -> Option<Token> {
        self.get(name).map(Guard::token)
    }

    /// What to show at the fence of one name.
    ///
    /// # Errors
    /// `InvalidName` when it is not among them.
    pub fn pass(&self, name: impl AsRef<[u8]>) -> Result<Pass> {
        let unknown = || Error::new(ErrorKind::InvalidName, "this guard holds no lock of that name");
        self.get(name).ok_or_else(unknown)?.pass()
    }

    /// How long all of them are certainly held without another renewal; zero when one is lost.
    pub fn remaining(&self) -> Duration {
        self.leases().map(Lease::remaining).min().unwrap_or_default()
    }

    /// Says of every lock that the work makes progress; see [`Lease::progress`].
    pub fn progress(&self) {
        self.leases().for_each(Lease::progress);
    }

    /// Fails with `Lost` unless all of them are held at this moment, by the clock. No I/O.
    ///
    /// # Errors
    /// `Lost` with the first lock that is lost, and the reason.
    pub fn check(&self) -> Result<()> {
        self.leases().try_for_each(Lease::check)
    }

    /// Resolves when the first of them has ended: which one, and why. Cancel safe.
    pub async fn lost(&self) -> (LockName, LossReason) {
        first(self.leases().map(|lease| async { (lease.name().clone(), lease.lost().await) })).await
    }

    /// Runs `work` under all the locks, and cancels it before the first lease can end; see [`Guard::run`].
    ///
    /// # Errors
    /// `Lost` when the work was cancelled, or ended after a lease did.
    ///
    /// # Cancellation
    /// Dropping the returned future drops `work`; the locks stay held.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let mut work = pin!(work);
        let mut danger = pin!(first(self.leases().map(|lease| async {
            lease.last_part(6).await;
            lease.lost_error("the work was cancelled because")
        })));
        poll_fn(|cx| {
            if self.check().is_ok()
                && let Poll::Ready(done) = work.as_mut().poll(cx)
            {
                return Poll::Ready(self.check().map(|()| done));
            }
            danger.as_mut().poll(cx).map(Err)
        })
        .await
    }

    /// Releases all of them, in one call to the store.
    ///
    /// # Errors
    /// The first that a release met, as [`Guard::release`]; the others are released all the same.
    ///
    /// # Cancellation
    /// The releases go on in the background.
    pub async fn release(mut self) -> Result<()> {
        self.end().await
    }

    /// Gives back what was taken for an attempt that failed. The keeper repeats a release that fails.
    async fn give_back(&mut self) {
        if let Err(error) = self.end().await {
            tracing::debug!(%error, "a lock of several was not given back at once");
        }
    }

    async fn end(&mut self) -> Result<()> {
        let guards = std::mem::take(&mut self.guards);
        let Some(ttl) = self.ttl_of(&guards) else { return Ok(()) };
        let (keys, leases): (Vec<u64>, Vec<Lease>) = guards.into_iter().map(Guard::into_parts).unzip();
        let answers = self.keeper.inner.engine.release_many(&keys, ttl).await;
        let mut outcome = Ok(());
        for (lease, answer) in leases.iter().zip(answers) {
            outcome = outcome.and(lease.release_outcome(answer));
        }
        outcome
    }

    fn ttl_of(&self, guards: &[Guard]) -> Option<Duration> {
        guards.iter().map(|guard| guard.lease().ttl()).min()
    }
}

/// The output of the first future that is ready.
async fn first<T, F: Future<Output = T>>(futures: impl Iterator<Item = F>) -> T {
    let mut futures: Vec<Pin<Box<F>>> = futures.map(Box::pin).collect();
    poll_fn(|cx| {
        let ready = futures.iter_mut().find_map(|future| match future.as_mut().poll(cx) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        });
        ready.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}
