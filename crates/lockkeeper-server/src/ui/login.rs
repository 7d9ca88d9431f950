//! Logging in with a token, and out again.

use super::Entry;
use super::access::{Visitor, from, is_secure};
use super::layout;
use super::trouble::Trouble;
use crate::audit::Line;
use crate::gateway::Gateway;
use crate::refused::Refused;
use axum::Form;
use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use axum::http::header::SET_COOKIE;
use axum::response::{AppendHeaders, IntoResponse, Redirect, Response};
use maud::{Markup, html};
use serde::Deserialize;
use std::sync::Arc;

/// The page on which a token is shown.
pub(super) async fn form(State(gateway): State<Arc<Gateway>>) -> Response {
    match gateway.ui.entry {
        Entry::Open => Redirect::to("/").into_response(),
        Entry::Tokens => log_in(None).into_response(),
        Entry::Key(_) => (StatusCode::UNAUTHORIZED, used()).into_response(),
    }
}

fn log_in(said: Option<&str>) -> Markup {
    let body = html! {
        h1 { "Log in" }
        @if let Some(said) = said {
            p.bad role="alert" { (said) }
        }
        form.stack method="post" action="/login" {
            label for="token" { "Token" }
            input #token type="password" name="token" required autocomplete="current-password" aria-describedby="hint";
            p #hint { "A token of this gateway, as " code { "lockkeeper serve token" } " made it. Its rules say which locks are \
                shown, and which may be broken. The log-in ends after 12 hours." }
            button { "Log in" }
        }
    };
    layout::bare("Log in", &body)
}

fn used() -> Markup {
    let body = html! {
        h1 { "This page needs its key" }
        p { "The address that " code { "lockkeeper ui" } " printed has a key, which counts once. Start the command again for \
            a new one." }
    };
    layout::bare("This page needs its key", &body)
}

#[derive(Deserialize)]
pub(super) struct Shown {
    token: String,
}

/// Takes a token for a cookie.
pub(super) async fn enter(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, Trouble> {
    let secure = is_secure(&request);
    let from = from(&request);
    if !matches!(gateway.ui.entry, Entry::Tokens) {
        return Ok(Redirect::to("/").into_response());
    }
    let Form(shown) = Form::<Shown>::from_request(request, &()).await?;
    let line = |caller: &str, outcome| {
        let (name, token, why) = (None, None, None);
        gateway.audit.write(&Line { verb: "log-in", caller, from, name, token, why, outcome });
    };
    match gateway.tokens.log_in(shown.token.trim()) {
        Ok((caller, hash)) => {
            let (_, cookie) = gateway.begin_session(Some((caller.id.clone(), hash)), secure)?;
            line(&caller.id, "let-in");
            Ok((AppendHeaders([(SET_COOKIE, cookie)]), Redirect::to("/")).into_response())
        }
        Err(_) => {
            line("unknown", "denied");
            let said = "This gateway does not take that token.";
            Ok((StatusCode::UNAUTHORIZED, log_in(Some(said))).into_response())
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Leaving {
    csrf: String,
}

/// Ends a log-in.
pub(super) async fn leave(
    State(gateway): State<Arc<Gateway>>,
    visitor: Visitor,
    request: Request,
) -> Result<Response, Trouble> {
    let secure = is_secure(&request);
    let Form(leaving) = Form::<Leaving>::from_request(request, &()).await?;
    visitor.check_form(&leaving.csrf)?;
    let Some(session) = visitor.session else { return Err(Refused::invalid("there is no log-in to end").into()) };
    let cookie = gateway.end_session(&session, secure)?;
    Ok((AppendHeaders([(SET_COOKIE, cookie)]), Redirect::to("/login")).into_response())
}
