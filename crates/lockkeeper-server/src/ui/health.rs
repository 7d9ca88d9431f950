//! The store and this gateway: what is promised, and how it answers.

use super::access::Visitor;
use super::layout::{Frame, age, count, pause, utc};
use super::live::{Part, View, follow};
use super::locks::trouble;
use super::trouble::Trouble;
use crate::gateway::Gateway;
use crate::poll::{Pulse, Snapshot};
use axum::extract::State;
use axum::response::IntoResponse;
use lockkeeper::duration::short;
use lockkeeper::name::escape;
use lockkeeper::store::Expiry;
use lockkeeper::{Guarantee, StoreInfo};
use maud::{Markup, html};
use std::sync::Arc;
use std::time::Duration;

struct Health;

impl View for Health {
    async fn parts(&self, gateway: &Arc<Gateway>, _: &Visitor, snapshot: &Snapshot) -> Vec<Part> {
        let pulse = gateway.poll.pulse();
        vec![
            ("summary", summary(gateway, snapshot)),
            ("answers", answers(&pulse)),
            ("failures", failures(&pulse)),
            ("gateway", this(gateway)),
        ]
    }
}

fn summary(gateway: &Gateway, snapshot: &Snapshot) -> Markup {
    html! {
        @if snapshot.failed.is_some() { (trouble(snapshot)) } @else { "The store answers." }
        @if gateway.is_draining() { " This gateway is about to end." }
    }
}

/// What a guarantee means for locks.
fn meaning(guarantee: Guarantee) -> &'static str {
    match guarantee {
        Guarantee::BestEffort => "the store may drop a lock that is held",
        Guarantee::Process => "within one process",
        Guarantee::Machine => "within one machine, across processes, crashes and reboots",
        Guarantee::Primary => {
            "across machines while one primary keeps its data and its clock; a failover may forget a grant"
        }
        Guarantee::Majority => "across machines on a majority of independent nodes, with bounded clocks",
        Guarantee::Durable => "across machines, every grant durable in one database before it is answered",
        Guarantee::Consensus => "across machines by consensus; survives the loss of any minority",
        _ => "",
    }
}

fn store(info: &StoreInfo) -> Markup {
    let yes = |yes: bool| if yes { "yes" } else { "no" };
    let ends = match info.expiry {
        Expiry::Lease => "each claim by its own lease, on the store's clock",
        Expiry::Session => "with the session of its keeper",
        _ => "when it was not renewed for a whole lease, as others watch it",
    };
    html! {
        dt { "Store" } dd { (info.scheme) }
        @if !info.servers.is_empty() { dt { "Servers" } dd { (escape(info.servers.as_bytes())) } }
        dt { "Exclusion" } dd { strong { (info.guarantee.as_str()) } ": " (meaning(info.guarantee)) }
        dt { "A claim ends" } dd { (ends) }
        dt { "TTL" } dd { (short(info.ttl_floor)) " to " (short(info.ttl_ceiling)) }
        dt { "Waiters queue in the store" } dd { (yes(info.queue)) }
        dt { "Shared locks, permits" } dd { (yes(info.shared)) ", " (yes(info.permits)) }
    }
}

/// The time below which this part of the answers came.
fn quantile(times: &[Duration], part: f64) -> Option<Duration> {
    // Small numbers: exact as floats.
    let place = ((times.len() as f64 * part).ceil() as usize).saturating_sub(1);
    times.get(place).copied()
}

fn answers(pulse: &Pulse) -> Markup {
    let mut times: Vec<Duration> = pulse.times.iter().flatten().copied().collect();
    times.sort_unstable();
    let failed = pulse.times.len() - times.len();
    html! {
        @if let Some(last) = pulse.last { dt { "Asked last" } dd { (utc(last)) } }
        dt { "Asked lately" } dd { (count(pulse.times.len(), "time", "times")) ", " (failed) " without an answer" }
        @if let (Some(half), Some(most)) = (quantile(&times, 0.5), quantile(&times, 0.99)) {
            dt { "Time to answer" } dd { "half of them within " (short(half)) ", 99 % within " (short(most)) }
        }
    }
}

fn failures(pulse: &Pulse) -> Markup {
    html! {
        @for (at, said) in pulse.failures.iter().rev() {
            tr { td { (utc(*at)) } td.named { (escape(said.as_bytes())) } }
        }
        @if pulse.failures.is_empty() {
            tr { td colspan="2" { "None." } }
        }
    }
}

fn this(gateway: &Gateway) -> Markup {
    html! {
        dt { "Gateway" } dd { code { (gateway.id) } }
        dt { "Version" } dd { (env!("CARGO_PKG_VERSION")) }
        dt { "Runs for" } dd { (age(Some(gateway.ui.since))) }
        dt { "Pages and programs that follow" } dd { (gateway.poll.followers()) }
    }
}

pub(super) async fn page(State(gateway): State<Arc<Gateway>>, visitor: Visitor) -> Markup {
    let snapshot = gateway.poll.now().await;
    let pulse = gateway.poll.pulse();
    let body = html! {
        h1 { "Health" }
        p.filter { span #summary role="status" data-live { (summary(&gateway, &snapshot)) } (pause()) }
        h2 { "What the store promises" }
        dl { (store(&gateway.info)) }
        h2 { "How it answers" }
        p { "Asked for its locks by this gateway, while a page is open." }
        dl #answers data-live { (answers(&pulse)) }
        h2 #failed { "Last failures" }
        table aria-labelledby="failed" {
            thead { tr { th scope="col" { "When" } th scope="col" { "What" } } }
            tbody #failures data-live { (failures(&pulse)) }
        }
        h2 { "This gateway" }
        dl #gateway data-live { (this(&gateway)) }
    };
    let frame = Frame { title: "Health", path: "/health", stream: Some("/live/health".into()), reload: true };
    frame.around(&gateway, &visitor, &body)
}

pub(super) async fn live(State(gateway): State<Arc<Gateway>>, visitor: Visitor) -> Result<impl IntoResponse, Trouble> {
    follow(gateway, visitor, Health)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_times_that_were_seen() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(quantile(&times, 0.5), Some(Duration::from_millis(50)));
        assert_eq!(quantile(&times, 0.99), Some(Duration::from_millis(99)));
        assert_eq!(quantile(&times[..1], 0.99), Some(Duration::from_millis(1)));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
