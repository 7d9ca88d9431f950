//! The stream that keeps a page fresh: the parts of the page that changed, as finished HTML, once a second at most.

use super::access::Visitor;
use super::trouble::Trouble;
use crate::gateway::Gateway;
use crate::limits::{Lasting, Place};
use crate::poll::Snapshot;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream, StreamExt};
use maud::Markup;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How often something is said, so that dead connections are noticed.
const ALIVE: Duration = Duration::from_secs(5);

/// A part of a page: the id of its element, and what is in it.
pub(super) type Part = (&'static str, Markup);

/// What a page shows of the locks at one moment.
pub(super) trait View: Send + Sync + 'static {
    /// Its parts.
    fn parts(
        &self,
        gateway: &Arc<Gateway>,
        visitor: &Visitor,
        snapshot: &Snapshot,
    ) -> impl Future<Output = Vec<Part>> + Send;
}

struct Told<V> {
    gateway: Arc<Gateway>,
    visitor: Visitor,
    view: V,
    snapshots: watch::Receiver<Snapshot>,
    /// What each part was told last.
    sent: HashMap<&'static str, String>,
    _place: Place,
}

impl<V: View> Told<V> {
    /// What changed with the next snapshot; `None` when the stream ends.
    async fn next(&mut self) -> Option<Vec<Event>> {
        tokio::select! {
            changed = self.snapshots.changed() => changed.ok()?,
            () = self.gateway.closed() => return None,
        }
        let snapshot = self.snapshots.borrow_and_update().clone();
        // A log-in may end, and a token may be taken away, while its page is open.
        if !self.visitor.still_counts(&self.gateway) {
            return None;
        }
        let mut events = Vec::new();
        for (id, html) in self.view.parts(&self.gateway, &self.visitor, &snapshot).await {
            let html = html.into_string();
            if self.sent.get(id) != Some(&html) {
                // A carriage return would end a line of the stream; HTML takes none for its meaning.
                events.push(Event::default().event(id).data(html.replace('\r', " ")));
                self.sent.insert(id, html);
            }
        }
        Some(events)
    }
}

/// Follows a view until the page is closed.
pub(super) fn follow<V: View>(
    gateway: Arc<Gateway>,
    visitor: Visitor,
    view: V,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Trouble> {
    let place = gateway.limits.take(&visitor.asking.caller.id, Lasting::View)?;
    let snapshots = gateway.poll.follow();
    let told = Told { gateway, visitor, view, snapshots, sent: HashMap::new(), _place: place };
    let events = stream::unfold(told, |mut told| async move { Some((told.next().await?, told)) });
    let events = events.flat_map(|events| stream::iter(events.into_iter().map(Ok)));
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(ALIVE)))
}
