//! Effects that happen once, without `async`.

use super::{Keeper, block_on};
use crate::error::{Error, Result};
use crate::recipes::once::{Begun, InProgress, OnFailure, Running};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::time::Duration;

impl Keeper {
    /// Describes an effect that is to happen once for `key`; no I/O. See [`crate::Keeper::once`].
    pub fn once(&self, key: impl AsRef<[u8]>) -> Once {
        Once(self.0.once(key))
    }
}

/// An effect that happens once for its key; see [`crate::recipes::Once`].
#[derive(Clone, Debug)]
#[must_use = "nothing happens until it is run"]
pub struct Once(crate::recipes::Once);

impl Once {
    /// See [`crate::recipes::Once::fingerprint`].
    pub fn fingerprint(self, request: impl AsRef<[u8]>) -> Self {
        Self(self.0.fingerprint(request))
    }

    /// See [`crate::recipes::Once::keep`].
    pub fn keep(self, keep: Duration) -> Self {
        Self(self.0.keep(keep))
    }

    /// See [`crate::recipes::Once::schema`].
    pub fn schema(self, tag: impl Into<String>) -> Self {
        Self(self.0.schema(tag))
    }

    /// See [`crate::recipes::Once::limit`].
    pub fn limit(self, bytes: usize) -> Self {
        Self(self.0.limit(bytes))
    }

    /// See [`crate::recipes::Once::on_failure`].
    pub fn on_failure(self, policy: OnFailure) -> Self {
        Self(self.0.on_failure(policy))
    }

    /// See [`crate::recipes::Once::in_progress`].
    pub fn in_progress(self, choice: InProgress) -> Self {
        Self(self.0.in_progress(choice))
    }

    /// See [`crate::recipes::Once::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self(self.0.wait(wait))
    }

    /// See [`crate::recipes::Once::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// See [`crate::recipes::Once::max_hold`].
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self(self.0.max_hold(max_hold))
    }

    /// See [`crate::recipes::Once::label`].
    pub fn label(self, label: impl Into<String>) -> Self {
        Self(self.0.label(label))
    }

    /// Answers with the stored result, or runs `work` and stores its result; see [`crate::recipes::Once::run`]. Nothing can
    /// cancel blocking work: look at the lease before every step that matters.
    ///
    /// # Errors
    /// As [`crate::recipes::Once::run`]. Work that ended after its lease is not `Lost`: its result is stored, or `Stale` if
    /// another caller has taken over.
    pub fn run<T, E>(&self, work: impl FnOnce(Running) -> Result<T, E>) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<Error> + Display,
    {
        match block_on(self.0.begin())? {
            Begun::Settled(result) => Ok(result),
            Begun::Ours(turn) => {
                let outcome = work(turn.running().clone());
                block_on(turn.finish(outcome))
            }
        }
    }
}
