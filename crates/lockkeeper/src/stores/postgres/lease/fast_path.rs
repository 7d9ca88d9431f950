//! One Exclusive claim of a lock that is free: a plain statement does what the functions would do first. Calling a function
//! costs as much again as what it does. What a statement leaves undone is for the function, which knows every case.

use crate::error::Result;
use crate::name::LockName;
use crate::store::{Claim, Mode};
use crate::stores::postgres::connect::Connection;
use crate::stores::postgres::schema::{NOW, PATIENCE};
use crate::stores::postgres::values::Id;
use crate::stores::shared::sql::{Answer, Op, micros};
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::OnceCell;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Statement};

/// How many names are remembered as busy.
const MAX_BUSY: usize = 10_000;

/// Prepared when first needed, for one connection.
#[derive(Debug, Default)]
pub(in crate::stores::postgres) struct FastPath {
    patience: OnceCell<()>,
    take: OnceCell<Statement>,
    end: OnceCell<Statement>,
}

/// Names of which a statement was not enough the last time: the function is asked at once. Nothing depends on it.
#[derive(Debug, Default)]
pub(in crate::stores::postgres) struct FastPathHints(Mutex<HashSet<LockName>>);

impl FastPathHints {
    fn lock(&self) -> MutexGuard<'_, HashSet<LockName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim for which a plain statement is worth a try.
    pub(super) fn worth<'a>(&self, op: Op, claims: &'a [Claim]) -> Option<&'a Claim> {
        let [claim] = claims else { return None };
        let plain = match op {
            Op::Acquire => true,
            Op::Release => !claim.unsettled,
            Op::Renew => false,
        };
        (plain && claim.mode == Mode::Exclusive && !self.lock().contains(&claim.name)).then_some(claim)
    }

    pub(super) fn note(&self, name: &LockName, busy: bool) {
        let mut names = self.lock();
        if !busy {
            names.remove(name);
            return;
        }
        if names.len() >= MAX_BUSY {
            names.clear();
        }
        names.insert(name.clone());
    }
}

/// Takes or ends one lock; `None`: nothing was done.
pub(super) async fn run(connection: &Connection, schema: &str, op: Op, claim: &Claim) -> Result<Option<Answer>, Error> {
    let (client, prepared) = (&*connection.client, &connection.statements.fast_path);
    let (name, holder) = (claim.name.as_bytes(), Id(claim.holder));
    // As the functions do for themselves.
    prepared.patience.get_or_try_init(|| client.batch_execute(PATIENCE)).await?;
    if op == Op::Release {
        let statement = prepared.end.get_or_try_init(|| end(client, schema)).await?;
        let ended = client.execute(statement, &[&name, &holder]).await?;
        return Ok((ended > 0).then(|| Answer::new(claim.holder, 1, None)));
    }
    let statement = prepared.take.get_or_try_init(|| take(client, schema)).await?;
    let (host, pid, label) = (claim.note.host.as_bytes(), i64::from(claim.note.pid), claim.note.label.as_bytes());
    let ttl = micros(claim.ttl);
    let rows = client.query(statement, &[&name, &holder, &ttl, &host, &pid, &label]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let token = row.try_get(0)?;
    let mut answer = Answer::new(claim.holder, 1, Some(token));
    answer.lease = Some(ttl);
    Ok(Some(answer))
}

async fn take(client: &Client, schema: &str) -> Result<Statement, Error> {
    let text = format!(
        "INSERT INTO {schema}.lock AS l (name, token, holder, expires, ttl, since, host, pid, label)
         SELECT $1, a.at, $2, a.at + $3, $3, a.at, $4, $5, $6 FROM (SELECT {NOW} AS at OFFSET 0) AS a
         ON CONFLICT (name) DO UPDATE SET token = greatest(l.token + 1, excluded.token), holder = excluded.holder,
             expires = excluded.expires, ttl = excluded.ttl, since = excluded.since, host = excluded.host,
             pid = excluded.pid, label = excluded.label, keeper = NULL, stamp = NULL, lease = NULL
         WHERE l.others = 0 AND (l.holder IS NULL OR l.expires <= excluded.since) AND l.token < 9007199254740991
         RETURNING l.token"
    );
    let types = [Type::BYTEA, Type::UUID, Type::INT8, Type::BYTEA, Type::INT8, Type::BYTEA];
    client.prepare_typed(&text, &types).await
}

async fn end(client: &Client, schema: &str) -> Result<Statement, Error> {
    let text = format!(
        "UPDATE {schema}.lock l SET holder = NULL, expires = NULL, ttl = NULL, since = NULL, host = NULL, pid = NULL,
             label = NULL, keeper = NULL, stamp = NULL, lease = NULL
         WHERE l.name = $1 AND l.holder = $2 AND l.others = 0 AND l.expires > {NOW}"
    );
    client.prepare_typed(&text, &[Type::BYTEA, Type::UUID]).await
}
