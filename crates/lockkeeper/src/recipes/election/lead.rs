//! Leading again and again: what a candidate does for as long as its process runs.

use super::super::patience::back_off_pause;
use super::leadership::{Leadership, Term};
use super::{AS_LONG_AS_IT_TAKES, Election};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use std::future::Future;
use std::time::Duration;

/// Long enough to be no load, short enough that an outage that is over costs no more than this.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What a body of [`Election::lead`] wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum After {
    /// Campaign again.
    Again,
    /// Let another candidate win first; campaign again when one has, or after about a TTL without one.
    StepDown,
    /// Campaign no more.
    Stop,
}

impl Election {
    /// Campaigns, runs `body` while this candidate leads, and campaigns again, until a body says [`After::Stop`].
    ///
    /// The body is one future, polled in place. When the lease runs short it is dropped, at an `.await`, with a sixth of
    /// the TTL left; [`Term::ending`] lets it end by itself before. The lock is released only when the body has ended or
    /// was dropped. What the body spawns elsewhere is the body's own to end, best in the `Drop` of a value that it holds.
    /// A body that was dropped is followed by another campaign.
    ///
    /// A body never runs before its term was granted and proclaimed. Outages are retried with pauses of up to 1 s; so are
    /// terms that end sooner than a TTL.
    ///
    /// # Errors
    /// Those that do not pass by waiting: `Unsupported`, `InvalidName`, `InvalidConfig`, `Denied`, `Foreign`, `Closed`,
    /// `Unexpected`.
    ///
    /// # Cancellation
    /// Drops the body, then gives the lock back in the background.
    pub async fn lead<F>(&self, mut body: impl FnMut(Term) -> F) -> Result<()>
    where
        F: Future<Output = After>,
    {
        let mut rounds = Rounds::new(self);
        loop {
            let leadership = rounds.win().await?;
            let work = body(leadership.handle());
            // Kept outside the work: a body that ended too late has said what it wants, too.
            let mut after = After::Again;
            if let Err(error) = leadership.run(async { after = work.await }).await {
                tracing::warn!(term = %leadership.term(), %error, "a leader's work was cut short");
            }
            if !rounds.end(leadership, after).await? {
                return Ok(());
            }
        }
    }
}

/// What comes before and after each body, in both faces.
pub(crate) struct Rounds<'a> {
    election: &'a Election,
    began: Stamp,
    /// Failed campaigns and short terms in a row.
    times: u32,
}

impl<'a> Rounds<'a> {
    pub(crate) fn new(election: &'a Election) -> Self {
        Self { election, began: election.office.now(), times: 0 }
    }

    /// Campaigns until it is won.
    pub(crate) async fn win(&mut self) -> Result<Leadership> {
        loop {
            match self.election.campaign_for(self.election.value.clone(), AS_LONG_AS_IT_TAKES).await {
                Ok(leadership) => {
                    self.began = self.election.office.now();
                    return Ok(leadership);
                }
                Err(error) if passes(&error) => {
                    tracing::warn!(%error, "a campaign failed and will be repeated");
                    self.pause().await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends a term whose body is gone; whether there is to be another.
    pub(crate) async fn end(&mut self, leadership: Leadership, after: After) -> Result<bool> {
        let lasted = self.election.office.now().since(self.began);
        if lasted >= leadership.lease().ttl() {
            self.times = 0;
        }
        if after == After::StepDown {
            return leadership.step_down().await.map(|_| true);
        }
        match leadership.resign().await {
            // The term had ended before, which the body's end has told; or the keeper goes on trying.
            Ok(()) => {}
            Err(error) if passes(&error) => tracing::debug!(%error, "a leader's lock could not be given back"),
            Err(error) => return Err(error),
        }
        if after == After::Stop {
            return Ok(false);
        }
        self.pause().await;
        Ok(true)
    }

    async fn pause(&mut self) {
        back_off_pause(&self.election.office.keeper, self.times, LONGEST_PAUSE).await;
        self.times += 1;
    }
}

/// Whether another campaign may do better. A term that was lost before it was proclaimed is no reason to give up.
fn passes(error: &Error) -> bool {
    error.is_retryable() || matches!(error.kind(), ErrorKind::Lost | ErrorKind::Stale)
}
