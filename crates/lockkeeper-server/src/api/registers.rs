//! Registers: small values behind a fence.

use super::Asking;
use crate::auth::Verb;
use crate::gateway::Gateway;
use crate::input::Posted;
use crate::refused::{Answered, Refused};
use axum::Json;
use axum::extract::{Query, State};
use lockkeeper::register::{Entry, Written, check_value};
use lockkeeper::wire::{Entered, Fenced, VERSION, name_of};
use lockkeeper::{Error, LockName, Pass, Store, Token};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Key {
    key: Option<String>,
    key_hex: Option<String>,
}

/// A request that may be carried out.
fn shown(asking: &Asking, request: &Fenced) -> Answered<(LockName, Pass)> {
    let key = name_of(request.key.as_deref(), request.key_hex.as_deref())?;
    let pass = Pass::try_from(&request.pass).map_err(|e| Refused::invalid(e.message()))?;
    asking.caller.need(Verb::Register, &key)?;
    // A pass shows a token of its lock: a client without that lock must not raise its fence.
    asking.caller.need(Verb::Acquire, &pass.lock)?;
    Ok((key, pass))
}

pub(super) fn none(store: &dyn Store) -> Error {
    Error::unsupported(format!("{} keeps no registers", store.info().scheme))
}

pub(super) fn stale(gateway: &Gateway, register: &LockName, token: Token, seen: Token) -> Refused {
    gateway.seen.stale(register, token.get(), seen.get());
    Refused::stale(seen)
}

pub(super) async fn read(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    query: Result<Query<Key>, axum::extract::rejection::QueryRejection>,
) -> Answered<Json<Entered>> {
    let Query(query) = query.map_err(|e| Refused::invalid(e.body_text()))?;
    let key = name_of(query.key.as_deref(), query.key_hex.as_deref())?;
    asking.caller.need(Verb::Read, &key)?;
    let value = gateway.act(|store| async move {
        let registers = store.registers().ok_or_else(|| none(&*store))?;
        registers.read(&key).await
    });
    Ok(Json(Entered::of(value.await??.as_deref())))
}

pub(super) async fn enter(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    posted: Posted,
) -> Answered<Json<Entered>> {
    let request: Fenced = posted.json()?;
    if request.value64.is_some() || request.ttl_ms.is_some() {
        return Err(Refused::invalid("'value64' and 'ttl_ms' belong to write"));
    }
    let (key, pass) = shown(&asking, &request)?;
    let (register, token) = (key.clone(), pass.token);
    let entry = gateway.act(|store| async move {
        let registers = store.registers().ok_or_else(|| none(&*store))?;
        registers.enter(&key, &pass).await
    });
    match entry.await?? {
        Entry::Entered(value) => Ok(Json(Entered::of(value.as_deref()))),
        Entry::Stale { seen } => Err(stale(&gateway, &register, token, seen)),
    }
}

pub(super) async fn write(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    posted: Posted,
) -> Answered<Json<Value>> {
    let request: Fenced = posted.json()?;
    let (key, pass) = shown(&asking, &request)?;
    let value = Entered { value64: request.value64 }.bytes();
    let value = value.ok().flatten().ok_or_else(|| Refused::invalid("'value64' must be the value in base64"))?;
    check_value(&value)?;
    let ttl = request.ttl_ms.map(Duration::from_millis);
    let (register, token) = (key.clone(), pass.token);
    let written = gateway.act(move |store| async move {
        let registers = store.registers().ok_or_else(|| none(&*store))?;
        registers.write(&key, &pass, &value, ttl).await
    });
    match written.await?? {
        Written::Written => Ok(Json(json!({ "v": VERSION }))),
        Written::Stale { seen } => Err(stale(&gateway, &register, token, seen)),
    }
}
