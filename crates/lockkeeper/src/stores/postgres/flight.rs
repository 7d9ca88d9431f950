//! One statement on one connection, for any number of claims: which it is, how long it may take, what it answers.

use super::connect::{Line, Links};
use super::error::{self, is_locked};
use super::lanes::{Shared, late};
use super::statements::{self, Op};
use super::values::{Answer, odd};
use crate::error::{Error, Result};
use crate::store::Claim;
use crate::stores::shared::silence::{Asking, PATIENCE};
use crate::token::HolderId;
use std::collections::HashMap;
use std::slice::from_ref;
use std::time::{Duration, Instant};
use tokio_postgres::Row;

impl Shared {
    /// Sends one statement on connection `no` and reads its answers.
    pub(super) async fn fly(&self, no: u32, op: Op, claims: &[Claim], limit: Duration) -> Vec<Result<Answer>> {
        let all = |error: Error| claims.iter().map(|_| Err(error.clone())).collect();
        // A timer costs more than the table, and is needed only where something has to be opened.
        let opened = match self.links.ready(no) {
            Some(line) => Ok(Ok(line)),
            None => {
                tokio::time::timeout(limit, async {
                    match self.links.line(no).await {
                        // No room for another connection: the first one serves this too, after what it is at.
                        Err(_) if no > 0 => self.links.line(0).await,
                        opened => opened,
                    }
                })
                .await
            }
        };
        let line = match opened {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => return all(error),
            Err(_) => return all(Error::unavailable("the server could not be reached in time").in_store("postgres")),
        };
        let asking = asking(&self.links, &line, limit);
        let (careful, half) = (no >= self.links.options().connections, Instant::now() + limit / 2);
        let sent = tokio::time::timeout(limit, self.send(&line, op, claims, careful, half)).await;
        match &sent {
            Ok(_) => asking.answered(),
            Err(_) => drop(asking),
        }
        match sent {
            Ok(Ok(answers)) => answers,
            Ok(Err(error)) => all(error),
            Err(_) => {
                // Perhaps it waits for a row: the next time it is looked first.
                self.suspect(claims);
                all(late())
            }
        }
    }

    /// Looks first where somebody kept a row locked a moment ago, or where nothing may wait for long.
    async fn send(
        &self,
        line: &Line,
        op: Op,
        claims: &[Claim],
        careful: bool,
        half: Instant,
    ) -> Result<Vec<Result<Answer>>> {
        if !careful && !claims.iter().any(|claim| self.stuck.knows(&claim.name)) {
            match self.send_now(line, op, claims).await {
                // Nothing was done. The others need not suffer for it.
                Err(error) if is_locked(&error) && claims.len() > 1 => {}
                sent => {
                    self.note(claims, &sent);
                    return sent;
                }
            }
        }
        if let [claim] = claims {
            return Ok(vec![self.look_and_send(line, op, claim).await]);
        }
        let locked = statements::locked(&self.links, line, claims).await?;
        let is_free = |claim: &&Claim| !locked.contains(claim.name.as_bytes());
        let free: Vec<Claim> = claims.iter().filter(is_free).cloned().collect();
        let sent = if free.is_empty() { Ok(Vec::new()) } else { self.send_now(line, op, &free).await };
        self.note(&free, &sent);
        let (mut sent, mut answers) = (sent?.into_iter(), Vec::with_capacity(claims.len()));
        for claim in claims {
            answers.push(if is_free(&claim) {
                sent.next().unwrap_or_else(|| Err(odd("too little")))
            } else if op == Op::Renew && !self.stuck.knows(&claim.name) && Instant::now() < half {
                // Many may want this lock, and each of them locks its row for a moment.
                self.look_and_send(line, op, claim).await
            } else {
                Err(error::locked())
            });
        }
        Ok(answers)
    }

    /// Waits for a row for a moment only.
    async fn look_and_send(&self, line: &Line, op: Op, claim: &Claim) -> Result<Answer> {
        let claims = from_ref(claim);
        let sent = match statements::look(&self.links, line, &claim.name).await {
            Ok(()) => self.send_now(line, op, claims).await,
            Err(error) => Err(error),
        };
        self.note(claims, &sent);
        sent?.pop().unwrap_or_else(|| Err(odd("too little")))
    }

    /// A plain statement where that may be enough, else the function.
    async fn send_now(&self, line: &Line, op: Op, claims: &[Claim]) -> Result<Vec<Result<Answer>>> {
        let plain = self.busy.worth(op, claims);
        if let Some(claim) = plain {
            if let Some(answer) = statements::try_quick(&self.links, line, op, claim).await? {
                return Ok(vec![Ok(answer)]);
            }
            self.busy.note(&claim.name, true);
        }
        let rows = statements::send(&self.links, line, op, claims, self.keeper).await?;
        Ok(self.read(op, claims, &rows))
    }

    fn read(&self, op: Op, claims: &[Claim], rows: &[Row]) -> Vec<Result<Answer>> {
        match (claims, rows) {
            ([claim], [row]) => {
                let answer = Answer::read(row);
                if op == Op::Acquire && matches!(&answer, Ok(answer) if answer.code == 1) {
                    self.busy.note(&claim.name, false);
                }
                vec![answer]
            }
            _ => {
                let read = rows.iter().filter_map(|row| Answer::read(row).ok()).map(|answer| (answer.holder, answer));
                let read: HashMap<HolderId, Answer> = read.collect();
                claims.iter().map(|claim| read.get(&claim.holder).cloned().ok_or_else(|| odd("too little"))).collect()
            }
        }
    }
}

/// A statement under way: one that ends without an answer condemns a connection that has been silent for too long.
pub(super) fn asking<'a>(links: &'a Links, line: &'a Line, limit: Duration) -> Asking<'a, impl FnMut()> {
    // A short lease has no time for more.
    line.silence.ask(PATIENCE.min(limit.mul_f64(0.8)), || links.broken(line))
}
