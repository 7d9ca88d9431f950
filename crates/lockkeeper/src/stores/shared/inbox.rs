//! What calls leave for [`Store::tend`](crate::store::Store::tend) to do.

use super::lock;
use std::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A queue that calls fill from any thread and `tend` empties.
#[derive(Debug)]
pub(in crate::stores) struct Inbox<T> {
    sender: UnboundedSender<T>,
    receiver: Mutex<Option<UnboundedReceiver<T>>>,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        let (sender, receiver) = unbounded_channel();
        Self { sender, receiver: Some(receiver).into() }
    }
}

impl<T> Inbox<T> {
    /// Leaves something; lost once `tend` has ended, with the keeper.
    pub(in crate::stores) fn tell(&self, news: T) {
        let _ = self.sender.send(news);
    }

    /// The reading end, for the one `tend` of a store.
    pub(in crate::stores) fn take(&self) -> Option<UnboundedReceiver<T>> {
        lock(&self.receiver).take()
    }
}
