//! The three statements of every day, prepared where connections are sessions, and sent whole where a pooler stands
//! between.

use super::fast_path::{self, FastPath};
use crate::error::{Error, Result};
use crate::store::Claim;
use crate::stores::postgres::connect::{Connection, Connections};
use crate::stores::postgres::error::{is_fatal, is_pooling, map_err};
use crate::stores::postgres::values::{Id, field};
use crate::stores::shared::sql::{Answer, LOOK_PAUSE, LOOKS, Op, micros, mode_number};
use crate::stores::shared::timing::TOMBSTONE_EXTRA;
use crate::token::HolderId;
use std::collections::HashSet;
use tokio::sync::OnceCell;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Statement};

/// The call of a step's function, with its parameters' types.
fn text_of(op: Op, schema: &str) -> (String, &'static [Type]) {
    match op {
        Op::Acquire => (
            format!("SELECT * FROM {schema}.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"),
            &[
                Type::BYTEA_ARRAY,
                Type::UUID_ARRAY,
                Type::INT8_ARRAY,
                Type::INT8_ARRAY,
                Type::BOOL_ARRAY,
                Type::INT8_ARRAY,
                Type::INT8_ARRAY,
                Type::UUID,
                Type::BYTEA_ARRAY,
                Type::INT8_ARRAY,
                Type::BYTEA_ARRAY,
            ],
        ),
        Op::Renew => (
            format!("SELECT * FROM {schema}.renew($1, $2, $3, $4, $5, $6)"),
            &[Type::BYTEA_ARRAY, Type::UUID_ARRAY, Type::INT8_ARRAY, Type::INT8_ARRAY, Type::INT8_ARRAY, Type::UUID],
        ),
        Op::Release => (
            format!("SELECT * FROM {schema}.release($1, $2, $3)"),
            &[Type::BYTEA_ARRAY, Type::UUID_ARRAY, Type::INT8_ARRAY],
        ),
    }
}

/// What is prepared on one connection.
#[derive(Debug, Default)]
pub(in crate::stores::postgres) struct Statements {
    acquire: OnceCell<Statement>,
    renew: OnceCell<Statement>,
    release: OnceCell<Statement>,
    pub(in crate::stores::postgres) fast_path: FastPath,
}

impl Statements {
    fn cell(&self, op: Op) -> &OnceCell<Statement> {
        match op {
            Op::Acquire => &self.acquire,
            Op::Renew => &self.renew,
            Op::Release => &self.release,
        }
    }
}

/// Runs one step for every claim, in one statement.
pub(in crate::stores::postgres) async fn send(
    connections: &Connections,
    connection: &Connection,
    op: Op,
    claims: &[Claim],
    keeper: HolderId,
) -> Result<Vec<Row>> {
    let names: Vec<&[u8]> = claims.iter().map(|c| c.name.as_bytes()).collect();
    let holders: Vec<Id> = claims.iter().map(|c| Id(c.holder)).collect();
    let ttls: Vec<i64> = claims.iter().map(|c| micros(c.ttl)).collect();
    if op == Op::Release {
        let tombs: Vec<Option<i64>> =
            claims.iter().map(|c| c.unsettled.then(|| micros(c.ttl + TOMBSTONE_EXTRA))).collect();
        return call(connections, connection, op, &[&names, &holders, &tombs]).await;
    }
    let lives: Vec<i64> = claims.iter().map(|c| micros(c.waiter_lease())).collect();
    let stamps: Vec<i64> = claims.iter().map(|c| i64::try_from(c.stamp.as_micros()).unwrap_or(i64::MAX)).collect();
    let keeper = Id(keeper);
    if op == Op::Renew {
        return call(connections, connection, op, &[&names, &holders, &ttls, &lives, &stamps, &keeper]).await;
    }
    let modes: Vec<i64> = claims.iter().map(|c| mode_number(c.mode)).collect();
    let queues: Vec<bool> = claims.iter().map(|c| c.queue).collect();
    let hosts: Vec<&[u8]> = claims.iter().map(|c| c.note.host.as_bytes()).collect();
    let pids: Vec<i64> = claims.iter().map(|c| i64::from(c.note.pid)).collect();
    let labels: Vec<&[u8]> = claims.iter().map(|c| c.note.label.as_bytes()).collect();
    call(
        connections,
        connection,
        op,
        &[&names, &holders, &modes, &ttls, &queues, &lives, &stamps, &keeper, &hosts, &pids, &labels],
    )
    .await
}

/// The plain statement of one claim, where connections are sessions; `None`: the function has to be called.
pub(in crate::stores::postgres) async fn try_fast_path(
    connections: &Connections,
    connection: &Connection,
    op: Op,
    claim: &Claim,
) -> Result<Option<Answer>> {
    if !connections.is_session(connection.direct) {
        return Ok(None);
    }
    match fast_path::run(connection, &connections.options().schema, op, claim).await {
        // The server has not begun it.
        Err(error) if is_pooling(&error) => {
            connections.found_pooler();
            Ok(None)
        }
        answered => answered.map_err(|error| failed(connections, connection, error)),
    }
}

/// The names whose rows another transaction keeps locked.
pub(in crate::stores::postgres) async fn locked(
    connections: &Connections,
    connection: &Connection,
    claims: &[Claim],
) -> Result<HashSet<Vec<u8>>> {
    let text = format!(
        "WITH free AS (SELECT name FROM {s}.lock WHERE name = ANY ($1) FOR UPDATE SKIP LOCKED) \
         SELECT name FROM {s}.lock WHERE name = ANY ($1) AND name NOT IN (SELECT name FROM free)",
        s = connections.options().schema
    );
    let mut names: Vec<Vec<u8>> = claims.iter().map(|claim| claim.name.as_bytes().to_vec()).collect();
    for look in 0..LOOKS {
        if look > 0 {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        let rows = connection.client.query_typed(&text, &[(&names, Type::BYTEA_ARRAY)]).await;
        let rows = rows.map_err(|error| failed(connections, connection, error))?;
        names = rows.iter().map(|row| field(row, 0)).collect::<Result<_>>()?;
        if names.is_empty() {
            break;
        }
    }
    Ok(names.into_iter().collect())
}

async fn call(
    connections: &Connections,
    connection: &Connection,
    op: Op,
    params: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>> {
    if connections.is_session(connection.direct) {
        let prepare = || async {
            let (text, types) = text_of(op, &connections.options().schema);
            connection.client.prepare_typed(&text, types).await
        };
        let prepared = connection.statements.cell(op).get_or_try_init(prepare).await;
        let answered = match prepared {
            Ok(statement) => connection.client.query(statement, params).await,
            Err(error) => Err(error),
        };
        match answered {
            // The server has not begun it, so sending it again is no repeat.
            Err(error) if is_pooling(&error) => connections.found_pooler(),
            answered => return answered.map_err(|error| failed(connections, connection, error)),
        }
    }
    let (text, types) = text_of(op, &connections.options().schema);
    let typed: Vec<(&(dyn ToSql + Sync), Type)> = params.iter().copied().zip(types.iter().cloned()).collect();
    connection.client.query_typed(&text, &typed).await.map_err(|error| failed(connections, connection, error))
}

/// What an error means, after drawing the conclusions for the connection.
pub(in crate::stores::postgres) fn failed(
    connections: &Connections,
    connection: &Connection,
    error: tokio_postgres::Error,
) -> Error {
    if is_fatal(&error) {
        connections.broken(connection);
    }
    map_err(error)
}
