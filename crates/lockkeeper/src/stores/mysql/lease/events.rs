//! MySQL has nothing that wakes a waiter. While claims of this keeper wait, one small question per keeper asks, every few
//! moments, which of them were handed a lock. A keeper that is far back in line asks less often.

use super::waiters::{PAUSE, Waiting};
use crate::clock::Stamp;
use crate::error::Result;
use crate::store::{Event, Grant, Sink};
use crate::stores::mysql::calls::Connections;
use crate::stores::mysql::values::{holder, number};
use crate::stores::shared::sql::{duration, token};
use crate::stores::shared::timing::MAX_PAUSE;
use crate::token::HolderId;
use mysql_async::Row;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// How long the question may take.
const QUESTION_LIMIT: Duration = Duration::from_secs(5);

/// What the keeper was told already, and when it asks next.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Rows stay until the waiter's keeper is heard of: each grant is told once.
    told: HashSet<(HolderId, u64)>,
    failures: u32,
}

impl Events {
    /// Asks while claims wait, and tells of their grants; never ends.
    pub(super) async fn run(&mut self, connections: &Connections, waiting: &Waiting, keeper: HolderId, events: &Sink) {
        // Renewals go out from this thread. Their connection is opened now, not when the server may be full; if it
        // cannot be, they will say so.
        let _ = connections.query("DO 0".to_owned(), QUESTION_LIMIT).await;
        let mut due: Option<Instant> = None;
        loop {
            let soon = waiting.pause().map(|pause| Instant::now() + self.pause(pause));
            // A claim that joins the line does not put the question off.
            due = soon.map(|soon| due.map_or(soon, |due| due.min(soon)));
            tokio::select! {
                () = until(due) => {}
                () = waiting.joined.notified() => continue,
            }
            due = None;
            match handed(connections, keeper).await {
                Ok(grants) => {
                    if std::mem::take(&mut self.failures) > 0 {
                        events.tell(Event::Reconnected);
                    }
                    self.tell(waiting, grants, events);
                }
                Err(error) => {
                    if self.failures == 0 {
                        crate::log::say(move || tracing::debug!(%error, "cannot ask which waiters were let in"));
                    }
                    self.failures = self.failures.saturating_add(1);
                }
            }
        }
    }

    fn pause(&self, mut pause: Duration) -> Duration {
        if self.failures > 0 {
            pause = PAUSE.saturating_mul(1 << self.failures.min(8)).min(MAX_PAUSE);
        }
        // So that many keepers do not ask at the same moments.
        pause.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// Tells of each grant once. What is no longer among the grants was picked up.
    fn tell(&mut self, waiting: &Waiting, grants: Vec<(HolderId, Grant)>, events: &Sink) {
        let there: HashSet<_> = grants.iter().map(|(holder, grant)| (*holder, grant.token.get())).collect();
        self.told.retain(|told| there.contains(told));
        for (holder, grant) in grants {
            if self.told.insert((holder, grant.token.get())) {
                waiting.let_in(holder);
                events.tell(Event::Granted(holder, grant));
            }
        }
    }
}

/// Waits for a moment that may never come.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

/// Grants that were handed over to claims of this keeper and not picked up yet.
async fn handed(connections: &Connections, keeper: HolderId) -> Result<Vec<(HolderId, Grant)>> {
    let (p, keeper) = (&connections.dial().options.prefix, keeper.to_hex());
    let text = format!(
        "SELECT holder, token, stamp, lease FROM `{p}lock` WHERE keeper = X'{keeper}' AND lease IS NOT NULL \
         UNION ALL SELECT holder, token, stamp, lease FROM `{p}claim` WHERE keeper = X'{keeper}' AND lease IS NOT NULL"
    );
    let read = |row: &Row| {
        let stamp = Stamp::from_micros(number(row, 2)?.and_then(|n| u64::try_from(n).ok()).unwrap_or(0));
        let lease = duration(number(row, 3)?.unwrap_or(0));
        Ok((holder(row, 0)?, Grant { token: token(number(row, 1)?)?, stamp, lease }))
    };
    connections.query(text, QUESTION_LIMIT).await?.iter().map(read).collect()
}
