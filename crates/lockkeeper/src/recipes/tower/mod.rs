//! The HTTP header `Idempotency-Key`, as a layer for axum and other users of tower: a request that is sent again gets the
//! first response again, and its handler runs once.
//!
//! The meaning is that of the IETF draft `draft-ietf-httpapi-idempotency-key-header`. It stands on
//! [`once`](super::once); `docs/recipes/idempotency-key.md` says what is stored and what is not.

#[cfg(test)]
mod fuzz;
mod key;
mod response;
mod service;

pub use service::Idempotent;

use crate::keeper::Keeper;
use http::StatusCode;
use http::request::Parts;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tower_layer::Layer;

/// As large as requests of an API usually are, and small enough to hold many in memory.
const DEFAULT_REQUEST_LIMIT: usize = 1024 * 1024;

/// A layer that handles requests with the header `Idempotency-Key` once.
///
/// Requests with a safe method, such as `GET`, and requests without the header pass. The handler finds its
/// [`Running`](super::once::Running) in the request's extensions, with the pass for a fence. It runs to its end even if
/// the client hangs up, when there is a Tokio runtime to run it on.
///
/// | answer | when |
/// |---|---|
/// | the first response, with `Idempotent-Replayed: true` | the key has been handled |
/// | 409 with `Retry-After` | the key is being handled |
/// | 422 | the key was used with another method, path, query or body |
/// | 400 | the key is missing and [`required`](Self::required), or is malformed |
/// | 413 | the request is larger than [`request_limit`](Self::request_limit) |
/// | 503 with `Retry-After` | the store does not answer, or the handler lost its lock |
///
/// ```
/// use axum::{Router, routing::post};
/// use lockkeeper::{Keeper, recipes::tower::IdempotencyKey};
///
/// async fn service(keeper: &Keeper) -> Router {
///     Router::new().route("/charges", post(async || "charged")).layer(IdempotencyKey::new(keeper).required(true))
/// }
/// ```
#[derive(Clone)]
pub struct IdempotencyKey(Arc<Settings>);

#[derive(Clone)]
struct Settings {
    keeper: Keeper,
    required: bool,
    scope: Arc<dyn Fn(&Parts) -> String + Send + Sync>,
    stores: Arc<dyn Fn(StatusCode) -> bool + Send + Sync>,
    keep: Option<Duration>,
    ttl: Option<Duration>,
    wait: Duration,
    request_limit: usize,
}

impl IdempotencyKey {
    /// A layer with default settings. The keeper's store needs registers.
    pub fn new(keeper: &Keeper) -> Self {
        Self(Arc::new(Settings {
            keeper: keeper.clone(),
            required: false,
            scope: Arc::new(|request| format!("{} {}", request.method, request.uri.path())),
            stores: Arc::new(is_final),
            keep: None,
            ttl: None,
            wait: Duration::ZERO,
            request_limit: DEFAULT_REQUEST_LIMIT,
        }))
    }

    /// Whether `POST` and `PATCH` without the header are answered with 400. Default: no, they pass.
    #[must_use]
    pub fn required(self, required: bool) -> Self {
        self.with(|s| s.required = required)
    }

    /// Among whose keys the key is looked for, such as those of the user that a layer outside has found. Clients of two
    /// scopes never see each other's responses. Default: the method and the path.
    #[must_use]
    pub fn scope(self, scope: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.with(|s| s.scope = Arc::new(scope))
    }

    /// Which responses are stored. After others the next request with the key is handled anew. Default: all but 408, 425,
    /// 429 and 5xx, which ask the client to try again.
    #[must_use]
    pub fn stores(self, stores: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.with(|s| s.stores = Arc::new(stores))
    }

    /// How long responses are kept; see [`Once::keep`](super::Once::keep). Default: 24 h.
    #[must_use]
    pub fn keep(self, keep: Duration) -> Self {
        self.with(|s| s.keep = Some(keep))
    }

    /// How long a key stays taken after its server was killed; see [`Once::ttl`](super::Once::ttl). Default: the keeper's,
    /// 30 s.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|s| s.ttl = Some(ttl))
    }

    /// How long a request waits for another one with its key before it gets 409. Default: not at all.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|s| s.wait = wait)
    }

    /// The largest request body with a key, in bytes. Default: 1 MiB.
    #[must_use]
    pub fn request_limit(self, bytes: usize) -> Self {
        self.with(|s| s.request_limit = bytes)
    }

    fn with(self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Arc::unwrap_or_clone(self.0);
        change(&mut settings);
        Self(Arc::new(settings))
    }
}

impl<S> Layer<S> for IdempotencyKey {
    type Service = Idempotent<S>;

    fn layer(&self, inner: S) -> Idempotent<S> {
        Idempotent { inner, settings: self.0.clone() }
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyKey").field("keeper", &self.0.keeper).finish_non_exhaustive()
    }
}

/// Whether a response says how the request ended, and not that it may be sent again.
fn is_final(status: StatusCode) -> bool {
    let again = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
    !status.is_server_error() && !again.contains(&status)
}
