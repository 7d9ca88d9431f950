//! A response as the store keeps it, and responses of our own.

use crate::error::{Error, ErrorKind};
use crate::recipes::once::MAX_RESULT;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// What a replay has, and the first response has not.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Headers that are not stored: those of one connection, those that the server makes anew, and cookies, which are secrets
/// of one session.
const NOT_STORED: [&str; 12] = [
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A stored response.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Stored {
    status: u16,
    headers: Vec<(String, Text)>,
    body: Text,
}

/// Bytes, readable where they are text.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Text {
    Plain(String),
    Binary { base64: String },
}

impl Text {
    fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Plain(text.to_owned()),
            Err(_) => Self::Binary { base64: BASE64_STANDARD.encode(bytes) },
        }
    }

    fn bytes(self) -> Option<Bytes> {
        match self {
            Self::Plain(text) => Some(text.into()),
            Self::Binary { base64 } => BASE64_STANDARD.decode(base64).ok().map(Bytes::from),
        }
    }
}

impl Stored {
    /// What is kept of a response; `None` when it is too large.
    pub(super) fn of(head: &Parts, body: &[u8]) -> Option<Self> {
        let named: Vec<String> = head.headers.get_all("connection").iter().flat_map(names).collect();
        let stays = |name: &str| !NOT_STORED.contains(&name) && !named.iter().any(|hop| hop == name);
        let headers = head.headers.iter().filter(|(name, _)| stays(name.as_str()));
        let headers = headers.map(|(name, value)| (name.to_string(), Text::of(value.as_bytes()))).collect();
        let stored = Self { status: head.status.as_u16(), headers, body: Text::of(body) };
        let size = serde_json::to_vec(&stored).map_or(usize::MAX, |text| text.len());
        (size <= MAX_RESULT).then_some(stored)
    }

    /// What is kept instead of a response that is too large: the request has been handled, so it must not be again.
    pub(super) fn too_large() -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        let detail = format!(
            "the request was handled, but its response is too large to be kept; at most {MAX_RESULT} bytes are"
        );
        let content_type = (CONTENT_TYPE.to_string(), Text::Plain(PROBLEM.to_owned()));
        Self { status: status.as_u16(), headers: vec![content_type], body: Text::Plain(problem_text(status, &detail)) }
    }

    /// The response once more; `None` when what is stored is none.
    pub(super) fn response<B: From<Bytes>>(self, replayed: bool) -> Option<Response<B>> {
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers {
            headers.append(name.parse::<HeaderName>().ok()?, HeaderValue::from_maybe_shared(value.bytes()?).ok()?);
        }
        if replayed {
            headers.insert(REPLAYED, HeaderValue::from_static("true"));
        }
        let mut response = Response::new(B::from(self.body.bytes()?));
        *response.status_mut() = StatusCode::from_u16(self.status).ok()?;
        *response.headers_mut() = headers;
        Some(response)
    }
}

/// The header names that a `Connection` header lists.
fn names(value: &HeaderValue) -> Vec<String> {
    let list = value.to_str().unwrap_or_default();
    list.split(',').map(|name| name.trim().to_ascii_lowercase()).collect()
}

const PROBLEM: &str = "application/problem+json";

fn problem_text(status: StatusCode, detail: &str) -> String {
    let title = status.canonical_reason().unwrap_or("Error");
    json!({ "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail }).to_string()
}

/// A response of our own, as RFC 9457 has it.
pub(super) fn problem<B: From<Bytes>>(status: StatusCode, detail: &str) -> Response<B> {
    let mut response = Response::new(B::from(Bytes::from(problem_text(status, detail))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM));
    if matches!(status, StatusCode::CONFLICT | StatusCode::SERVICE_UNAVAILABLE) {
        // Handlers take less than a second, as a rule; how long this one takes is not known.
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// What the client is told of an error of `once`. What only operators should know goes to the log.
pub(super) fn problem_of<B: From<Bytes>>(error: &Error) -> Response<B> {
    let (status, detail) = match error.kind() {
        ErrorKind::Busy => (StatusCode::CONFLICT, "a request with this Idempotency-Key is being handled"),
        ErrorKind::Stale => (StatusCode::CONFLICT, "another request with this Idempotency-Key has taken over"),
        ErrorKind::Mismatch => {
            (StatusCode::UNPROCESSABLE_ENTITY, "the Idempotency-Key was used for another request; use a new one")
        }
        ErrorKind::Unavailable | ErrorKind::Lost | ErrorKind::Closed => {
            tracing::warn!(%error, "a request with an Idempotency-Key could not be handled");
            (StatusCode::SERVICE_UNAVAILABLE, "the request may or may not have been handled; send it again")
        }
        _ => {
            tracing::error!(%error, "a request with an Idempotency-Key could not be handled");
            (StatusCode::INTERNAL_SERVER_ERROR, "the Idempotency-Key could not be looked up")
        }
    };
    problem(status, detail)
}
