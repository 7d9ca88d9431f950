//! Locks as operators see them, and breaking one.

use super::Asking;
use crate::audit::Line;
use crate::auth::Verb;
use crate::gateway::Gateway;
use crate::input::Posted;
use crate::refused::{Answered, Refused};
use axum::Json;
use axum::extract::{Query, State};
use lockkeeper::store::{Break, Record};
use lockkeeper::wire::{VERSION, WireLock, WirePage, name_bytes, name_of};
use lockkeeper::{Held, LockName, Token};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// The longest reason.
const MAX_WHY: usize = 500;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct One {
    name: Option<String>,
    name_hex: Option<String>,
}

impl One {
    /// The name as the client gives it.
    pub(super) fn bytes(&self) -> Answered<Vec<u8>> {
        Ok(name_bytes(self.name.as_deref(), self.name_hex.as_deref())?)
    }
}

pub(super) type Asked<T> = Result<Query<T>, axum::extract::rejection::QueryRejection>;

/// A query that was understood.
pub(super) fn understood<T>(query: Asked<T>) -> Answered<T> {
    query.map(|query| query.0).map_err(|e| Refused::invalid(e.body_text()))
}

pub(super) async fn one(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    query: Asked<One>,
) -> Answered<Json<WireLock>> {
    let query = understood(query)?;
    let name = name_of(query.name.as_deref(), query.name_hex.as_deref())?;
    asking.caller.need(Verb::Read, &name)?;
    let record = gateway.act(|store| async move {
        let found = store.inspect(&name).await?;
        Ok::<_, lockkeeper::Error>(found.unwrap_or_else(|| Record::new(name)))
    });
    Ok(Json(WireLock::from(&record.await??)))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Many {
    prefix: Option<String>,
    prefix_hex: Option<String>,
    cursor: Option<String>,
}

pub(super) async fn list(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    query: Asked<Many>,
) -> Answered<Json<WirePage>> {
    asking.caller.need_any(Verb::Read)?;
    let query = understood(query)?;
    let prefix = match (&query.prefix, &query.prefix_hex) {
        (None, None) => Vec::new(),
        (prefix, hex) => name_bytes(prefix.as_deref(), hex.as_deref())?,
    };
    let cursor = query.cursor.as_deref().map(WirePage::cursor).transpose()?;
    let page = gateway.act(move |store| async move { store.list(&prefix, cursor.as_ref()).await });
    let mut page = page.await??;
    page.records.retain(|record| asking.caller.may(Verb::Read, &record.name));
    Ok(Json(WirePage::from(&page)))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Breaking {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    name_hex: Option<String>,
    token: u64,
    why: String,
}

pub(super) async fn break_lock(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    posted: Posted,
) -> Answered<Json<Value>> {
    let body: Breaking = posted.json()?;
    let name = name_of(body.name.as_deref(), body.name_hex.as_deref())?;
    let next = break_by(&gateway, &asking, &name, body.token, &body.why).await?;
    Ok(Json(json!({ "v": VERSION, "next_token": next.get() })))
}

/// Takes a lock from the holder with this token, if the caller may: the token drawn above it. The audit has every outcome.
pub(crate) async fn break_by(
    gateway: &Gateway,
    asking: &Asking,
    name: &LockName,
    number: u64,
    why: &str,
) -> Answered<Token> {
    let line = |outcome: &str| {
        gateway.audit.write(&Line {
            verb: "break",
            caller: &asking.caller.id,
            from: asking.from,
            name: Some(name),
            token: Some(number),
            why: Some(why),
            outcome,
        });
    };
    if !asking.caller.may(Verb::Break, name) {
        line("denied");
        return Err(Refused::denied());
    }
    if why.trim().is_empty() || why.len() > MAX_WHY {
        return Err(Refused::invalid(format!("'why' says in 1 to {MAX_WHY} bytes why the lock is broken")));
    }
    let token = Token::new(number).map_err(|_| Refused::invalid("'token' is the number of the holder that you saw"))?;
    let asked = name.clone();
    match gateway.act(move |store| async move { store.break_lock(&asked, token).await }).await? {
        Ok(Break::Broken(next)) => {
            line("broken");
            gateway.seen.broken(name, number, &asking.caller.id, why);
            Ok(next)
        }
        Ok(Break::NotHeld) => {
            line("not-held");
            let asked = name.clone();
            let found = gateway.act(move |store| async move { store.inspect(&asked).await }).await.ok();
            let record = found.and_then(Result::ok).flatten();
            Err(Refused::not_held(record.as_ref().and_then(first).as_ref()))
        }
        Err(error) => {
            line(error.kind().as_str());
            Err(error.into())
        }
    }
}

/// The oldest holder.
fn first(record: &Record) -> Option<Held> {
    let holder = record.holders.first()?;
    let mut held = Held::new();
    (held.holder, held.token) = (holder.note.clone(), holder.token);
    (held.since, held.remaining) = (holder.since, holder.remaining);
    Some(held)
}
