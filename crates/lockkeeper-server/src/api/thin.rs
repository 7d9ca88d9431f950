//! Locks for clients without an engine: acquire, renew, release, in milliseconds.

use super::{Asking, with_name};
use crate::auth::Verb;
use crate::gateway::Gateway;
use crate::input::Posted;
use crate::limits::Lasting;
use crate::refused::{Answered, Refused};
use crate::wait::{After, ClientClock, Wait};
use axum::Json;
use axum::extract::State;
use lockkeeper::store::{Claim, LossReason, Release, Renewal};
use lockkeeper::wire::{Hidden, VERSION, millis, mode_of, name_of};
use lockkeeper::{Error, HolderId, Note};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Which lock, and who. `mode` and `limit` are those of the acquisition.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    name_hex: Option<String>,
    #[serde(default)]
    holder: Option<Hidden>,
    #[serde(default = "usual_ttl")]
    ttl_ms: u64,
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    limit: Option<u32>,
    #[serde(default)]
    wait_ms: Option<u64>,
    #[serde(default)]
    stay: Option<bool>,
    #[serde(default)]
    unsettled: Option<bool>,
    #[serde(default)]
    label: Option<String>,
    #[serde(default)]
    host: Option<String>,
    #[serde(default)]
    pid: Option<u32>,
}

fn usual_ttl() -> u64 {
    30_000
}

/// Which of the three paths it is: each takes only its own keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Acquire,
    Renew,
    Release,
}

impl Body {
    /// The claim that is meant.
    fn claim(&self, gateway: &Gateway, asking: &Asking, clock: ClientClock, step: Step) -> Answered<Claim> {
        let only = |given: bool, key: &str, of: &str| match given {
            true => Err(Refused::invalid(format!("'{key}' belongs to {of}"))),
            false => Ok(()),
        };
        if step != Step::Acquire {
            only(self.wait_ms.is_some(), "wait_ms", "acquire")?;
            only(self.stay.is_some(), "stay", "acquire")?;
            only(self.label.is_some() || self.host.is_some() || self.pid.is_some(), "label, host, pid", "acquire")?;
        }
        if step != Step::Release {
            only(self.unsettled.is_some(), "unsettled", "release")?;
        }
        let name = name_of(self.name.as_deref(), self.name_hex.as_deref())?;
        asking.caller.need(Verb::Acquire, &name)?;
        let holder = match &self.holder {
            Some(holder) => holder.id()?,
            None if step == Step::Acquire => HolderId::random()?,
            None => return Err(Refused::invalid("'holder' is missing: the id that the acquisition was made with")),
        };
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let note = Arc::new(Note::new(text(&self.host), self.pid.unwrap_or(0), text(&self.label)));
        let mut claim = Claim::new(name, holder, Duration::from_millis(self.ttl_ms), clock.stamp(), note);
        claim.mode = mode_of(self.mode.as_deref().unwrap_or("exclusive"), self.limit)?;
        claim.unsettled = self.unsettled.unwrap_or(false);
        gateway.check(&claim)?;
        Ok(claim)
    }
}

pub(super) async fn acquire(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    posted: Posted,
) -> Answered<Json<Value>> {
    let clock = ClientClock::new();
    let body: Body = posted.json()?;
    let mut claim = body.claim(&gateway, &asking, clock, Step::Acquire)?;
    if gateway.is_closing() {
        return Err(Refused::closing(body.holder.is_some().then_some(claim.holder)));
    }
    let wait = Duration::from_millis(body.wait_ms.unwrap_or(0)).min(gateway.settings.max_wait);
    let _place = gateway.limits.take(&asking.caller.id, Lasting::Wait)?;
    claim.queue = gateway.info.queue && !wait.is_zero();
    let after = if body.stay.unwrap_or(false) { After::Stay } else { After::Leave };
    let (ttl, holder, name) = (claim.ttl, claim.holder, claim.name.clone());
    let mode = body.mode.as_deref().unwrap_or("exclusive").to_owned();
    let wait = Wait { gateway, caller: asking.caller.id.clone(), claim, clock, wait, after };
    let granted = wait.run().await?;
    let answer = json!({
        "v": VERSION,
        "mode": mode,
        "holder": holder.to_hex(),
        "token": granted.token.get(),
        "valid_ms": millis(granted.valid),
        "renew_ms": millis(ttl / 3),
    });
    Ok(Json(with_name(answer, name.as_bytes())))
}

pub(super) async fn renew(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    posted: Posted,
) -> Answered<Json<Value>> {
    let clock = ClientClock::new();
    let body: Body = posted.json()?;
    let claim = body.claim(&gateway, &asking, clock, Step::Renew)?;
    let (holder, stamp, name) = (claim.holder, claim.stamp, claim.name.clone());
    let answer = gateway.act(|store| async move { store.renew(&[claim]).await.pop() }).await?;
    let valid = |stamp, lease| millis(clock.valid(stamp, lease));
    match answer.unwrap_or_else(|| Err(Error::unavailable("the store did not answer")))? {
        Renewal::Renewed(lease) => Ok(Json(json!({ "v": VERSION, "valid_ms": valid(stamp, lease) }))),
        // The request of this claim that waited is over; this is how its grant is learned.
        Renewal::Granted(grant) => {
            let valid = valid(grant.stamp, grant.lease);
            Ok(Json(json!({ "v": VERSION, "valid_ms": valid, "token": grant.token.get() })))
        }
        Renewal::Waiting(held) => Err(Refused::busy(holder, &held)),
        Renewal::Lost(reason) => {
            gateway.seen.lost(holder, &name, reason);
            Err(Refused::lost(reason))
        }
    }
}

pub(super) async fn release(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    posted: Posted,
) -> Answered<Json<Value>> {
    let body: Body = posted.json()?;
    let claim = body.claim(&gateway, &asking, ClientClock::new(), Step::Release)?;
    give_up(&gateway, claim).await
}

/// Gives a lock or a place in line back, and says so if there was none.
pub(super) async fn give_up(gateway: &Gateway, claim: Claim) -> Answered<Json<Value>> {
    let unsettled = claim.unsettled;
    let answer = gateway.act(|store| async move { store.release(&[claim]).await.pop() }).await?;
    match answer.unwrap_or_else(|| Err(Error::unavailable("the store did not answer")))? {
        Release::NotHeld if !unsettled => Err(Refused::lost(LossReason::Gone)),
        Release::Released | Release::NotHeld => Ok(Json(json!({ "v": VERSION }))),
    }
}
