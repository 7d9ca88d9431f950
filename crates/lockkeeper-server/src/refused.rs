//! Answers that say no: `application/problem+json`.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use lockkeeper::wire::Problem;
use lockkeeper::{Error, Held, HolderId, LossReason, Token};

/// A problem on its way to the client.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Boxed: most answers say yes.
    pub(crate) problem: Box<Problem>,
    /// After how many seconds to ask again.
    retry_after: Option<u64>,
}

pub(crate) type Answered<T> = std::result::Result<T, Refused>;

impl Refused {
    fn new(kind: &str, status: u16, title: impl Into<String>) -> Self {
        Self { problem: Box::new(Problem::new(kind, status, title)), retry_after: None }
    }

    /// No token, or none that counts. The same words for every reason.
    pub(crate) fn unauthenticated() -> Self {
        Self::new("unauthenticated", 401, "this gateway needs a token: Authorization: Bearer lk_…")
    }

    /// The token does not allow it. The same words whether or not the lock exists.
    pub(crate) fn denied() -> Self {
        Self::new("denied", 403, "the token does not allow this")
    }

    /// Not sent by a page of ours.
    pub(crate) fn forged(title: &str) -> Self {
        Self::new("forged", 403, title)
    }

    /// Too much at once.
    pub(crate) fn limited(what: &str) -> Self {
        let mut refused = Self::new("limited", 429, format!("too many {what} at once; ask again a little later"));
        (refused.retry_after, refused.problem.retryable) = (Some(1), true);
        refused
    }

    /// The request has more than is read.
    pub(crate) fn too_large(title: impl Into<String>) -> Self {
        Self::new("too-large", 413, title)
    }

    /// The request is not what this path takes.
    pub(crate) fn not_json(title: impl Into<String>) -> Self {
        Self::new("not-json", 415, title)
    }

    /// No such path.
    pub(crate) fn unknown(title: impl Into<String>) -> Self {
        Self::new("not-found", 404, title)
    }

    /// The path takes another method.
    pub(crate) fn method() -> Self {
        Self::new("not-allowed", 405, "this path takes another method; what changes something is a POST")
    }

    /// What the request says cannot work.
    pub(crate) fn invalid(title: impl Into<String>) -> Self {
        Self::from(Error::invalid_config(title))
    }

    /// The gateway ends; the claim keeps its place.
    pub(crate) fn closing(holder: Option<HolderId>) -> Self {
        let mut refused = Self::new("closed", 503, "this gateway is about to end; ask again, another one answers");
        (refused.retry_after, refused.problem.retryable) = (Some(0), true);
        refused.problem.holder = holder.map(Into::into);
        refused
    }

    /// The lock is held by another client.
    pub(crate) fn busy(holder: HolderId, held: &Held) -> Self {
        let mut refused = Self::new("busy", 409, format!("held by {held}"));
        refused.problem.held = Some(held.into());
        (refused.problem.holder, refused.problem.retryable) = (Some(holder.into()), true);
        refused
    }

    /// A release of this claim came first.
    pub(crate) fn cancelled() -> Self {
        Self::new("cancelled", 409, "this holder was released before; a new acquisition needs a new holder")
    }

    /// No holder has that token.
    pub(crate) fn not_held(held: Option<&Held>) -> Self {
        let mut refused = Self::new("not-held", 409, "no holder of this lock has that token");
        refused.problem.held = held.map(Into::into);
        refused
    }

    /// No run of the recipe has that token.
    pub(crate) fn no_run() -> Self {
        Self::new("not-held", 409, "no run with that token has begun here, or its record has ended")
    }

    /// The run has ended, and not as this request says.
    pub(crate) fn ended(how: &str) -> Self {
        Self::new("not-held", 409, format!("the run with that token has ended before, as '{how}'"))
    }

    /// No candidate leads: the next one may, so asking again may help.
    pub(crate) fn no_leader() -> Self {
        let mut refused =
            Self::new("not-found", 404, "no candidate leads, or the new leader has not proclaimed itself yet");
        refused.problem.retryable = true;
        refused
    }

    /// The claim is over.
    pub(crate) fn lost(reason: LossReason) -> Self {
        let title = format!("the lock is lost: {reason}; the work may have run beside another holder's");
        let mut refused = Self::new("lost", 410, title);
        refused.problem.reason = Some(reason.as_str().into());
        refused
    }

    /// A later holder has been at the fence.
    pub(crate) fn stale(seen: Token) -> Self {
        let mut refused = Self::new("stale", 412, format!("a later holder has been here, with token {seen}"));
        refused.problem.seen = Some(seen.get());
        refused
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self { problem: Box::new(Problem::of(&error)), retry_after: None }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // A problem is always JSON.
        let body = serde_json::to_vec(&self.problem).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
