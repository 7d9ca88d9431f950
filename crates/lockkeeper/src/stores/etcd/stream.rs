//! One stream of watches to one member, whatever is watched.

use super::connect::Connection;
use super::core::Core;
use super::proto::{WatchAnswer, WatchCancel, WatchCreate, WatchOp, WatchRequest};
use crate::error::{Error, Result};
use crate::stores::shared::timing::{ASK_LIMIT, MAX_PAUSE, back_off};
use futures_util::stream::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::Streaming;

/// The number of the first watch that is asked for; the server's first answer is to that of the stream itself.
pub(super) const FIRST: i64 = 1;

/// Deletes only, as etcd numbers filters.
const NO_PUTS: i32 = 0;

/// The pause before a stream whose watches were refused is opened for a second time; it doubles.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Stream {
    /// The connection it was opened on, and the login it was opened with.
    pub(super) connection: Connection,
    requests: mpsc::UnboundedSender<WatchRequest>,
    answers: Streaming<WatchAnswer>,
}

impl Stream {
    /// Opens one, after a pause.
    pub(super) async fn open(core: Arc<Core>, pause: Duration) -> Result<Box<Self>> {
        tokio::time::sleep(pause).await;
        let opened = async {
            let connection = core.rpc.connection(ASK_LIMIT).await?;
            let (requests, mut from) = mpsc::unbounded_channel();
            // A server says nothing before the first watch is there; this one is for a key that never exists.
            let first = WatchCreate { key: b"/lk/nothing".to_vec(), watch_id: FIRST, ..WatchCreate::default() };
            let _ = requests.send(WatchRequest { op: Some(WatchOp::Create(first)) });
            let answers =
                core.rpc.watch(&connection, poll_fn(move |cx| from.poll_recv(cx))).await.map_err(Error::from)?;
            Ok(Box::new(Self { connection, requests, answers }))
        };
        let timed_out = || Err(Error::unavailable("the server does not answer").in_store("etcd"));
        tokio::time::timeout(ASK_LIMIT, opened).await.unwrap_or_else(|_| timed_out())
    }

    /// Watches keys for what happens after the revision `seen`.
    pub(super) fn create(&self, watch_id: i64, [key, end]: [Vec<u8>; 2], seen: i64, deletes_only: bool) {
        let filters = if deletes_only { vec![NO_PUTS] } else { Vec::new() };
        self.request(WatchOp::Create(WatchCreate { key, end, start_revision: seen + 1, filters, watch_id }));
    }

    pub(super) fn cancel(&self, watch_id: i64) {
        self.request(WatchOp::Cancel(WatchCancel { watch_id }));
    }

    fn request(&self, op: WatchOp) {
        // A stream that has ended is noticed where its answers are read.
        let _ = self.requests.send(WatchRequest { op: Some(op) });
    }
}

/// How long to wait before a stream is opened, after so many failures and refusals in a row.
pub(super) fn pause(failures: u32, refused: u32) -> Duration {
    if refused > 1 {
        return REFUSED_PAUSE.saturating_mul(1 << (refused - 2).min(6));
    }
    if failures == 0 {
        return Duration::ZERO;
    }
    back_off(Duration::from_millis(20), failures, MAX_PAUSE)
}

/// Says once that there is no stream.
pub(super) fn warn(error: Error, failures: u32) {
    if failures == 0 {
        crate::log::say(move || tracing::warn!(%error, "no watch on etcd: waiters look again by themselves"));
    }
}

/// What the stream says next; `None` when it has ended. Without a stream it says nothing.
pub(super) async fn next_answer(stream: &mut Option<Box<Stream>>) -> Option<WatchAnswer> {
    match stream {
        Some(stream) => match stream.answers.message().await {
            Ok(answer) => answer,
            Err(error) => {
                crate::log::say(move || tracing::debug!(%error, "the watch on etcd has ended"));
                None
            }
        },
        None => std::future::pending().await,
    }
}
