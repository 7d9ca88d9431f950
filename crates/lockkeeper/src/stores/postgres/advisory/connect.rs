//! The connection of the session: what moves its bytes, and whether a pooler stands between.

use crate::error::{Error, ErrorKind, Result};
use crate::stores::postgres::connect::Connections;
use crate::stores::postgres::error::map_err;
use crate::stores::postgres::socket::{Driver, Opened};
use crate::stores::postgres::values::field;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::{AsyncMessage, Client};

/// How long a session that is no longer needed may take to say good-bye.
const FAREWELL: Duration = Duration::from_millis(200);

/// How often it is looked, each time with another connection in a transaction, whether the session stays with its server.
const LOOKS: u32 = 3;

/// Moves the bytes of the session's connection and passes its notifications on, until the session is dropped.
pub(super) async fn drive(mut driver: Driver, notes: mpsc::UnboundedSender<String>, dropped: oneshot::Receiver<()>) {
    let forward = async {
        while let Some(Ok(message)) = driver.message().await {
            if let AsyncMessage::Notification(note) = message
                && notes.send(note.payload().to_owned()).is_err()
            {
                return;
            }
        }
    };
    tokio::select! {
        () = forward => {}
        // Resolves, with an error, when the session is dropped.
        _ = dropped => drop(tokio::time::timeout(FAREWELL, driver.until_closed()).await),
    }
}

/// Whether the session has another server process than before, or shares it with another connection. A second connection
/// begins a transaction each time: a pooler that gives servers to transactions must then show itself.
pub(in crate::stores::postgres) async fn is_pooled(
    connections: &Connections,
    client: &Client,
    pid: i32,
) -> Result<bool> {
    let Opened { client: mut other, driver, .. } = connections.open().await?;
    let (sender, _notes) = mpsc::unbounded_channel();
    let (_watch, dropped) = oneshot::channel();
    tokio::spawn(drive(driver, sender, dropped));
    let ask = "SELECT pg_backend_pid()";
    for _ in 0..LOOKS {
        let transaction = other.transaction().await.map_err(map_err)?;
        let theirs = transaction.query_typed(ask, &[]).await.map_err(map_err)?;
        let ours = client.query_typed(ask, &[]).await.map_err(map_err)?;
        let (theirs, ours) =
            (theirs.first().map(|row| field::<i32>(row, 0)), ours.first().map(|row| field::<i32>(row, 0)));
        transaction.rollback().await.map_err(map_err)?;
        if !matches!((theirs, ours), (Some(Ok(theirs)), Some(Ok(ours))) if ours == pid && theirs != pid) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Advisory locks belong to a session of the server.
pub(super) fn pooler() -> Error {
    let text = "a pooler gives each transaction another server, so no session can hold an advisory lock: connect to the \
                server itself, let the pooler pool sessions, or use mode=lease";
    Error::new(ErrorKind::Unsupported, text).in_store("postgres")
}
