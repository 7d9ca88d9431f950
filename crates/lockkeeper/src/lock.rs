//! A description of what to take; no I/O until it is acquired.

use crate::engine::{Acquired, Spec};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, Lease};
use crate::keeper::{Inner, check_end, check_ttl, note};
use crate::name::LockName;
use crate::store::{Held, Mode};
use crate::trace;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument as _;

/// What to take and how; cheap to clone, owns its keeper. Settings left alone are the keeper's.
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    keeper: Arc<Inner>,
    name: Result<LockName>,
    mode: Option<Mode>,
    ttl: Option<Duration>,
    /// `Some(None)` is a wait without a limit.
    wait: Option<Option<Duration>>,
    /// `Some(None)` is no limit.
    max_hold: Option<Option<Duration>>,
    stall_limit: Option<Duration>,
    label: Option<String>,
    /// A contradiction between settings, told when the lock is acquired.
    mistake: Option<&'static str>,
}

impl Lock {
    pub(crate) fn new(keeper: Arc<Inner>, name: &[u8]) -> Self {
        let name = keeper.full_name(name);
        Self {
            keeper,
            name,
            mode: None,
            ttl: None,
            wait: None,
            max_hold: None,
            stall_limit: None,
            label: None,
            mistake: None,
        }
    }

    /// Shares the lock with other Shared holders; excludes Exclusive ones. Default: Exclusive.
    pub fn shared(self) -> Self {
        self.mode(Mode::Shared)
    }

    /// Takes one of `limit` permits: a counting semaphore. All holders must name the same limit.
    pub fn permits(self, limit: u32) -> Self {
        self.mode(Mode::Permit { limit })
    }

    fn mode(mut self, mode: Mode) -> Self {
        if self.mode.is_some_and(|m| m != mode) {
            self.mistake =
                Some("the lock is asked for in two ways; it is exclusive, shared, or has one limit of permits");
        }
        if mode == (Mode::Permit { limit: 0 }) {
            self.mistake = Some("permits(0) is too few; the limit must be at least 1");
        }
        self.mode = Some(mode);
        self
    }

    /// How long the lock outlives its holder's last sign of life. Default: the keeper's, 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long `acquire` waits; zero means not at all. Default: the keeper's, for ever.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(Some(wait));
        self
    }

    /// Lets `acquire` wait for as long as it takes, also when the keeper has a `wait`. The last of this and
    /// [`wait`](Self::wait) counts.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Some(None);
        self
    }

    /// The longest it may be held, counted from the grant; then it is lost and released. Default: the keeper's, none.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(Some(max_hold));
        self
    }

    /// Lets the lock be held for as long as it is renewed, also when the keeper has a `max_hold`. The last of this and
    /// [`max_hold`](Self::max_hold) counts.
    pub fn no_max_hold(mut self) -> Self {
        self.max_hold = Some(None);
        self
    }

    /// How long the work may go without a sign of progress, [`Lease::progress`]. After that the keeper does not renew any
    /// longer: the lock is lost with the reason `Stalled` and given back, so a hung holder does not keep others out for
    /// ever. It counts from the grant. Default: no limit.
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory:").await?;
    /// # let rows = [1, 2, 3];
    /// let guard = keeper.lock("import").stall_limit(Duration::from_secs(60)).acquire().await?;
    /// for row in rows {
    ///     // … work on the row …
    /// #   let _ = row;
    ///     guard.lease().progress();
    /// }
    /// # guard.release().await
    /// # }
    /// ```
    pub fn stall_limit(mut self, stall_limit: Duration) -> Self {
        self.stall_limit = Some(stall_limit);
        self
    }

    /// A few words that others see while it is held; at most 200 bytes. Default: the keeper's.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Takes the lock if it is free; `None` when it is not. Never waits for a holder.
    ///
    /// # Errors
    /// `Unavailable` when the store gives no answer: an outage is never "busy". `InvalidName`, `InvalidConfig`,
    /// `Unsupported` for what cannot work.
    ///
    /// # Cancellation
    /// Nothing stays behind: a grant that was on its way is given back.
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        Ok(self.try_acquire_or_held().await?.ok())
    }

    /// Takes the lock if it is free; otherwise tells who holds it. Never waits for a holder.
    ///
    /// What the store does not know of the holder is `None` in [`Held`]; all of it when another task of this keeper is
    /// just asking for the lock.
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// let keeper = Keeper::builder().label("nightly").connect("memory:").await?;
    /// let first = keeper.lock("report").acquire().await?;
    /// match keeper.lock("report").try_acquire_or_held().await? {
    ///     Ok(guard) => guard.release().await?,
    ///     Err(held) => println!("skipped: held by {held}"),
    /// }
    /// # let held = keeper.lock("report").try_acquire_or_held().await?.unwrap_err();
    /// # assert_eq!((held.token, held.holder.map(|note| note.label)), (Some(first.token()), Some("nightly".into())));
    /// # first.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancellation
    /// As [`try_acquire`](Self::try_acquire).
    pub async fn try_acquire_or_held(&self) -> Result<Result<Guard, Held>> {
        Ok(self.take(Some(Duration::ZERO)).await?.map_err(Option::unwrap_or_default))
    }

    /// Takes the lock, waiting in line for as long as [`wait`](Self::wait) allows: for ever without one, with a warning
    /// through `tracing` after 30 s that says who holds it.
    ///
    /// # Errors
    /// `Busy` with [`Error::held`] when the wait ended; otherwise as [`try_acquire`](Self::try_acquire). An outage that
    /// begins while waiting in line is ridden out until the wait ends.
    ///
    /// # Cancellation
    /// Nothing stays behind; the place in line goes to the next task of this keeper.
    pub async fn acquire(&self) -> Result<Guard> {
        let wait = self.wait.unwrap_or(self.keeper.defaults.wait);
        self.take(wait).await?.map_err(|held| self.busy(held, wait))
    }

    /// Takes the lock, runs `work`, and always releases: on success, error, panic and cancellation. When the lock is lost
    /// before the work has ended, the work is dropped and the error is `Lost`. A release that fails is logged and
    /// repeated by the keeper; it never turns a success into an error.
    ///
    /// # Errors
    /// What [`acquire`](Self::acquire) and the work return, and `Lost`.
    ///
    /// # Cancellation
    /// Drops the work and releases.
    pub async fn with<T, E, F>(&self, work: impl FnOnce(Lease) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let guard = self.acquire().await?;
        let outcome = guard.run(work(guard.lease().clone())).await?;
        if let Err(error) = guard.release().await {
            tracing::warn!(%error, "the work is done, but its lock could not be released");
        }
        outcome
    }

    async fn take(&self, wait: Option<Duration>) -> Result<Result<Guard, Option<Held>>> {
        let spec = self.spec(wait)?;
        let span = trace::acquire(&spec, self.keeper.engine.info.scheme);
        let engine = &self.keeper.engine;
        // Awaited where it is made: a variable in between would be a copy of it.
        let acquired = if span.is_disabled() {
            engine.acquire(&spec).await
        } else {
            Box::pin(engine.acquire(&spec).instrument(span.clone())).await
        };
        trace::acquired(&span, &acquired);
        Ok(self.made(acquired?))
    }

    /// The guard of a grant.
    pub(crate) fn made(&self, acquired: Acquired) -> Result<Guard, Option<Held>> {
        acquired.map(|(key, cell)| Guard::new(self.keeper.clone(), key, cell))
    }

    pub(crate) fn spec(&self, wait: Option<Duration>) -> Result<Spec> {
        let defaults = &self.keeper.defaults;
        let info = &self.keeper.engine.info;
        let name = self.name.clone()?;
        if let Some(mistake) = self.mistake {
            return Err(Error::invalid_config(mistake).for_lock(&name));
        }
        let mode = self.mode.unwrap_or(Mode::Exclusive);
        let offered = match mode {
            Mode::Exclusive => true,
            Mode::Shared => info.shared,
            Mode::Permit { .. } => info.permits,
        };
        if !offered {
            let kind = if mode == Mode::Shared { "shared locks" } else { "permits" };
            return Err(Error::unsupported(format!("{} has no {kind}", info.scheme)).for_lock(&name));
        }
        let ttl = self.ttl.unwrap_or(defaults.ttl);
        check_ttl(ttl, info).map_err(|e| e.for_lock(&name))?;
        let max_hold = self.max_hold.unwrap_or(defaults.max_hold);
        check_end("max_hold", max_hold, info).map_err(|e| e.for_lock(&name))?;
        check_end("stall_limit", self.stall_limit, info).map_err(|e| e.for_lock(&name))?;
        let note = match &self.label {
            Some(label) => Arc::new(note(label).map_err(|e| e.for_lock(&name))?),
            None => defaults.note.clone(),
        };
        Ok(Spec { name, mode, ttl, max_hold, stall_limit: self.stall_limit, note, wait })
    }

    pub(crate) fn busy(&self, held: Option<Held>, wait: Option<Duration>) -> Error {
        let waited = crate::duration::short(wait.unwrap_or_default());
        let mut error = Error::new(ErrorKind::Busy, format!("still held after {waited}"))
            .during("acquire")
            .in_store(self.keeper.engine.info.scheme);
        if let Ok(name) = &self.name {
            error = error.for_lock(name);
        }
        match held {
            Some(held) => error.with_held(held),
            None => error,
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.name).field("mode", &self.mode).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::{ErrorKind, Keeper, Token};

    #[tokio::test]
    async fn an_empty_name_is_not_the_prefix() {
        let keeper = Keeper::builder().prefix("app/").connect("memory:").await.unwrap();
        assert_eq!(keeper.lock("").acquire().await.unwrap_err().kind(), ErrorKind::InvalidName);
        assert_eq!(keeper.inspect("").await.unwrap_err().kind(), ErrorKind::InvalidName);
        assert_eq!(keeper.break_lock("", Token::MAX).await.unwrap_err().kind(), ErrorKind::InvalidName);
    }
}
