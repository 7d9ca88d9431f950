//! MySQL has nothing that wakes a waiter, so one question per keeper asks, every few moments while claims of this keeper
//! wait, which of them were handed a lock. A keeper that is far back in line asks less often. With doorbells it is woken.

use super::bell::{Bells, Grants, until};
use super::lines::Lines;
use super::step::{duration, holder, number, token};
use super::waiting::{PAUSE, Waiting};
use crate::clock::Stamp;
use crate::error::Result;
use crate::store::{Event, Grant};
use crate::token::HolderId;
use mysql_async::Row;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the question may take.
pub(super) const ASK_LIMIT: Duration = Duration::from_secs(5);

/// The longest pause while the server cannot be reached.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The stream of hints.
#[derive(Debug, Default)]
pub(super) struct Events {
    news: VecDeque<Event>,
    /// What was told already; the rows stay until the waiter is heard of.
    told: HashSet<(HolderId, u64)>,
    failures: u32,
    began: bool,
    /// When to ask next.
    due: Option<Instant>,
    bells: Bells,
}

impl Events {
    pub(super) async fn next(&mut self, lines: &Lines, waiting: &Arc<Waiting>, keeper: HolderId) -> Event {
        if !std::mem::replace(&mut self.began, true) {
            // Renewals go out from this thread. Their connection is opened now, not when the server may be full; if it
            // cannot be, they will say so.
            let _ = lines.query("DO 0".to_owned(), ASK_LIMIT).await;
        }
        loop {
            if let Some(event) = self.news.pop_front() {
                return event;
            }
            self.bells.start(lines.dial(), waiting, keeper);
            let soon = waiting.pause().map(|pause| Instant::now() + self.pause(pause));
            // Whoever joins does not put it off.
            self.due = soon.map(|soon| self.due.map_or(soon, |due| due.min(soon)));
            tokio::select! {
                () = until(self.due) => {}
                () = waiting.joined.notified() => continue,
                rung = self.bells.next() => {
                    self.tell(waiting, rung, true, true);
                    continue;
                }
            }
            self.due = None;
            self.ask(lines, waiting, keeper).await;
        }
    }

    fn pause(&self, mut pause: Duration) -> Duration {
        if self.failures > 0 {
            pause = PAUSE.saturating_mul(1 << self.failures.min(8)).min(MAX_PAUSE);
        }
        // So that many keepers do not ask at the same moments.
        pause.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    async fn ask(&mut self, lines: &Lines, waiting: &Waiting, keeper: HolderId) {
        let (mut asked, mut rung) = (std::pin::pin!(handed(lines, keeper)), Vec::new());
        let answer = loop {
            tokio::select! {
                answer = &mut asked => break answer,
                more = self.bells.next() => rung.extend(more),
            }
        };
        let alone = rung.is_empty();
        self.tell(waiting, rung, true, false);
        match answer {
            Ok(grants) => {
                if std::mem::take(&mut self.failures) > 0 {
                    self.news.push_back(Event::Reconnected);
                }
                self.tell(waiting, grants, false, alone);
            }
            Err(error) => {
                if self.failures == 0 {
                    crate::log::say(move || tracing::debug!(%error, "cannot ask which waiters were let in"));
                }
                self.failures = self.failures.saturating_add(1);
            }
        }
    }

    /// Tells of each grant once. What is not among the `latest` grants is over.
    fn tell(&mut self, waiting: &Waiting, grants: Grants, rung: bool, latest: bool) {
        if latest {
            let there: HashSet<_> = grants.iter().map(|(holder, grant)| (*holder, grant.token.get())).collect();
            self.told.retain(|told| there.contains(told));
        }
        for (holder, grant) in grants {
            if self.told.insert((holder, grant.token.get())) {
                waiting.let_in(holder, grant.lease);
                if rung {
                    waiting.count();
                }
                self.news.push_back(Event::Granted(holder, grant));
            }
        }
    }
}

/// Asks for grants that were handed over to claims of this keeper and not picked up yet.
pub(super) fn question(p: &str, keeper: HolderId) -> String {
    let keeper = keeper.to_hex();
    format!(
        "SELECT holder, token, stamp, lease FROM `{p}lock` WHERE keeper = X'{keeper}' AND lease IS NOT NULL \
         UNION ALL SELECT holder, token, stamp, lease FROM `{p}claim` WHERE keeper = X'{keeper}' AND lease IS NOT NULL"
    )
}

/// What the question's rows say.
pub(super) fn grants<'a>(rows: impl Iterator<Item = &'a Row>) -> Result<Grants> {
    let read = |row: &Row| {
        let stamp = Stamp::from_micros(number(row, 2)?.and_then(|n| u64::try_from(n).ok()).unwrap_or(0));
        let lease = duration(number(row, 3)?.unwrap_or(0));
        Ok((holder(row, 0)?, Grant { token: token(number(row, 1)?)?, stamp, lease }))
    };
    rows.map(read).collect()
}

async fn handed(lines: &Lines, keeper: HolderId) -> Result<Grants> {
    let rows = lines.query(question(&lines.dial().options.prefix, keeper), ASK_LIMIT).await?;
    grants(rows.iter())
}
