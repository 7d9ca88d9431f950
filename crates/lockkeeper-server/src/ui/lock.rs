//! One lock: its holders, its line, what its recipe keeps, what was seen of it, and the form that breaks it.

use super::access::Visitor;
use super::breaking::said;
use super::events::sights;
use super::layout::{Frame, age, client, count, label, left, lock_url, name_field, pause};
use super::live::{Part, View, follow};
use super::recipe::shown;
use super::trouble::Trouble;
use crate::auth::Verb;
use crate::gateway::Gateway;
use crate::poll::Snapshot;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::IntoResponse;
use lockkeeper::name::escape;
use lockkeeper::store::Record;
use lockkeeper::wire::name_of;
use lockkeeper::{LockName, StoreInfo};
use maud::{Markup, html};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

#[derive(Deserialize)]
pub(super) struct Asked {
    name: Option<String>,
    name_hex: Option<String>,
    outcome: Option<String>,
}

/// How long the store may take to tell of one lock.
const LIMIT: Duration = Duration::from_secs(10);

/// One lock.
pub(super) struct One(LockName);

/// A lock as the store has it, or why it does not say.
struct Found {
    record: Record,
    failed: Option<String>,
}

impl One {
    async fn find(&self, gateway: &Gateway) -> Found {
        let name = self.0.clone();
        let asked = gateway.act(move |store| async move { store.inspect(&name).await });
        let (found, failed) = match tokio::time::timeout(LIMIT, asked).await {
            Ok(Ok(Ok(found))) => (found, None),
            Ok(Ok(Err(error)) | Err(error)) => (None, Some(error.message().to_owned())),
            Err(_) => (None, Some("the store did not answer in time".to_owned())),
        };
        Found { record: found.unwrap_or_else(|| Record::new(self.0.clone())), failed }
    }

    fn sights(&self, gateway: &Gateway) -> Markup {
        sights(&gateway.seen.list(|sight| sight.name == self.0), false)
    }
}

impl View for One {
    async fn parts(&self, gateway: &Arc<Gateway>, _: &Visitor, _: &Snapshot) -> Vec<Part> {
        let found = self.find(gateway).await;
        vec![
            ("summary", summary(&found)),
            ("rows", holders(&found.record)),
            ("worst", worst(&found.record, &gateway.info)),
            ("line", line(&found)),
            ("recipe", shown(gateway, &self.0, &found.record).await),
            ("sights", self.sights(gateway)),
        ]
    }
}

/// One line that a screen reader says when it changes.
fn summary(found: &Found) -> Markup {
    let record = &found.record;
    html! {
        @if let Some(failed) = &found.failed {
            strong.bad { "The store does not answer: " (escape(failed.as_bytes())) "." }
        } @else {
            @match record.holders.len() {
                0 => "Not held",
                1 => "Held by one client",
                n => { "Held by " (n) " clients" }
            }
            ", " (count(record.waiting as usize, "client waits", "clients wait")) "."
            @if let Some(remark) = &record.remark { " " (escape(remark.as_bytes())) "." }
        }
    }
}

fn holders(record: &Record) -> Markup {
    html! {
        @for holder in &record.holders {
            tr {
                th scope="row" { (client(holder.note.as_ref())) }
                td.named { (label(holder.note.as_ref())) }
                td { (holder.mode) }
                td.number { @if let Some(token) = holder.token { (token) } @else { "–" } }
                td.number { (age(holder.since)) }
                td.number { (left(holder.remaining)) }
            }
        }
        @if record.holders.is_empty() {
            tr { td colspan="6" { "No client." } }
        }
    }
}

/// If the holder died now: until its lease ends, and what the store may need to notice.
fn worst(record: &Record, info: &StoreInfo) -> Markup {
    let longest = record.holders.iter().filter_map(|holder| holder.remaining).max();
    html! {
        @if let Some(longest) = longest {
            "If a holder died now, the lock would be free in " (left(Some(info.worst_hand_over(longest)))) " at the latest."
        }
    }
}

/// Who waits, in order.
fn line(found: &Found) -> Markup {
    let record = &found.record;
    html! {
        @if !record.waiters.is_empty() {
            ol {
                @for waiter in &record.waiters {
                    @let label = label(waiter.note.as_ref());
                    li {
                        (client(waiter.note.as_ref())) ", " (waiter.mode)
                        @if !label.is_empty() { ", " (label) }
                    }
                }
            }
        } @else if record.waiting > 0 {
            p { (count(record.waiting as usize, "client waits", "clients wait")) "; the store does not say which." }
        } @else {
            p { "No client." }
        }
    }
}

/// Closed at first: what it does cannot be undone.
fn break_form(name: &LockName, csrf: &str) -> Markup {
    let (field, value) = name_field(name);
    html! {
        details {
            summary { "Break this lock" }
            form.stack method="post" action="/break" {
                p { "The lock is taken from its holder and given to the next in line. The holder learns of it when it next \
                    asks. Until then both may be at work, and only a fence that refuses lower tokens keeps them apart." }
                input type="hidden" name="csrf" value=(csrf);
                input type="hidden" name=(field) value=(value);
                label for="token" { "Token of the holder, as the table shows it" }
                input #token name="token" required inputmode="numeric" pattern="[0-9]+" autocomplete="off";
                label for="why" { "Reason, for the audit" }
                input #why name="why" required maxlength="500" autocomplete="off";
                button.danger { "Break the lock" }
            }
        }
    }
}

fn asked(query: Result<Query<Asked>, QueryRejection>, visitor: &Visitor) -> Result<(One, Option<String>), Trouble> {
    let Query(asked) = query?;
    let name = name_of(asked.name.as_deref(), asked.name_hex.as_deref())?;
    visitor.asking.caller.need(Verb::Read, &name)?;
    Ok((One(name), asked.outcome))
}

pub(super) async fn page(
    State(gateway): State<Arc<Gateway>>,
    visitor: Visitor,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Markup, Trouble> {
    let (one, outcome) = asked(query, &visitor)?;
    let (found, outcome) = (one.find(&gateway).await, outcome.as_deref().map(said));
    let recipe = shown(&gateway, &one.0, &found.record).await;
    let may_break = visitor.asking.caller.may(Verb::Break, &one.0);
    let body = html! {
        h1.name { (one.0) }
        @if let Some((said, went_well)) = outcome {
            p.said .bad[!went_well] role="alert" { (said) }
        }
        p.filter { span #summary role="status" data-live { (summary(&found)) } (pause()) }
        h2 #holders { "Holders" }
        table aria-labelledby="holders" {
            thead {
                tr {
                    th scope="col" { "Holder" }
                    th scope="col" { "Label" }
                    th scope="col" { "Mode" }
                    th.number scope="col" { "Token" }
                    th.number scope="col" { "Held for" }
                    th.number scope="col" { "Ends unless renewed" }
                }
            }
            tbody #rows data-live { (holders(&found.record)) }
        }
        p #worst data-live { (worst(&found.record, &gateway.info)) }
        h2 { "Waiting, next first" }
        div #line data-live { (line(&found)) }
        div #recipe data-live { (recipe) }
        @if may_break {
            h2 { "Break" }
            (break_form(&one.0, &visitor.csrf))
        }
        h2 { "Seen of this lock" }
        p { "By this gateway, since it started." }
        table { (super::events::head(false)) tbody #sights data-live { (one.sights(&gateway)) } }
    };
    let (title, stream) = (one.0.to_string(), Some(lock_url("/live/lock", &one.0)));
    // A page that reloads by itself would take away what is typed into the form.
    let frame = Frame { title: &title, path: "/lock", stream, reload: !may_break };
    Ok(frame.around(&gateway, &visitor, &body))
}

pub(super) async fn live(
    State(gateway): State<Arc<Gateway>>,
    visitor: Visitor,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<impl IntoResponse, Trouble> {
    let (one, _) = asked(query, &visitor)?;
    follow(gateway, visitor, one)
}
