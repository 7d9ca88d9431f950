//! The service that the layer makes.

use super::response::{Stored, problem, problem_of};
use super::{Settings, key};
use crate::error::Error;
use crate::recipes::once::{InProgress, MAX_RESULT, Once};
use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_service::Service;
use tracing::Instrument as _;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Handling<R, E> = Pin<Box<dyn Future<Output = Result<Response<R>, E>> + Send>>;

/// A service behind [`IdempotencyKey`](super::IdempotencyKey). Bodies must be made from [`Bytes`], as those of axum and
/// [`Full`](http_body_util::Full) can be.
#[derive(Clone)]
pub struct Idempotent<S> {
    pub(super) inner: S,
    pub(super) settings: Arc<Settings>,
}

impl<S: fmt::Debug> fmt::Debug for Idempotent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotent").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for Idempotent<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Error: Into<BoxError>, Data: Send> + From<Bytes> + Send + 'static,
    R: Body<Error: Into<BoxError>, Data: Send> + From<Bytes> + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Handling<R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that was polled is the one that is ready.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        if request.method().is_safe() {
            return Box::pin(inner.call(request));
        }
        let settings = self.settings.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let key = match key::read(&parts.headers) {
                Ok(Some(key)) => key,
                Ok(None) if settings.required && [Method::POST, Method::PATCH].contains(&parts.method) => {
                    return Ok(problem(StatusCode::BAD_REQUEST, "this request needs an Idempotency-Key"));
                }
                Ok(None) => return inner.call(Request::from_parts(parts, body)).await,
                Err(why) => return Ok(problem(StatusCode::BAD_REQUEST, &why)),
            };
            let body = match Limited::new(body, settings.request_limit).collect().await {
                Ok(body) => body.to_bytes(),
                Err(error) if error.is::<LengthLimitError>() => {
                    let limit = settings.request_limit;
                    let text = format!("the request's body is too large; at most {limit} bytes are allowed");
                    return Ok(problem(StatusCode::PAYLOAD_TOO_LARGE, &text));
                }
                Err(_) => return Ok(problem(StatusCode::BAD_REQUEST, "the request's body ended early")),
            };
            let name = key::name(&(settings.scope)(&parts), &key);
            let once = settings.once(&name, &parts, &body);
            to_its_end(handle(settings, once, inner, parts, body)).await
        })
    }
}

impl Settings {
    fn once(&self, name: &str, parts: &Parts, body: &[u8]) -> Once {
        // Names the layout of what is stored.
        let mut once = self.keeper.once(name).schema("http/1").fingerprint(key::fingerprint(parts, body));
        if let Some(keep) = self.keep {
            once = once.keep(keep);
        }
        if let Some(ttl) = self.ttl {
            once = once.ttl(ttl);
        }
        if self.wait.is_zero() { once.in_progress(InProgress::Refuse) } else { once.wait(self.wait) }
    }
}

/// Why there is nothing to store.
enum Unstored<R, E> {
    /// `once` failed.
    Once(Error),
    /// The handler's response is not to be stored.
    Response(Response<R>),
    /// The handler's response ended before its end.
    Broken(BoxError),
    /// The service failed.
    Service(E),
}

impl<R, E> From<Error> for Unstored<R, E> {
    fn from(error: Error) -> Self {
        Self::Once(error)
    }
}

impl<R, E> fmt::Display for Unstored<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Once(error) => error.fmt(f),
            Self::Response(response) => write!(f, "the response was {}", response.status()),
            Self::Broken(error) => write!(f, "the response ended early: {error}"),
            Self::Service(_) => f.write_str("the service failed"),
        }
    }
}

/// Handles the request, or finds the stored response.
async fn handle<S, B, R>(
    settings: Arc<Settings>,
    once: Once,
    mut inner: S,
    mut parts: Parts,
    body: Bytes,
) -> Result<Response<R>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
    B: From<Bytes>,
    R: Body<Error: Into<BoxError>> + From<Bytes>,
{
    // The first response goes out as it is, with what is not stored.
    let mut first = None;
    let ran = once.run(|running| async {
        parts.extensions.insert(running);
        let request = Request::from_parts(parts, B::from(body));
        let response = inner.call(request).await.map_err(Unstored::Service)?;
        if !(settings.stores)(response.status()) {
            return Err(Unstored::Response(response));
        }
        let (head, body) = response.into_parts();
        let body = match Limited::new(body, MAX_RESULT).collect().await {
            Ok(body) => Some(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => None,
            Err(error) => return Err(Unstored::Broken(error)),
        };
        match body.and_then(|body| Some((Stored::of(&head, &body)?, body))) {
            Some((stored, body)) => {
                first = Some(Response::from_parts(head, body));
                Ok(stored)
            }
            None => {
                first = Stored::too_large().response(false);
                Ok(Stored::too_large())
            }
        }
    });
    match ran.await {
        Ok(stored) => Ok(match first {
            Some(response) => response.map(R::from),
            None => stored.response(true).unwrap_or_else(|| {
                problem(StatusCode::INTERNAL_SERVER_ERROR, "what is stored under the Idempotency-Key is no response")
            }),
        }),
        Err(Unstored::Once(error)) => Ok(problem_of(&error)),
        Err(Unstored::Response(response)) => Ok(response),
        Err(Unstored::Broken(error)) => {
            tracing::warn!(error, "the response to a request with an Idempotency-Key ended early");
            Ok(problem(StatusCode::INTERNAL_SERVER_ERROR, "the response ended early"))
        }
        Err(Unstored::Service(error)) => Err(error),
    }
}

/// Runs the handler on a task of its own: servers drop what they wait for when the client hangs up, and clients that hang
/// up are those that ask again.
async fn to_its_end<R, E>(
    handling: impl Future<Output = Result<Response<R>, E>> + Send + 'static,
) -> Result<Response<R>, E>
where
    R: From<Bytes> + Send + 'static,
    E: Send + 'static,
{
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return handling.await };
    match runtime.spawn(handling.in_current_span()).await {
        Ok(response) => response,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down.
            Err(_) => Ok(problem(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down")),
        },
    }
}
