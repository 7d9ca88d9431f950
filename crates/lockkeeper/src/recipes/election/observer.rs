//! Following the leaders of an election.

use super::Leader;
use super::office::Office;
use super::proclaimed::is_later;
use crate::clock::Stamp;
use crate::error::{Error, Result};
use crate::token::Token;
use futures_core::Stream;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Follows the leaders of an election: [`next`](Self::next), or as a [`Stream`].
///
/// Each item is later than the one before: a higher term, or a higher sequence in the same term. The latest is never
/// missed; what came between two looks is skipped. Outages are ridden out. An observer that no caller polls does nothing.
#[must_use = "an observer does nothing until it is asked for the next leader"]
pub struct Observer {
    office: Office,
    every: Duration,
    /// The term and the sequence that were told last.
    told: Option<(Token, u64)>,
    /// When to look next.
    due: Stamp,
    /// The look under way. It stays when a caller gives up on `next`, so nothing is lost.
    looking: Option<Looking>,
    trouble: Option<Error>,
    over: bool,
}

type Looking = Pin<Box<dyn Future<Output = Result<(Leader, Stamp)>> + Send>>;

impl Observer {
    pub(super) fn new(office: Office, every: Duration, trouble: Option<Error>) -> Self {
        let due = office.now();
        Self { office, every, told: None, due, looking: None, trouble, over: false }
    }

    /// The next leader, or the next value of this one; the first call gives the leader of now, as soon as there is one.
    ///
    /// `None` only after an error: an observer ends with the first that does not pass by waiting.
    ///
    /// # Errors
    /// `Unsupported` on a store without registers. `InvalidName`, `InvalidConfig`, `Denied`, `Foreign` for what cannot
    /// work. `Closed` when the keeper was closed.
    ///
    /// # Cancellation
    /// Loses nothing.
    pub async fn next(&mut self) -> Option<Result<Leader>> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Stream for Observer {
    type Item = Result<Leader>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Leader>>> {
        let this = &mut *self;
        if this.over {
            return Poll::Ready(None);
        }
        if let Some(error) = this.trouble.take() {
            this.over = true;
            return Poll::Ready(Some(Err(error)));
        }
        let look = || -> Looking { Box::pin(find(this.office.clone(), this.every, this.told, this.due)) };
        let Poll::Ready(found) = this.looking.get_or_insert_with(look).as_mut().poll(cx) else { return Poll::Pending };
        this.looking = None;
        Poll::Ready(Some(found.map_or_else(
            |error| {
                this.over = true;
                Err(error)
            },
            |(leader, due)| {
                (this.told, this.due) = (Some((leader.term, leader.sequence)), due);
                Ok(leader)
            },
        )))
    }
}

/// Looks until there is one that is later than `told`; with it, when to look next.
async fn find(office: Office, every: Duration, told: Option<(Token, u64)>, mut due: Stamp) -> Result<(Leader, Stamp)> {
    loop {
        office.sleep_until(due).await?;
        due = office.now().after(every);
        match office.leader().await {
            Ok(Some(leader)) if is_later((leader.term, leader.sequence), told) => return Ok((leader, due)),
            Ok(_) => {}
            Err(error) if error.is_retryable() => tracing::debug!(%error, "an observer could not see the leader"),
            Err(error) => return Err(error),
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("name", &self.office).field("told", &self.told).finish_non_exhaustive()
    }
}
