//! Hears what a store tells by itself.

use crate::store::{Event, Sink, Store};
use std::pin::Pin;
use tokio::sync::mpsc;

/// Runs [`Store::tend`] as a keeper does, and gives its events one by one.
///
/// The store's own work goes on only while [`next`](Self::next) is awaited, so a test decides when hints may arrive.
pub struct Listener<'a> {
    tending: Pin<Box<dyn Future<Output = ()> + Send + 'a>>,
    told: mpsc::UnboundedReceiver<Event>,
}

impl<'a> Listener<'a> {
    /// Listens to `store`, of which no keeper and no other listener is made.
    pub fn of(store: &'a dyn Store) -> Self {
        let (sender, told) = mpsc::unbounded_channel();
        // The receiver is gone when the listener is: its events are hints.
        let events = Sink::new(move |event| drop(sender.send(event)));
        let tending = Box::pin(async move {
            store.tend(events).await;
            std::future::pending().await
        });
        Self { tending, told }
    }

    /// The next event. Dropping the future loses none.
    pub async fn next(&mut self) -> Event {
        tokio::select! {
            biased;
            Some(event) = self.told.recv() => event,
            () = &mut self.tending => std::future::pending().await,
        }
    }

    /// An event that was told already.
    pub fn told(&mut self) -> Option<Event> {
        self.told.try_recv().ok()
    }
}

impl std::fmt::Debug for Listener<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listener")
    }
}
