//! What this gateway saw: losses, breaks, refused writes.

use super::access::Visitor;
use super::layout::{Frame, lock_link, pause, utc};
use super::live::{Part, View, follow};
use super::trouble::Trouble;
use crate::gateway::Gateway;
use crate::poll::Snapshot;
use crate::seen::{MOST, Sight, What};
use axum::extract::State;
use axum::response::IntoResponse;
use lockkeeper::name::escape;
use maud::{Markup, html};
use std::sync::Arc;

struct All;

impl View for All {
    async fn parts(&self, gateway: &Arc<Gateway>, visitor: &Visitor, _: &Snapshot) -> Vec<Part> {
        vec![("sights", all(gateway, visitor))]
    }
}

fn all(gateway: &Gateway, visitor: &Visitor) -> Markup {
    sights(&gateway.seen.list(|sight| visitor.sees(&sight.name)), true)
}

/// The head of the table; on the page of one lock its name is known.
pub(super) fn head(names: bool) -> Markup {
    html! {
        thead {
            tr {
                th scope="col" { "When" }
                @if names { th scope="col" { "Name" } }
                th scope="col" { "What" }
            }
        }
    }
}

/// Its rows.
pub(super) fn sights(sights: &[Sight], names: bool) -> Markup {
    html! {
        @for sight in sights {
            tr {
                td { (utc(sight.at)) }
                @if names { th scope="row" { (lock_link(&sight.name)) } }
                td.named { (what(&sight.what)) }
            }
        }
        @if sights.is_empty() {
            tr { td colspan=(2 + usize::from(names)) { "Nothing yet." } }
        }
    }
}

fn what(what: &What) -> Markup {
    html! {
        @match what {
            What::Lost(reason) => { "lost: " (reason) }
            What::Broken { token, by, why } => {
                "broken: token " (token) ", by " (by) ": " q { (escape(why.as_bytes())) }
            }
            What::Stale { token, seen } => { "refused a write with token " (token) "; token " (seen) " was here before" }
        }
    }
}

pub(super) async fn page(State(gateway): State<Arc<Gateway>>, visitor: Visitor) -> Markup {
    let body = html! {
        h1 { "Events" }
        p { "Losses, breaks and refused writes that this gateway saw since it started: the last " (MOST) ". What happens \
            through other gateways, or directly at the store, is not here." }
        p { (pause()) }
        table { (head(true)) tbody #sights data-live { (all(&gateway, &visitor)) } }
    };
    let frame = Frame { title: "Events", path: "/events", stream: Some("/live/events".into()), reload: true };
    frame.around(&gateway, &visitor, &body)
}

pub(super) async fn live(State(gateway): State<Arc<Gateway>>, visitor: Visitor) -> Result<impl IntoResponse, Trouble> {
    follow(gateway, visitor, All)
}
