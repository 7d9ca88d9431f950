//! Taking a lock away from its holder, from a form.

use super::access::Visitor;
use super::layout::lock_url;
use super::trouble::Trouble;
use crate::api::break_by;
use crate::gateway::Gateway;
use axum::Form;
use axum::extract::State;
use axum::extract::rejection::FormRejection;
use axum::response::Redirect;
use lockkeeper::wire::name_of;
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
pub(super) struct Breaking {
    name: Option<String>,
    name_hex: Option<String>,
    token: String,
    why: String,
    csrf: String,
}

/// Breaks, and leads back to the lock's page, which says how it went.
pub(super) async fn post(
    State(gateway): State<Arc<Gateway>>,
    visitor: Visitor,
    form: Result<Form<Breaking>, FormRejection>,
) -> Result<Redirect, Trouble> {
    let Form(form) = form?;
    visitor.check_form(&form.csrf)?;
    let name = name_of(form.name.as_deref(), form.name_hex.as_deref())?;
    let outcome = match form.token.trim().parse() {
        Err(_) => "bad-token".to_owned(),
        Ok(token) => match break_by(&gateway, &visitor.asking, &name, token, &form.why).await {
            Ok(_) => "broken".to_owned(),
            Err(refused) => refused.problem.kind.clone(),
        },
    };
    Ok(Redirect::to(&format!("{}&outcome={outcome}", lock_url("/lock", &name))))
}

/// How it went: a sentence, and whether the lock was broken. Only words that `post` writes are known.
pub(super) fn said(outcome: &str) -> (&'static str, bool) {
    match outcome {
        "broken" => {
            ("The lock was broken. Its holder learns of it when it next asks, and may be at work until then.", true)
        }
        "not-held" => {
            ("Nothing was broken: no holder has that token now. Another holder may have the lock by now.", false)
        }
        "denied" => ("Nothing was broken: your token does not allow it.", false),
        "bad-token" => ("Nothing was broken: a token is a whole number, as the table of holders shows it.", false),
        "invalid-config" => ("Nothing was broken: say in 1 to 500 bytes why, and name the token of the holder.", false),
        "unavailable" => ("The store did not answer: the lock may be broken or not. Look at its holders again.", false),
        _ => ("The lock was not broken.", false),
    }
}
