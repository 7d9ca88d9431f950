//! Who may look: the headers of every page, log-ins, and requests that another site has forged.

use super::sessions::{self, Key};
use super::trouble::Trouble;
use super::{Entry, Ui, random};
use crate::accept::Origin;
use crate::api::{Asking, answers_to};
use crate::auth::{Caller, Verb};
use crate::gateway::Gateway;
use crate::input::whole;
use crate::refused::Refused;
use axum::body::Body;
use axum::extract::{FromRequestParts, Query, Request, State};
use axum::http::header::{
    CONTENT_SECURITY_POLICY, COOKIE, HOST, HeaderName, ORIGIN, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use lockkeeper::LockName;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use subtle::ConstantTimeEq;

/// What a page may do: load its own style and script, and nothing of any other site.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// Who looks at a page.
#[derive(Clone)]
pub(super) struct Visitor {
    pub(super) asking: Asking,
    /// What forms of this visitor carry.
    pub(super) csrf: String,
    /// Its log-in, where there is one.
    pub(super) session: Option<Key>,
}

impl Visitor {
    /// Whether it may see a name.
    pub(super) fn sees(&self, name: &LockName) -> bool {
        self.asking.caller.may(Verb::Read, name)
    }

    /// Whether its log-in is not over yet.
    pub(super) fn still_counts(&self, gateway: &Gateway) -> bool {
        let Some(key) = self.session else { return true };
        let token = gateway.ui.sessions.find(&key).map(|session| session.token);
        token.is_some_and(|token| token.is_none_or(|(id, hash)| gateway.tokens.still(&id, &hash).is_some()))
    }

    /// Refuses a form that was not made for this visitor.
    pub(super) fn check_form(&self, csrf: &str) -> Result<(), Refused> {
        if bool::from(csrf.as_bytes().ct_eq(self.csrf.as_bytes())) {
            return Ok(());
        }
        Err(Refused::forged("the form is not of this log-in; load the page again"))
    }
}

impl<S: Sync> FromRequestParts<S> for Visitor {
    type Rejection = Trouble;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Trouble> {
        parts.extensions.get().cloned().ok_or(Trouble::LogIn)
    }
}

/// For all paths of the pages: a name that is ours, no request of another site, and strict headers.
pub(super) async fn guarded(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    let mut response = match checked(&gateway, request).await {
        Ok(request) => next.run(request).await,
        Err(refused) => Trouble::from(refused).into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin"));
    response
}

async fn checked(gateway: &Gateway, request: Request) -> Result<Request, Refused> {
    answers_to(gateway, &request)?;
    if request.method() == Method::POST && !is_same_origin(request.headers()) {
        return Err(Refused::forged("a form is sent from a page of this gateway only"));
    }
    let (parts, body) = request.into_parts();
    let body = whole(&parts.headers, body).await?;
    Ok(Request::from_parts(parts, Body::from(body)))
}

/// Whether a page of ours has sent a request. Browsers say so; old ones say at least which site it was.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    match headers.get("sec-fetch-site") {
        Some(site) => site == "same-origin",
        None => {
            let origin = text(ORIGIN).and_then(|origin| origin.split_once("://"));
            origin.is_some_and(|(_, host)| Some(host) == text(HOST))
        }
    }
}

#[derive(Deserialize)]
struct WithKey {
    key: Option<String>,
}

/// Lets in who has logged in, or needs not to.
pub(super) async fn admitted(State(gateway): State<Arc<Gateway>>, mut request: Request, next: Next) -> Response {
    let mut cookie = None;
    let found = match visitor(&gateway, &request) {
        Some(found) => Ok(found),
        None => by_key(&gateway, &request).map(|(visitor, made)| {
            cookie = Some(made);
            visitor
        }),
    };
    let limited = |visitor: Visitor| {
        // As for requests of programs: without tokens there is no limit.
        if !gateway.tokens.is_open() {
            gateway.limits.request(&visitor.asking.caller.id)?;
        }
        Ok(visitor)
    };
    match found.and_then(limited) {
        Ok(visitor) => {
            Origin::of(&request).inspect(|origin| origin.proven());
            request.extensions_mut().insert(visitor);
        }
        Err(trouble) => return trouble.into_response(),
    }
    let mut response = next.run(request).await;
    if let Some(cookie) = cookie {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    response
}

pub(super) fn from(request: &Request) -> Option<SocketAddr> {
    Origin::of(request)?.address
}

/// Who sends a request, by its cookie or because no log-in is needed.
fn visitor(gateway: &Gateway, request: &Request) -> Option<Visitor> {
    let made = |caller: Caller, session: Option<Key>| Visitor {
        asking: Asking { caller, from: from(request) },
        csrf: gateway.ui.csrf(session),
        session,
    };
    if matches!(gateway.ui.entry, Entry::Open) {
        return Some(made(gateway.tokens.everyone()?, None));
    }
    let key = sessions::key(&cookie(gateway, request.headers())?);
    let caller = match gateway.ui.sessions.find(&key)?.token {
        // A token that was taken out of the file, or has ended, takes its log-ins along.
        Some((id, hash)) => gateway.tokens.still(&id, &hash)?,
        None => gateway.tokens.everyone()?,
    };
    Some(made(caller, Some(key)))
}

/// A visitor with the key of the URL, which then counts no more; and the cookie to give it.
fn by_key(gateway: &Gateway, request: &Request) -> Result<(Visitor, HeaderValue), Trouble> {
    let Entry::Key(known) = &gateway.ui.entry else { return Err(Trouble::LogIn) };
    let shown = Query::<WithKey>::try_from_uri(request.uri()).ok().and_then(|query| query.0.key).unwrap_or_default();
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if !known.as_ref().is_some_and(|known| known.as_bytes().ct_eq(shown.as_bytes()).into()) {
        return Err(Trouble::LogIn);
    }
    *known = None;
    drop(known);
    let caller = gateway.tokens.everyone().ok_or(Trouble::LogIn)?;
    let (session, cookie) = gateway.begin_session(None, is_secure(request))?;
    let csrf = gateway.ui.csrf(Some(session));
    Ok((Visitor { asking: Asking { caller, from: from(request) }, csrf, session: Some(session) }, cookie))
}

/// Whether a request came over TLS.
pub(super) fn is_secure(request: &Request) -> bool {
    Origin::of(request).is_some_and(|origin| origin.secured)
}

/// Cookies do not tell ports apart: each gateway has a name of its own.
fn cookie_name(gateway: &Gateway) -> String {
    format!("lockkeeper-{}", gateway.id)
}

fn cookie(gateway: &Gateway, headers: &HeaderMap) -> Option<String> {
    let wanted = cookie_name(gateway);
    let pairs = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = pairs.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == wanted).map(|(_, value)| value.to_owned())
}

impl Gateway {
    /// Begins a log-in: what it is kept as, and its cookie.
    pub(super) fn begin_session(
        &self,
        token: Option<(Arc<str>, [u8; 32])>,
        secure: bool,
    ) -> Result<(Key, HeaderValue), Refused> {
        let value = lockkeeper::wire::hex(&random()?);
        let key = self.ui.sessions.begin(&value, token);
        Ok((key, self.set_cookie(&value, sessions::LASTS.as_secs(), secure)?))
    }

    /// Ends a log-in: the cookie that takes the old one away.
    pub(super) fn end_session(&self, key: &Key, secure: bool) -> Result<HeaderValue, Refused> {
        self.ui.sessions.end(key);
        self.set_cookie("", 0, secure)
    }

    fn set_cookie(&self, value: &str, seconds: u64, secure: bool) -> Result<HeaderValue, Refused> {
        let (name, secure) = (cookie_name(self), if secure { "; Secure" } else { "" });
        let text = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
        HeaderValue::try_from(text).map_err(|_| Refused::invalid("the cookie cannot be written"))
    }
}

impl Ui {
    /// What forms carry: only a page of ours can know it.
    fn csrf(&self, session: Option<Key>) -> String {
        let hash = Sha256::new().chain_update(self.secret).chain_update(session.unwrap_or_default()).finalize();
        lockkeeper::wire::hex(&hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_page_of_ours_sends_forms() {
        let headers = |pairs: &[(&'static str, &str)]| -> HeaderMap {
            let pair = |(name, value): &(&'static str, &str)| {
                (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value"))
            };
            pairs.iter().map(pair).collect()
        };
        let ours = [
            &[("sec-fetch-site", "same-origin")][..],
            &[("host", "localhost:7420"), ("origin", "http://localhost:7420")],
        ];
        let others = [
            &[][..],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "none")],
            &[("sec-fetch-site", "cross-site"), ("host", "a"), ("origin", "http://a")],
            &[("host", "localhost:7420"), ("origin", "http://evil.example")],
            &[("host", "localhost:7420"), ("origin", "null")],
            &[("origin", "http://localhost:7420")],
        ];
        assert!(ours.iter().all(|pairs| is_same_origin(&headers(pairs))));
        for pairs in others {
            assert!(!is_same_origin(&headers(pairs)), "{pairs:?}");
        }
    }
}
