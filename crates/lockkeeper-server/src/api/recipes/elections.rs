//! Elections: campaign, proclaim another value, resign, and ask who leads.

use super::{ROUNDS, Taking, Who, allowed, enter, held, inspect, is_overtaken, need_registers, read, recipe_name};
use super::{token_of, unsettled, usual_ttl, write};
use crate::api::locks::{Asked, One, understood};
use crate::api::thin::give_up;
use crate::api::{Asking, with_name};
use crate::auth::Verb;
use crate::gateway::Gateway;
use crate::input::Posted;
use crate::refused::{Answered, Refused};
use crate::wait::ClientClock;
use axum::Json;
use axum::extract::State;
use lockkeeper::recipes::steps::election::{Proclaimed, check_value, holding, leader as find, name};
use lockkeeper::store::LossReason;
use lockkeeper::wire::{Hidden, VERSION, millis};
use lockkeeper::{LockName, Note, Pass};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Campaign {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    name_hex: Option<String>,
    #[serde(default)]
    value: String,
    #[serde(default)]
    holder: Option<Hidden>,
    #[serde(default = "usual_ttl")]
    ttl_ms: u64,
    #[serde(default)]
    wait_ms: u64,
    #[serde(default)]
    label: Option<String>,
    #[serde(default)]
    host: Option<String>,
    #[serde(default)]
    pid: Option<u32>,
}

pub(in crate::api) async fn campaign(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    posted: Posted,
) -> Answered<Json<Value>> {
    let clock = ClientClock::new();
    let body: Campaign = posted.json()?;
    let name = recipe_name(name, body.name.as_deref(), body.name_hex.as_deref())?;
    check_value(&body.value)?;
    let Campaign { holder, ttl_ms, wait_ms, label, host, pid, value, .. } = body;
    let taking = Taking::new(gateway, &asking, clock, name, Who { holder, ttl_ms, wait_ms, label, host, pid })?;
    let mut wait = taking.wait;
    for _ in 0..ROUNDS {
        let granted = taking.lock(std::mem::take(&mut wait)).await?;
        let pass = taking.pass(granted.token);
        match proclaimed(&taking.gateway, taking.name(), &pass, value.clone(), Some(&taking.claim.note)).await {
            Ok(sequence) => {
                return Ok(Json(json!({
                    "v": VERSION,
                    "term": granted.token.get(),
                    "sequence": sequence,
                    "valid_ms": millis(granted.valid),
                    "renew_ms": millis(taking.claim.ttl / 3),
                    "holder": taking.claim.holder.to_hex(),
                })));
            }
            Err(refused) if is_overtaken(&refused) => {}
            Err(refused) => {
                // A leader that no follower can find must not keep the others from leading.
                taking.give_back().await;
                return Err(refused);
            }
        }
    }
    Err(unsettled())
}

/// Writes a value, unless it stands there already; its sequence. `new` is who has just got the lock. Without it the term must
/// still be held, and its leader is the one that stands there.
async fn proclaimed(
    gateway: &Gateway,
    name: &LockName,
    pass: &Pass,
    value: String,
    new: Option<&Note>,
) -> Answered<u64> {
    let found: Option<Proclaimed> = enter(gateway, name, pass).await?;
    // A term may be over although no later one has begun: followers would not see the value.
    if new.is_none() && holding(inspect(gateway, name).await?.as_ref()) != Some(pass.token) {
        return Err(Refused::lost(LossReason::Gone));
    }
    let before = found.as_ref().filter(|found| found.term == pass.token.get());
    let known = before.map(Proclaimed::who).unwrap_or_default();
    match Proclaimed::after(before, pass.token, value, new.unwrap_or(&known)) {
        Some(next) => write(gateway, name, pass, &next, None).await.map(|()| next.sequence),
        None => Ok(before.map_or(1, |before| before.sequence)),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Proclaim {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    name_hex: Option<String>,
    holder: Hidden,
    term: u64,
    value: String,
}

pub(in crate::api) async fn proclaim(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    posted: Posted,
) -> Answered<Json<Value>> {
    let body: Proclaim = posted.json()?;
    let name = recipe_name(name, body.name.as_deref(), body.name_hex.as_deref())?;
    check_value(&body.value)?;
    let (holder, term) = (body.holder.id()?, token_of(body.term, "term")?);
    allowed(&gateway, &asking, &name)?;
    let pass = Pass::new(name.clone(), term, holder);
    let sequence = proclaimed(&gateway, &name, &pass, body.value, None).await?;
    Ok(Json(json!({ "v": VERSION, "sequence": sequence })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resign {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    name_hex: Option<String>,
    holder: Hidden,
}

pub(in crate::api) async fn resign(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    posted: Posted,
) -> Answered<Json<Value>> {
    let body: Resign = posted.json()?;
    let name = recipe_name(name, body.name.as_deref(), body.name_hex.as_deref())?;
    let holder = body.holder.id()?;
    asking.caller.need(Verb::Acquire, &name)?;
    give_up(&gateway, held(name, holder)).await
}

pub(in crate::api) async fn leader(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    query: Asked<One>,
) -> Answered<Json<Value>> {
    let query = understood(query)?;
    let asked = query.bytes()?;
    let name = LockName::new(name(&asked))?;
    asking.caller.need(Verb::Read, &name)?;
    need_registers(&gateway)?;
    let found = find(|| inspect(&gateway, &name), || read(&gateway, &name)).await?;
    let leader = found.ok_or_else(Refused::no_leader)?;
    let fields = json!({
        "v": VERSION,
        "term": leader.term.get(),
        "sequence": leader.sequence,
        "value": leader.value,
        "host": leader.holder.host,
        "pid": leader.holder.pid,
        "label": leader.holder.label,
    });
    Ok(Json(with_name(fields, &asked)))
}
