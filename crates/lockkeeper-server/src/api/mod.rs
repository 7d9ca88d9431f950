//! Every path.

mod claims;
mod events;
mod locks;
mod recipes;
mod registers;
mod thin;
mod watch;

pub(crate) use locks::break_by;
pub(crate) use recipes::{inspect, read};

use crate::accept::Origin;
use crate::auth::{Caller, Verb};
use crate::gateway::Gateway;
use crate::metrics;
use crate::refused::{Answered, Refused};
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HOST};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use lockkeeper::wire::{GATEWAY_HEADER, Info};
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

/// All paths of a gateway.
pub fn routes(gateway: Arc<Gateway>) -> Router {
    let api = Router::new()
        .route("/v1/info", get(info))
        .route("/v1/acquire", post(thin::acquire))
        .route("/v1/renew", post(thin::renew))
        .route("/v1/release", post(thin::release))
        .route("/v1/lock", get(locks::one))
        .route("/v1/locks", get(locks::list))
        .route("/v1/break", post(locks::break_lock))
        .route("/v1/registers", get(registers::read))
        .route("/v1/registers/enter", post(registers::enter))
        .route("/v1/registers/write", post(registers::write))
        .route("/v1/once/begin", post(recipes::once::begin))
        .route("/v1/once/finish", post(recipes::once::finish))
        .route("/v1/elections/campaign", post(recipes::elections::campaign))
        .route("/v1/elections/proclaim", post(recipes::elections::proclaim))
        .route("/v1/elections/resign", post(recipes::elections::resign))
        .route("/v1/elections/leader", get(recipes::elections::leader))
        .route("/v1/jobs/begin", post(recipes::jobs::begin))
        .route("/v1/jobs/end", post(recipes::runs::end))
        .route("/v1/jobs/history", get(recipes::runs::history))
        .route("/v1/claims/try-acquire", post(claims::try_acquire))
        .route("/v1/claims/renew", post(claims::renew))
        .route("/v1/claims/release", post(claims::release))
        .route("/v1/events", get(events::events))
        .route("/v1/watch", get(watch::watch))
        .route("/v1/openapi.json", get(openapi))
        .route("/metrics", get(scraped))
        .route_layer(from_fn_with_state(gateway.clone(), admitted));
    let api = if gateway.api { api } else { Router::new() };
    let pages = if gateway.settings.ui { crate::ui::routes(&gateway) } else { Router::new() };
    Router::new()
        .merge(api)
        .merge(pages)
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .fallback(async || Refused::unknown("there is no such path; /v1/info is one"))
        .method_not_allowed_fallback(async || Refused::method())
        .layer(from_fn_with_state(gateway.clone(), answered))
        .with_state(gateway)
}

/// `/metrics` alone, without a token: for a listener that only Prometheus can reach.
pub(crate) fn metrics_alone(gateway: Arc<Gateway>) -> Router {
    let page = async |State(gateway): State<Arc<Gateway>>| metrics::page(&gateway);
    Router::new()
        .route("/metrics", get(page))
        .fallback(async || Refused::unknown("there is no such path; /metrics is the only one here"))
        .with_state(gateway)
}

/// Who asks, and from where.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    pub(crate) caller: Caller,
    pub(crate) from: Option<SocketAddr>,
}

impl<S: Sync> FromRequestParts<S> for Asking {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        parts.extensions.get().cloned().ok_or_else(Refused::unauthenticated)
    }
}

/// Lets in what has a token that counts. Its body is read after that: see [`Posted`](crate::input::Posted).
async fn admitted(State(gateway): State<Arc<Gateway>>, mut request: Request, next: Next) -> Answered<Response> {
    let caller = gateway.tokens.caller(request.headers())?;
    answers_to(&gateway, &request)?;
    if !gateway.tokens.is_open() {
        gateway.limits.request(&caller.id)?;
    }
    let origin = Origin::of(&request);
    origin.inspect(|origin| origin.proven());
    let from = origin.and_then(|origin| origin.address);
    request.extensions_mut().insert(Asking { caller, from });
    Ok(next.run(request).await)
}

/// Where everything is allowed, a page of another site must not reach us under a name of its own in a browser.
pub(crate) fn answers_to(gateway: &Gateway, request: &Request) -> Answered<()> {
    let is_near = Origin::of(request).and_then(|origin| origin.address).is_some_and(|from| from.ip().is_loopback());
    if gateway.tokens.is_open() && is_near && !is_local(request.headers()) {
        return Err(Refused::denied());
    }
    Ok(())
}

/// Whether a request names this machine: by an address, which no page can make its own, or as localhost.
fn is_local(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let is_address = host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok() || host == "[::1]";
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    is_address || name.eq_ignore_ascii_case("localhost")
}

/// An answer with the name that was asked for, in the field that it fits into.
fn with_name(mut fields: Value, name: &[u8]) -> Value {
    let (text, digits) = lockkeeper::wire::named(name);
    fields["name"] = json!(text);
    if let Some(digits) = digits {
        fields["name_hex"] = json!(digits);
    }
    fields
}

/// Every answer is counted, says which gateway it is from, and is kept by no cache.
async fn answered(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    let (route, began) = (request.extensions().get::<MatchedPath>().cloned(), Instant::now());
    let mut response = next.run(request).await;
    gateway.metrics.answered(route.as_ref(), response.status(), began.elapsed());
    let headers = response.headers_mut();
    headers.insert(GATEWAY_HEADER, gateway.mark.clone());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn info(State(gateway): State<Arc<Gateway>>) -> Json<Info> {
    Json(gateway.describe())
}

/// What this API is, for programs that read OpenAPI.
async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], include_str!("../../openapi.json")).into_response()
}

/// It tells how much is going on under all names: for callers that may look at all of them.
async fn scraped(State(gateway): State<Arc<Gateway>>, asking: Asking) -> Answered<Response> {
    asking.caller.need_all(Verb::Read)?;
    Ok(metrics::page(&gateway))
}

/// Whether a balancer should send requests here.
async fn ready(State(gateway): State<Arc<Gateway>>) -> Response {
    if gateway.is_draining() {
        return Refused::closing(None).into_response();
    }
    match gateway.store_answers().await {
        Ok(()) => "ready\n".into_response(),
        Err(error) => Refused::from(error).into_response(),
    }
}
