//! Connections that questions use one after the other, so that most questions need not look for one.
//!
//! The table of connections decides which connection is in order. What is remembered here is forgotten as soon as a
//! question has no answer; the next one asks the table.

use super::ask::Question;
use crate::clock::Stamp;
use crate::stores::redis::driver::connections::Connection;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tokio::runtime::{Handle, Id};

/// How many connections to a node are remembered: as many as questions are usually under way together.
const MOST: usize = 64;

/// A clone of a connection, for one question at a time.
pub(super) struct Ready {
    pub(super) connection: Connection,
    /// From when on the node counts.
    pub(super) counts_from: Stamp,
    runtime: Option<Id>,
    generation: u64,
}

/// The connections to one node that no question uses.
#[derive(Default)]
pub(super) struct Idle {
    connections: Mutex<Vec<Ready>>,
    /// How often connections were forgotten: those in use meanwhile are not taken back.
    generation: AtomicU64,
}

impl std::fmt::Debug for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Idle").field("generation", &self.generation()).finish_non_exhaustive()
    }
}

impl Idle {
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// A connection of this runtime that has answered.
    pub(super) fn take(&self, runtime: Id) -> Option<Ready> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let at = connections.iter().rposition(|ready| ready.runtime == Some(runtime))?;
        Some(connections.swap_remove(at))
    }

    pub(super) fn put_back(&self, ready: Ready) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.generation != self.generation() {
            return;
        }
        // The oldest goes: it may belong to a runtime that has ended.
        let oldest = (connections.len() == MOST).then(|| connections.remove(0));
        connections.push(ready);
        drop(connections);
        drop(oldest);
    }

    fn forget(&self) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        self.generation.fetch_add(1, Ordering::Release);
        let forgotten = std::mem::take(&mut *connections);
        drop(connections);
        // The last clone of a connection closes it.
        drop(forgotten);
    }
}

impl Ready {
    /// A connection of the table, which was asked for in this generation or later. It is not known yet to count.
    pub(super) fn new(connection: Connection, generation: u64) -> Self {
        let runtime = Handle::try_current().ok().map(|handle| handle.id());
        Self { connection, counts_from: Stamp::from_micros(u64::MAX), runtime, generation }
    }
}

/// A question over a connection. If it is dropped before the answer came, the node's connections are forgotten.
pub(super) struct Watch<'a> {
    pub(super) ready: &'a mut Ready,
    pub(super) idle: &'a Idle,
    pub(super) question: &'a Question,
    pub(super) answered: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.idle.forget();
            if self.question.timed_out.load(Ordering::Relaxed) {
                self.ready.connection.broken();
            }
        }
    }
}
