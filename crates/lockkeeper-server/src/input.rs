//! What a request may say: one place for every check, because no engine stands before the store here.

use crate::gateway::Gateway;
use crate::refused::{Answered, Refused};
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::{BodyExt, Limited};
use lockkeeper::store::{Claim, Mode};
use lockkeeper::wire::KEEPER_HEADER;
use lockkeeper::{HolderId, Note};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// The largest body.
const MOST_BYTES: usize = 1 << 20;

/// The longest host name.
const MAX_HOST: usize = 255;

/// Stamps become numbers in databases, with room for a lease behind them.
const MAX_STAMP_US: u64 = 1 << 62;

/// How long a body may take to come.
const BODY_LIMIT: Duration = Duration::from_secs(30);

/// A request with a body. Reading it takes it away: its bytes lie in the buffer of the connection, which hyper uses again
/// for what comes next only when nothing refers to them.
pub(crate) struct Posted {
    headers: HeaderMap,
    body: Bytes,
}

impl<S: Sync> FromRequest<S> for Posted {
    type Rejection = Refused;

    async fn from_request(request: Request, _: &S) -> Answered<Self> {
        let (parts, body) = request.into_parts();
        let body = whole(&parts.headers, body).await?;
        Ok(Self { headers: parts.headers, body })
    }
}

impl Posted {
    /// Reads a body of JSON.
    pub(crate) fn json<T: DeserializeOwned>(self) -> Answered<T> {
        let kind = self.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            return Err(Refused::not_json("the body must be JSON: Content-Type: application/json"));
        }
        // What serde says names the wrong key and the known ones, and never the value of another key.
        let wrong = |e| Refused::invalid(format!("the body is not what this path takes: {e}"));
        serde_json::from_slice(&self.body).map_err(wrong)
    }

    /// Which keeper asks.
    pub(crate) fn keeper(&self) -> Answered<Option<HolderId>> {
        keeper(&self.headers)
    }
}

/// A body of at most so many bytes, that comes in time.
pub(crate) async fn whole(headers: &HeaderMap, body: Body) -> Answered<Bytes> {
    let too_large = || Refused::too_large(format!("a body has at most {MOST_BYTES} bytes"));
    let said = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if said.is_some_and(|length| length > MOST_BYTES) {
        return Err(too_large());
    }
    match tokio::time::timeout(BODY_LIMIT, Limited::new(body, MOST_BYTES).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) => Err(too_large()),
        Err(_) => Err(Refused::too_large("the body did not come within 30 seconds")),
    }
}

/// Which keeper asks, from its header.
pub(crate) fn keeper(headers: &HeaderMap) -> Answered<Option<HolderId>> {
    let Some(value) = headers.get(KEEPER_HEADER) else { return Ok(None) };
    let id = value.to_str().ok().and_then(HolderId::from_hex);
    id.map(Some).ok_or_else(|| Refused::invalid("the header Lockkeeper-Keeper must be 32 hexadecimal digits"))
}

impl Gateway {
    /// Refuses a claim that the store or this gateway cannot keep.
    pub(crate) fn check(&self, claim: &Claim) -> Answered<()> {
        self.check_ttl(claim.ttl)?;
        let (offered, mode) = match claim.mode {
            Mode::Shared => (self.info.shared, "shared"),
            Mode::Permit { .. } => (self.info.permits, "permit"),
            _ => (true, "exclusive"),
        };
        if !offered {
            return Err(Refused::invalid(format!("{} has no locks of the mode {mode}", self.info.scheme)));
        }
        if claim.note.label.len() > Note::MAX_LABEL || claim.note.host.len() > MAX_HOST {
            let text = format!("'label' has at most {} bytes and 'host' at most {MAX_HOST}", Note::MAX_LABEL);
            return Err(Refused::invalid(text));
        }
        if claim.stamp.as_micros() >= MAX_STAMP_US {
            return Err(Refused::invalid("'stamp_us' must be below 2^62"));
        }
        Ok(())
    }

    fn check_ttl(&self, ttl: Duration) -> Answered<()> {
        let (floor, ceiling) = (self.info.ttl_floor, self.info.ttl_ceiling.min(self.settings.max_ttl));
        if (floor..=ceiling).contains(&ttl) {
            return Ok(());
        }
        let short = lockkeeper::duration::short;
        let text = format!(
            "a ttl of {} is out of range; this gateway allows {} to {}",
            short(ttl),
            short(floor),
            short(ceiling)
        );
        Err(Refused::invalid(text))
    }
}
