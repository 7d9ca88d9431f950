//! Calls that wait for replicas: each has a connection of its own, since a WAIT holds up every call behind it.

use super::connections::{Connection, Connections, Key};
use super::gather::send;
use super::script::Failure;
use crate::error::{Error, Result};
use crate::mutant::planted;
use crate::stores::redis::error::map_err;
use crate::stores::redis::options::Node;
use redis::Value;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::{Handle, Id};

/// Connections that one call has for itself, by runtime.
pub(super) type InUse = Mutex<HashSet<(Id, Key)>>;

/// The right of one call to a connection of its own.
pub(super) struct Private {
    in_use: Arc<InUse>,
    key: (Id, Key),
}

impl Drop for Private {
    fn drop(&mut self) {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

impl Connections {
    /// A connection that no other call uses until `Private` is dropped.
    pub(super) async fn private(&self, node: &Node) -> Result<(Connection, Private)> {
        let runtime = Handle::try_current().map_err(|_| Error::unavailable("a Tokio runtime is needed here"))?.id();
        let in_use = self.private_ones().clone();
        let key = {
            let mut all = in_use.lock().unwrap_or_else(PoisonError::into_inner);
            let free = (1..).find(|number| !all.contains(&(runtime, (node.clone(), *number))));
            let key = (runtime, (node.clone(), free.unwrap_or(u32::MAX)));
            all.insert(key.clone());
            key
        };
        let private = Private { in_use, key };
        Ok((self.numbered(private.key.1.clone()).await?, private))
    }
}

/// Waits for the replicas on the connection that wrote. With too few of them, what was granted, prolonged or written
/// counts as unknown.
///
/// Nothing is undone here: an undo could arrive after a repeat of the same claim was granted. The engine repeats the
/// claim, or ends it with a release that leaves a tombstone.
pub(super) async fn confirm(
    connection: &mut Connection,
    limit: Duration,
    (count, time): (u32, Duration),
    answers: &mut [Result<Value, Failure>],
) {
    let wrote = |answer: &Result<Value, Failure>| match answer {
        // A token, or that a lease was prolonged.
        Ok(Value::Int(_)) => true,
        Ok(Value::Array(fields)) => matches!(fields.first(), Some(Value::Int(1 | 2))),
        _ => false,
    };
    if !answers.iter().any(wrote) || planted("no-wait-for-replicas") {
        return;
    }
    let mut wait = redis::cmd("WAIT");
    // Shorter than the call's own limit, so that the caller hears how many confirmed.
    wait.arg(count).arg(time.min(limit.mul_f64(0.6)).as_millis().max(1) as u64);
    let error = match send(connection, vec![wait]).await.pop() {
        Some(Ok(Value::Int(acks))) if acks >= i64::from(count) => return,
        Some(Ok(Value::Int(acks))) => Error::unavailable(format!("{acks} of {count} replicas confirmed in time")),
        Some(Err(error)) => map_err(error),
        _ => Error::unavailable("no replica confirmed"),
    }
    .in_store("redis");
    for answer in answers.iter_mut().filter(|answer| wrote(answer)) {
        *answer = Err(Failure::Ours(error.clone()));
    }
}
