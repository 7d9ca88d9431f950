//! One statement on one connection, for any number of claims: which it is, how long it may take, what it answers.

use super::functions;
use super::queue::{Shared, Turn, timed_out};
use crate::error::{Error, Result};
use crate::store::Claim;
use crate::stores::postgres::connect::{Connection, Connections};
use crate::stores::postgres::error::{is_locked, locked};
use crate::stores::postgres::values::{self, unexpected_reply};
use crate::stores::shared::silence::{Asking, PATIENCE};
use crate::stores::shared::sql::{Answer, Op};
use crate::token::HolderId;
use std::collections::HashMap;
use std::time::Duration;
use tokio_postgres::Row;

impl Shared {
    /// Sends one statement on the connection of a turn and reads its answers.
    pub(in crate::stores::postgres) async fn fly(
        &self,
        turn: &Turn,
        op: Op,
        claims: &[Claim],
        limit: Duration,
    ) -> Vec<Result<Answer>> {
        let all = |error: Error| claims.iter().map(|_| Err(error.clone())).collect();
        let no = turn.no;
        // A timer costs more than the table, and is needed only where something has to be opened.
        let opened = match self.connections.ready(no) {
            Some(connection) => Ok(Ok(connection)),
            None => {
                tokio::time::timeout(limit, async {
                    match self.connections.get(no).await {
                        // No room for another connection: the first one serves this too, after what it is at.
                        Err(_) if no > 0 => self.connections.get(0).await,
                        opened => opened,
                    }
                })
                .await
            }
        };
        let connection = match opened {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return all(error),
            Err(_) => return all(Error::unavailable("the server could not be reached in time").in_store("postgres")),
        };
        let asking = asking(&self.connections, &connection, limit);
        let sent = tokio::time::timeout(limit, self.send(&connection, op, claims, turn.has_room())).await;
        match &sent {
            Ok(_) => asking.answered(),
            Err(_) => drop(asking),
        }
        match sent {
            Ok(Ok(answers)) => answers,
            Ok(Err(error)) => all(error),
            Err(_) => {
                // Perhaps the server waits for a row: the next calls look first.
                self.locked_rows.seen();
                all(timed_out())
            }
        }
    }

    /// Sends a statement for all claims. Where a row is locked by another transaction, claims of other names are answered
    /// all the same. With `room`, the next call has another connection: one claim by itself may wait for its row then.
    async fn send(&self, connection: &Connection, op: Op, claims: &[Claim], room: bool) -> Result<Vec<Result<Answer>>> {
        let is_locked_row = || locked(&format!("{}.lock", self.connections.options().schema));
        if !self.locked_rows.lately() || (room && claims.len() == 1) {
            match self.send_now(connection, op, claims).await {
                Err(error) if is_locked(&error) => {
                    self.locked_rows.seen();
                    if claims.len() == 1 {
                        return Err(is_locked_row());
                    }
                }
                sent => return sent,
            }
        }
        let locked = functions::locked(&self.connections, connection, claims).await?;
        if locked.is_empty() {
            return self.send_now(connection, op, claims).await;
        }
        self.locked_rows.seen();
        let is_free = |claim: &&Claim| !locked.contains(claim.name.as_bytes());
        let free: Vec<Claim> = claims.iter().filter(is_free).cloned().collect();
        let sent = if free.is_empty() { Vec::new() } else { self.send_now(connection, op, &free).await? };
        let mut sent = sent.into_iter();
        let answer = |claim| match is_free(&claim) {
            true => sent.next().unwrap_or_else(|| Err(unexpected_reply("too little"))),
            false => Err(is_locked_row()),
        };
        Ok(claims.iter().map(answer).collect())
    }

    /// A plain statement where that may be enough, else the function.
    async fn send_now(&self, connection: &Connection, op: Op, claims: &[Claim]) -> Result<Vec<Result<Answer>>> {
        let plain = self.hints.worth(op, claims);
        if let Some(claim) = plain {
            if let Some(answer) = functions::try_fast_path(&self.connections, connection, op, claim).await? {
                return Ok(vec![Ok(answer)]);
            }
            self.hints.note(&claim.name, true);
        }
        let rows = functions::send(&self.connections, connection, op, claims, self.keeper).await?;
        Ok(self.read(op, claims, &rows))
    }

    fn read(&self, op: Op, claims: &[Claim], rows: &[Row]) -> Vec<Result<Answer>> {
        match (claims, rows) {
            ([claim], [row]) => {
                let answer = values::answer(row);
                if op == Op::Acquire && matches!(&answer, Ok(answer) if answer.code == 1) {
                    self.hints.note(&claim.name, false);
                }
                vec![answer]
            }
            _ => {
                let read = rows.iter().filter_map(|row| values::answer(row).ok());
                let read: HashMap<HolderId, Answer> =
                    read.filter_map(|answer| Some((answer.holder?, answer))).collect();
                let answer = |claim: &Claim| read.get(&claim.holder).cloned();
                claims.iter().map(|claim| answer(claim).ok_or_else(|| unexpected_reply("too little"))).collect()
            }
        }
    }
}

/// A statement under way: one that ends without an answer condemns a connection that has been silent for too long.
pub(in crate::stores::postgres) fn asking<'a>(
    connections: &'a Connections,
    connection: &'a Connection,
    limit: Duration,
) -> Asking<'a, impl FnMut()> {
    // A short lease has no time for more.
    connection.silence.ask(PATIENCE.min(limit.mul_f64(0.8)), || connections.broken(connection))
}
