//! Jobs that many machines start and one runs: whether to run now.

use super::runs::{kept, now, object, wall};
use super::{ROUNDS, Taking, Who, enter, is_busy, is_overtaken, read, turn_name, unsettled, usual_ttl, write};
use crate::api::Asking;
use crate::gateway::Gateway;
use crate::input::Posted;
use crate::refused::Answered;
use crate::wait::{ClientClock, Granted};
use axum::Json;
use axum::extract::State;
use lockkeeper::recipes::job::{CatchUp, Skipped};
use lockkeeper::recipes::steps::job::{Begun, Book, Entry, Settings, Target, Terms, busy, name, rest_name};
use lockkeeper::wire::{Hidden, VERSION, WireHeld, millis, name_bytes};
use lockkeeper::{Held, LockName, Token};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Begin {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    name_hex: Option<String>,
    #[serde(default)]
    cron: Option<String>,
    #[serde(default)]
    time_zone: Option<String>,
    #[serde(default)]
    every_ms: Option<u64>,
    #[serde(default)]
    at_least_ms: Option<u64>,
    /// How many missed windows are run before the one that is due.
    #[serde(default)]
    catch_up: u32,
    /// Missed windows alone.
    #[serde(default)]
    missed: bool,
    #[serde(default)]
    keep_history: Option<usize>,
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

fn skipped(why: &Skipped) -> Json<Value> {
    let mut answer = json!({ "v": VERSION, "run": false, "why": why.word(), "title": why.to_string() });
    match why {
        Skipped::AlreadyRan { last_window } => answer["last_window_ms"] = json!(wall(Some(*last_window))),
        Skipped::Running { by } | Skipped::Overlap { by } => answer["by"] = object(by),
        Skipped::Rest { at_least } => answer["at_least_ms"] = json!(millis(*at_least)),
        Skipped::Busy { held } => answer["held"] = json!(WireHeld::from(&**held)),
        _ => {}
    }
    Json(answer)
}

/// One start.
struct Start {
    taking: Taking,
    terms: Terms,
    target: Target,
    /// The register whose value ends when the job may run again.
    rest: Option<(LockName, Duration)>,
}

pub(in crate::api) async fn begin(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    posted: Posted,
) -> Answered<Json<Value>> {
    let clock = ClientClock::new();
    let body: Begin = posted.json()?;
    let asked = name_bytes(body.name.as_deref(), body.name_hex.as_deref())?;
    let name = LockName::new(name(&asked))?;
    // A name that is too long is told before the lock is taken.
    turn_name(&name)?;
    let settings = Settings {
        every: body.every_ms.map(Duration::from_millis),
        at: body.cron,
        time_zone: body.time_zone,
        at_least: body.at_least_ms.map(Duration::from_millis),
        catch_up: match body.catch_up {
            0 => CatchUp::Skip,
            1 => CatchUp::Latest,
            most => CatchUp::Each { most },
        },
        keep: kept(body.keep_history)?,
    };
    let (now, ttl) = (now()?, Duration::from_millis(body.ttl_ms));
    let terms = settings.terms(now, ttl)?;
    let target = if body.missed { terms.missed(now)? } else { terms.on_time(now)? };
    let rest = terms.rest().map(|rest| LockName::new(rest_name(&asked)).map(|name| (name, rest))).transpose()?;
    let Begin { holder, ttl_ms, wait_ms, label, host, pid, .. } = body;
    let taking = Taking::new(gateway, &asking, clock, name, Who { holder, ttl_ms, wait_ms, label, host, pid })?;
    Start { taking, terms, target, rest }.run().await
}

impl Start {
    /// Takes the lock and enters a run into the register, or says why there is none.
    async fn run(&self) -> Answered<Json<Value>> {
        let (mut wait, mut patience, mut trouble) = (Duration::ZERO, self.taking.wait, None);
        // The token of an entry of this start that was not answered: its work has not begun.
        let mut unheard: Option<Token> = None;
        for _ in 0..ROUNDS {
            let book: Book = read(&self.taking.gateway, self.taking.name()).await?.unwrap_or_default();
            let why = if book.is_of(unheard) { None } else { self.why_not(&book).await? };
            match why {
                // A run that is under way may be the client's own, whose answer was lost: its lock will tell.
                Some(why) if !book.is_running() => return Ok(skipped(&why)),
                _ => {}
            }
            let wait_now = if why.is_none() { std::mem::take(&mut wait) } else { Duration::ZERO };
            let granted = match self.taking.lock(wait_now).await {
                Ok(granted) => granted,
                Err(refused) if is_busy(&refused) => {
                    let held: Held = refused.problem.held.unwrap_or_default().into();
                    if let Some(why) = why.or_else(|| busy(&book, &held, self.target, true)) {
                        return Ok(skipped(&why));
                    }
                    // Its holder has not written yet which window it runs, and may have died: worth a wait in line.
                    if !patience.is_zero() {
                        wait = std::mem::take(&mut patience);
                        continue;
                    }
                    return Ok(skipped(&Skipped::Busy { held: Box::new(held) }));
                }
                Err(refused) => return Err(refused),
            };
            match self.enter(granted.token, unheard).await {
                Ok(Some(Ok(begun))) => return Ok(self.begun(&granted, &begun)),
                Ok(Some(Err(why))) => {
                    self.taking.give_back().await;
                    return Ok(skipped(&why));
                }
                Ok(None) => {}
                Err(refused) if is_overtaken(&refused) => continue,
                Err(refused) if refused.problem.retryable => trouble = Some(refused),
                Err(refused) => {
                    self.taking.give_back().await;
                    return Err(refused);
                }
            }
            // An entry may still arrive. The lock is taken anew, and its higher token keeps that entry out.
            unheard = Some(granted.token);
            self.taking.give_back().await;
        }
        Err(trouble.unwrap_or_else(unsettled))
    }

    /// Why there is nothing to run, as far as can be seen without the lock.
    async fn why_not(&self, book: &Book) -> Answered<Option<Skipped>> {
        if let Err(why) = self.terms.due(book, self.target, false) {
            return Ok(Some(why));
        }
        let rests = match &self.rest {
            Some((rest, _)) => read::<u64>(&self.taking.gateway, rest).await?.is_some(),
            None => false,
        };
        Ok(rests.then(|| self.terms.resting()))
    }

    /// Under the lock: looks again, and writes the run down before its work begins. `None` when another request with the
    /// token may still do so.
    async fn enter(&self, token: Token, unheard: Option<Token>) -> Answered<Option<Result<Begun, Skipped>>> {
        let (gateway, name, pass) = (&self.taking.gateway, self.taking.name(), self.taking.pass(token));
        let first = self.taking.is_first(token).await?;
        let mut book: Book = enter(gateway, name, &pass).await?.unwrap_or_default();
        if !first {
            return Ok(book.under_way(token).map(Ok));
        }
        let rests = match &self.rest {
            Some((rest, _)) => enter::<u64>(gateway, rest, &pass).await?.is_some(),
            None => false,
        };
        let (target, who) = (self.target, &*self.taking.claim.note);
        let entry = Entry { target, unheard, rests, token, now: now()?, who };
        let begun = match self.terms.enter(&mut book, &entry) {
            Ok(begun) => begun,
            Err(why) => return Ok(Some(Err(why))),
        };
        write(gateway, name, &pass, &book, None).await?;
        // After the book, as the library has it: a start that dies in between has used up its window, but needs no rest.
        if let Some((rest, at_least)) = &self.rest {
            write(gateway, rest, &pass, &token.get(), Some(*at_least)).await?;
        }
        Ok(Some(Ok(begun)))
    }

    fn begun(&self, granted: &Granted, begun: &Begun) -> Json<Value> {
        let mut answer = json!({
            "v": VERSION,
            "run": true,
            "window_ms": begun.window,
            "more": begun.window != self.target.window(),
            "token": granted.token.get(),
            "valid_ms": millis(granted.valid),
            "renew_ms": millis(self.taking.claim.ttl / 3),
            "holder": self.taking.claim.holder.to_hex(),
        });
        if let Some(run) = &begun.interrupted {
            answer["interrupted"] = object(run);
        }
        Json(answer)
    }
}
