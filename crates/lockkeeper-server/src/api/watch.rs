//! The stream of locks as they change, for programs: one poll of the store for all that watch.

use super::Asking;
use crate::auth::Verb;
use crate::gateway::Gateway;
use crate::limits::{Lasting, Place};
use crate::poll::Snapshot;
use crate::refused::{Answered, Refused};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream, StreamExt};
use lockkeeper::LockName;
use lockkeeper::store::Record;
use lockkeeper::wire::{VERSION, WireLock, named, unhex};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How often something is said, so that a client notices a connection that is dead.
const ALIVE: Duration = Duration::from_secs(5);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    prefix: Option<String>,
    prefix_hex: Option<String>,
}

struct Watched {
    gateway: Arc<Gateway>,
    asking: Asking,
    prefix: Vec<u8>,
    snapshots: watch::Receiver<Snapshot>,
    /// What was told; `None` before the first snapshot.
    told: Option<BTreeMap<LockName, Record>>,
    failed: bool,
    _place: Place,
}

/// A lock without what runs by itself: a renewal is no change.
fn still(record: &Record) -> Record {
    let mut record = record.clone();
    record.holders.iter_mut().for_each(|holder| holder.remaining = None);
    record
}

fn event(word: &str, data: &Value) -> Event {
    Event::default().event(word).data(data.to_string())
}

fn lock(record: &Record) -> Value {
    // It has numbers, text and lists only.
    serde_json::to_value(WireLock::from(record)).unwrap_or_default()
}

impl Watched {
    async fn next(&mut self) -> Option<Vec<Event>> {
        tokio::select! {
            changed = self.snapshots.changed() => changed.ok()?,
            () = self.gateway.closed() => return None,
        }
        let snapshot = self.snapshots.borrow_and_update().clone();
        Some(self.compare(&snapshot))
    }

    fn compare(&mut self, snapshot: &Snapshot) -> Vec<Event> {
        if let Some(failed) = &snapshot.failed {
            // Said once, until the store answers again.
            let said = std::mem::replace(&mut self.failed, true);
            let event = event("unavailable", &json!({ "v": VERSION, "title": failed }));
            return if said { Vec::new() } else { vec![event] };
        }
        self.failed = false;
        let mine =
            |r: &&Record| r.name.as_bytes().starts_with(&self.prefix) && self.asking.caller.may(Verb::Read, &r.name);
        let seen: Vec<&Record> = snapshot.records.iter().filter(mine).collect();
        let now: BTreeMap<LockName, Record> = seen.iter().map(|r| (r.name.clone(), still(r))).collect();
        let events = match &self.told {
            None => {
                let locks: Vec<Value> = seen.iter().map(|record| lock(record)).collect();
                vec![event("snapshot", &json!({ "v": VERSION, "locks": locks, "more": snapshot.more }))]
            }
            Some(told) => {
                let changed = seen.iter().filter(|record| told.get(&record.name) != now.get(&record.name));
                let gone = told.keys().filter(|name| !now.contains_key(*name));
                let changed = changed.map(|record| event("changed", &lock(record)));
                changed.chain(gone.map(|name| event("gone", &only_name(name)))).collect()
            }
        };
        self.told = Some(now);
        events
    }
}

fn only_name(name: &LockName) -> Value {
    match named(name.as_bytes()) {
        (Some(name), _) => json!({ "name": name }),
        (None, hex) => json!({ "name": null, "name_hex": hex }),
    }
}

pub(super) async fn watch(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    query: Result<Query<Which>, QueryRejection>,
) -> Answered<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    asking.caller.need_any(Verb::Read)?;
    let Query(query) = query.map_err(|e| Refused::invalid(e.body_text()))?;
    let bad = || Refused::invalid("give 'prefix', or 'prefix_hex' if it is not UTF-8; prefix= is every lock");
    let prefix = match (query.prefix, query.prefix_hex) {
        (Some(prefix), None) => prefix.into_bytes(),
        (None, Some(hex)) => unhex(&hex).ok_or_else(bad)?,
        _ => return Err(bad()),
    };
    let place = gateway.limits.take(&asking.caller.id, Lasting::View)?;
    let snapshots = gateway.poll.follow();
    let watched = Watched { gateway, asking, prefix, snapshots, told: None, failed: false, _place: place };
    let events = stream::unfold(watched, |mut watched| async move { Some((watched.next().await?, watched)) });
    let events = events.flat_map(|events| stream::iter(events.into_iter().map(Ok)));
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(ALIVE)))
}
