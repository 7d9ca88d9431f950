//! MySQL has nothing that wakes a waiter, so one question per keeper asks, every few moments while claims of this keeper
//! wait, which of them were handed a lock. A keeper that is far back in line asks less often.

use super::lines::Lines;
use super::step::{duration, holder, number, token};
use crate::clock::Stamp;
use crate::error::Result;
use crate::store::{Claim, Event, Grant, Held};
use crate::token::HolderId;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How often the first in line asks.
const PAUSE: Duration = Duration::from_millis(25);

/// From this place in line on, nobody asks less often.
const FAR_BACK: u32 = 8;

/// How long the question may take.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// The longest pause while the server cannot be reached.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// This keeper's claims in line.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    claims: Mutex<HashMap<HolderId, (u32, Instant)>>,
    joined: Notify,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, HashMap<HolderId, (u32, Instant)>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the server said of a claim: where it stands in line, if it does.
    pub(super) fn note(&self, claim: &Claim, held: Option<&Held>) {
        let mut claims = self.lock();
        match held.and_then(|held| held.place) {
            Some(place) => {
                let first = claims.is_empty();
                claims.insert(claim.holder, (place, Instant::now() + claim.waiter_lease()));
                drop(claims);
                if first || place == 1 {
                    self.joined.notify_one();
                }
            }
            None if claims.is_empty() => {}
            None => drop(claims.remove(&claim.holder)),
        }
    }

    /// The best place in line that is still alive.
    fn best(&self) -> Option<u32> {
        let mut claims = self.lock();
        let now = Instant::now();
        claims.retain(|_, (_, until)| *until > now);
        claims.values().map(|(place, _)| *place).min()
    }
}

/// The stream of hints.
#[derive(Debug, Default)]
pub(super) struct Events {
    news: VecDeque<Event>,
    /// What was told already; the rows stay until the waiter is heard of.
    told: HashSet<(HolderId, u64)>,
    failures: u32,
    began: bool,
}

impl Events {
    pub(super) async fn next(&mut self, lines: &Lines, waiting: &Waiting, keeper: HolderId) -> Event {
        if !std::mem::replace(&mut self.began, true) {
            // Renewals go out from this thread. Their connection is opened now, not when the server may be full; if it
            // cannot be, they will say so.
            let _ = lines.query("DO 0".to_owned(), ASK_LIMIT).await;
        }
        loop {
            if let Some(event) = self.news.pop_front() {
                return event;
            }
            let Some(place) = waiting.best() else {
                waiting.joined.notified().await;
                continue;
            };
            let mut pause = PAUSE * place.min(FAR_BACK);
            if self.failures > 0 {
                pause = PAUSE.saturating_mul(1 << self.failures.min(8)).min(MAX_PAUSE);
            }
            // So that many keepers do not ask at the same moments.
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            match handed(lines, keeper).await {
                Ok(grants) => {
                    if std::mem::take(&mut self.failures) > 0 {
                        self.news.push_back(Event::Reconnected);
                    }
                    let there: HashSet<_> = grants.iter().map(|(holder, grant)| (*holder, grant.token.get())).collect();
                    self.told.retain(|told| there.contains(told));
                    for (holder, grant) in grants {
                        if self.told.insert((holder, grant.token.get())) {
                            self.news.push_back(Event::Granted(holder, grant));
                        }
                    }
                }
                Err(error) => {
                    if self.failures == 0 {
                        tracing::debug!(%error, "cannot ask which waiters were let in");
                    }
                    self.failures = self.failures.saturating_add(1);
                }
            }
        }
    }
}

/// Grants that were handed over to claims of this keeper and not picked up yet.
async fn handed(lines: &Lines, keeper: HolderId) -> Result<Vec<(HolderId, Grant)>> {
    let (p, keeper) = (&lines.dial().options.prefix, keeper.to_hex());
    let text = format!(
        "SELECT holder, token, stamp, lease FROM `{p}lock` WHERE keeper = X'{keeper}' AND lease IS NOT NULL \
         UNION ALL SELECT holder, token, stamp, lease FROM `{p}claim` WHERE keeper = X'{keeper}' AND lease IS NOT NULL"
    );
    let rows = lines.query(text, ASK_LIMIT).await?;
    let read = |row: &mysql_async::Row| {
        let stamp = Stamp::from_micros(number(row, 2)?.and_then(|n| u64::try_from(n).ok()).unwrap_or(0));
        let lease = duration(number(row, 3)?.unwrap_or(0));
        Ok((holder(row, 0)?, Grant { token: token(number(row, 1)?)?, stamp, lease }))
    };
    rows.iter().map(read).collect()
}
