//! The runs of a job: the end of one, and the last ones.

use super::{allowed, give_back, held, inspect, read, recipe_name, token_of, write};
use crate::api::locks::{Asked, One, understood};
use crate::api::registers::stale;
use crate::api::{Asking, with_name};
use crate::auth::Verb;
use crate::gateway::Gateway;
use crate::input::Posted;
use crate::refused::{Answered, Refused};
use axum::Json;
use axum::extract::State;
use lockkeeper::recipes::job::{Ended, RunRecord};
use lockkeeper::recipes::steps::job::{Book, Millis, Settings, history as find, millis as wall_millis, name};
use lockkeeper::wire::{Hidden, VERSION, millis};
use lockkeeper::{LockName, Pass};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::SystemTime;

/// A history of no runs could not tell the repeat of an end from a run that never was.
pub(super) fn kept(keep: Option<usize>) -> Answered<usize> {
    match keep.unwrap_or(Settings::default().keep) {
        0 => Err(Refused::invalid("'keep_history' must be 1 or more")),
        keep => Ok(keep),
    }
}

/// By the gateway's wall clock.
pub(super) fn now() -> Answered<Millis> {
    wall_millis(SystemTime::now()).ok_or_else(|| Refused::invalid("the gateway's clock shows a time before 1970"))
}

pub(super) fn wall(time: Option<SystemTime>) -> Option<Millis> {
    time.and_then(wall_millis)
}

/// A run as `history --json` has it.
pub(super) fn object(run: &RunRecord) -> Value {
    json!({
        "window_ms": wall(run.window),
        "started_ms": wall(Some(run.started)),
        "took_ms": run.took.map(millis),
        "result": run.ended.map_or("running", Ended::as_str),
        "host": run.who.host,
        "pid": run.who.pid,
        "label": run.who.label,
        "token": run.token.get(),
        "text": run.text,
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    name_hex: Option<String>,
    holder: Hidden,
    token: u64,
    ended: Said,
    #[serde(default)]
    text: String,
    #[serde(default)]
    keep_history: Option<usize>,
}

/// What a client may say of its run.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Said {
    Done,
    Failed,
}

pub(in crate::api) async fn end(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    posted: Posted,
) -> Answered<Json<Value>> {
    let body: End = posted.json()?;
    let name = recipe_name(name, body.name.as_deref(), body.name_hex.as_deref())?;
    let (holder, token, keep) = (body.holder.id()?, token_of(body.token, "token")?, kept(body.keep_history)?);
    allowed(&gateway, &asking, &name)?;
    let ended = match body.ended {
        Said::Done => Ended::Done,
        Said::Failed => Ended::Failed,
    };
    let mut book: Book = read(&gateway, &name).await?.unwrap_or_default();
    let ended = if book.is_of(Some(token)) {
        book.end_at(now()?, ended, &body.text, keep);
        write(&gateway, &name, &Pass::new(name.clone(), token, holder), &book, None).await?;
        ended
    } else {
        match (book.ended(token), book.latest()) {
            // A repeat: what was said first counts.
            (Some(ended), _) if ended != Ended::Interrupted => ended,
            (_, Some(latest)) if latest > token => return Err(stale(&gateway, &name, token, latest)),
            _ => return Err(Refused::no_run()),
        }
    };
    give_back(&gateway, held(name, holder)).await;
    Ok(Json(json!({ "v": VERSION, "ended": ended.as_str() })))
}

pub(in crate::api) async fn history(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    query: Asked<One>,
) -> Answered<Json<Value>> {
    let query = understood(query)?;
    let asked = query.bytes()?;
    let name = LockName::new(name(&asked))?;
    asking.caller.need(Verb::Read, &name)?;
    let history = find(|| read(&gateway, &name), || inspect(&gateway, &name)).await?;
    let runs: Vec<Value> = history.running.iter().chain(&history.runs).map(object).collect();
    let fields = json!({ "v": VERSION, "last_window_ms": wall(history.last_window), "runs": runs });
    Ok(Json(with_name(fields, &asked)))
}
