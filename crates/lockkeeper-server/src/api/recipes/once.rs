//! An effect that happens once for a key: begin, and say what came out.

use super::{
    ROUNDS, Taking, Who, allowed, enter, give_back, held, is_busy, is_overtaken, read, recipe_name, token_of, unsettled,
};
use super::{turn_name, usual_ttl, write};
use crate::api::Asking;
use crate::api::registers::stale;
use crate::gateway::Gateway;
use crate::input::Posted;
use crate::refused::{Answered, Refused};
use crate::wait::ClientClock;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use lockkeeper::recipes::steps::once::{DEFAULT_KEEP, MAX_RESULT, Record, Terms, Verdict, check_keep, judge, name};
use lockkeeper::wire::{Hidden, VERSION, millis};
use lockkeeper::{Pass, Token};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Begin {
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    key_hex: Option<String>,
    #[serde(default)]
    holder: Option<Hidden>,
    #[serde(default = "usual_ttl")]
    ttl_ms: u64,
    #[serde(default)]
    wait_ms: u64,
    #[serde(default)]
    fingerprint: Option<String>,
    #[serde(default)]
    schema: Option<String>,
    #[serde(default)]
    label: Option<String>,
    #[serde(default)]
    host: Option<String>,
    #[serde(default)]
    pid: Option<u32>,
}

/// A stored result, as its runner wrote it: a number that only some languages have is not made another one.
#[derive(Serialize)]
struct Done {
    v: u32,
    state: &'static str,
    result: Box<RawValue>,
}

fn done(result: Box<RawValue>) -> Response {
    Json(Done { v: VERSION, state: "done", result }).into_response()
}

/// What a request makes of a token.
enum Turn {
    Settled(Answered<Response>),
    /// The work is the client's.
    Ours {
        attempt: u32,
        left: bool,
    },
    /// Another request with the token may still write that the work begins.
    Unsure,
}

pub(in crate::api) async fn begin(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    posted: Posted,
) -> Answered<Response> {
    let clock = ClientClock::new();
    let body: Begin = posted.json()?;
    let name = recipe_name(name, body.key.as_deref(), body.key_hex.as_deref())?;
    // A name that is too long is told before the lock is taken.
    turn_name(&name)?;
    let mut terms = Terms { schema: body.schema, ..Terms::default() };
    if let Some(request) = &body.fingerprint {
        terms = terms.fingerprint(request.as_bytes());
    }
    terms.check()?;
    let Begin { holder, ttl_ms, wait_ms, label, host, pid, .. } = body;
    let taking = Taking::new(gateway, &asking, clock, name, Who { holder, ttl_ms, wait_ms, label, host, pid })?;
    if let Some(answer) = look(&taking, &terms).await? {
        return answer;
    }
    let mut wait = taking.wait;
    for _ in 0..ROUNDS {
        let granted = match taking.lock(std::mem::take(&mut wait)).await {
            // The holder may have ended the work since the last look.
            Err(busy) if is_busy(&busy) => return look(&taking, &terms).await?.unwrap_or(Err(busy)),
            granted => granted?,
        };
        match turn(&taking, granted.token, &terms).await {
            Ok(Turn::Ours { attempt, left }) => {
                let answer = json!({
                    "v": VERSION,
                    "state": "yours",
                    "token": granted.token.get(),
                    "valid_ms": millis(granted.valid),
                    "renew_ms": millis(taking.claim.ttl / 3),
                    "attempt": attempt,
                    "taken_over": left,
                    "holder": taking.claim.holder.to_hex(),
                });
                return Ok(Json(answer).into_response());
            }
            Ok(Turn::Settled(answer)) => {
                taking.give_back().await;
                return answer;
            }
            Ok(Turn::Unsure) => taking.give_back().await,
            Err(refused) if is_overtaken(&refused) => {}
            Err(refused) => {
                // Also when the entry was not answered: the next request has a higher token, which keeps it out.
                taking.give_back().await;
                return Err(refused);
            }
        }
    }
    Err(unsettled())
}

/// The answer, if the key is settled; one read.
async fn look(taking: &Taking, terms: &Terms) -> Answered<Option<Answered<Response>>> {
    let found = read::<Record>(&taking.gateway, taking.name()).await?;
    Ok(match judge(found.as_ref(), terms) {
        Verdict::Settled(answer) => Some(answer.map(done).map_err(|e| e.for_lock(taking.name()).into())),
        Verdict::Open { .. } => None,
    })
}

/// Under the lock: looks again, and writes that the work begins.
async fn turn(taking: &Taking, token: Token, terms: &Terms) -> Answered<Turn> {
    let (gateway, name, pass) = (&taking.gateway, taking.name(), taking.pass(token));
    let first = taking.is_first(token).await?;
    let found: Option<Record> = enter(gateway, name, &pass).await?;
    let (attempt, left) = match judge(found.as_ref(), terms) {
        Verdict::Settled(answer) => {
            return Ok(Turn::Settled(answer.map(done).map_err(|e| e.for_lock(name).into())));
        }
        Verdict::Open { .. } if !first => {
            let under_way = found.and_then(|record| record.under_way(token));
            return Ok(under_way.map_or(Turn::Unsure, |(attempt, left)| Turn::Ours { attempt, left }));
        }
        Verdict::Open { attempt, left } => (attempt, left),
    };
    let record = Record::running(token, attempt, left, terms);
    // Written once, whether or not it is answered: a copy that arrives late could undo the result.
    write(gateway, name, &pass, &record, Some(record.life(DEFAULT_KEEP))).await?;
    Ok(Turn::Ours { attempt, left })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Finish {
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    key_hex: Option<String>,
    holder: Hidden,
    token: u64,
    #[serde(default, deserialize_with = "given")]
    result: Option<Box<RawValue>>,
    #[serde(default)]
    failure: Option<String>,
    #[serde(default)]
    for_good: bool,
    #[serde(default)]
    keep_ms: Option<u64>,
}

/// A result of `null` is a result.
fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(from).map(Some)
}

pub(in crate::api) async fn finish(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    posted: Posted,
) -> Answered<Json<Value>> {
    let body: Finish = posted.json()?;
    let name = recipe_name(name, body.key.as_deref(), body.key_hex.as_deref())?;
    let keep = body.keep_ms.map_or(DEFAULT_KEEP, Duration::from_millis);
    check_keep(keep)?;
    if body.result.is_some() == body.failure.is_some() {
        return Err(Refused::invalid("what came out is a 'result' or a 'failure', and not both"));
    }
    if body.for_good && body.failure.is_none() {
        return Err(Refused::invalid("'for_good' belongs to a 'failure'"));
    }
    let (holder, token) = (body.holder.id()?, token_of(body.token, "token")?);
    allowed(&gateway, &asking, &name)?;
    let pass = Pass::new(name.clone(), token, holder);
    let found: Option<Record> = read(&gateway, &name).await?;
    let Some(found) = found.filter(|found| found.token() >= token.get()) else { return Err(Refused::no_run()) };
    if found.token() > token.get() {
        let seen = token_of(found.token(), "token")?;
        return Err(stale(&gateway, &name, token, seen));
    }
    let wanted = match (&body.result, &body.failure) {
        (Some(result), _) => found.done(result, MAX_RESULT),
        (None, failure) => found.failed(&failure.as_deref().unwrap_or_default(), body.for_good),
    };
    let record = if found.under_way(token).is_some() {
        write(&gateway, &name, &pass, &wanted, Some(wanted.life(keep))).await?;
        wanted
    } else if found.word() == wanted.word() {
        // A repeat: what was said first counts.
        found
    } else {
        return Err(Refused::ended(found.word()));
    };
    give_back(&gateway, held(name.clone(), holder)).await;
    // The runner, too, is told when its result was too large to be kept, as every caller after it.
    if record.word() == "done"
        && let Verdict::Settled(Err(error)) = judge::<Box<RawValue>>(Some(&record), &record.terms())
    {
        return Err(error.for_lock(&name).into());
    }
    Ok(Json(json!({ "v": VERSION, "state": record.word() })))
}
