//! What a recipe keeps in the register of its lock: who leads, the last runs of a job, how far a key has come.

use super::layout::{client, label, span, utc};
use crate::api::{inspect, read};
use crate::gateway::Gateway;
use lockkeeper::name::escape;
use lockkeeper::recipes::election::Leader;
use lockkeeper::recipes::job::{Ended, History, RunRecord};
use lockkeeper::recipes::steps::{election, job, once};
use lockkeeper::store::Record;
use lockkeeper::{ErrorKind, LockName, Result};
use maud::{Markup, html};
use std::time::Duration;

/// How long the store may take to tell of it.
const LIMIT: Duration = Duration::from_secs(10);

/// Which recipe a lock belongs to, by its name.
#[derive(Clone, Copy)]
enum Recipe {
    Election,
    Job,
    Once,
}

impl Recipe {
    fn of(name: &LockName) -> Option<Self> {
        let is = |prefix: &[u8]| name.as_bytes().strip_prefix(prefix).is_some_and(|rest| !rest.is_empty());
        match () {
            () if is(b"election/") => Some(Self::Election),
            () if is(b"job/") => Some(Self::Job),
            () if is(b"once/") => Some(Self::Once),
            () => None,
        }
    }
}

/// The part of the page; empty for a lock of no recipe. `record` is the lock as it was right before.
pub(super) async fn shown(gateway: &Gateway, name: &LockName, record: &Record) -> Markup {
    let Some(recipe) = Recipe::of(name) else { return html! {} };
    let told = tokio::time::timeout(LIMIT, told(gateway, recipe, name, record)).await;
    match told {
        Ok(Ok(told)) => told,
        // Any lock may have such a name, and a store without registers has no recipes.
        Ok(Err(error)) if matches!(error.kind(), ErrorKind::Foreign | ErrorKind::Unsupported) => html! {},
        Ok(Err(error)) => {
            html! { p.bad { "What the recipe keeps cannot be read: " (escape(error.message().as_bytes())) "." } }
        }
        Err(_) => html! { p.bad { "What the recipe keeps cannot be read: the store did not answer in time." } },
    }
}

async fn told(gateway: &Gateway, recipe: Recipe, name: &LockName, record: &Record) -> Result<Markup> {
    Ok(match recipe {
        Recipe::Election => {
            let seen = std::future::ready(Ok(Some(record.clone())));
            leader(election::leader(|| seen, || read(gateway, name)).await?.as_ref())
        }
        Recipe::Job => runs(&job::history(|| read(gateway, name), || inspect(gateway, name)).await?),
        Recipe::Once => state(read::<once::Record>(gateway, name).await?.as_ref()),
    })
}

fn leader(leader: Option<&Leader>) -> Markup {
    html! {
        h2 { "Leader" }
        @if let Some(leader) = leader {
            @let label = label(Some(&leader.holder));
            p.named {
                (client(Some(&leader.holder))) @if !label.is_empty() { ", " (label) }
                ", leads in term " (leader.term) "."
            }
            p.named {
                @if leader.value.is_empty() { "It has proclaimed no value." } @else {
                    "It has proclaimed " strong { (escape(leader.value.as_bytes())) }
                    ", value " (leader.sequence) " of its term."
                }
            }
        } @else {
            p { "No candidate leads, or the new leader has not proclaimed itself yet." }
        }
    }
}

fn runs(history: &History) -> Markup {
    html! {
        h2 #runs { "Last runs, newest first" }
        @if history.running.is_none() && history.runs.is_empty() {
            p { "None." }
        } @else {
            table aria-labelledby="runs" {
                thead {
                    tr {
                        th scope="col" { "Window" }
                        th scope="col" { "Started" }
                        th.number scope="col" { "Took" }
                        th scope="col" { "Result" }
                        th scope="col" { "By" }
                        th.number scope="col" { "Token" }
                        th scope="col" { "Text" }
                    }
                }
                tbody { @for run in history.running.iter().chain(&history.runs) { (row(run)) } }
            }
        }
    }
}

fn row(run: &RunRecord) -> Markup {
    let went_well = matches!(run.ended, None | Some(Ended::Done));
    html! {
        tr {
            th scope="row" { @if let Some(window) = run.window { (utc(window)) } @else { "–" } }
            td { (utc(run.started)) }
            td.number { @if let Some(took) = run.took { (span(took)) } @else { "–" } }
            td .bad[!went_well] { (run.ended.map_or("running", Ended::as_str)) }
            td.named { (client(Some(&run.who))) }
            td.number { (run.token) }
            td.named { (escape(run.text.as_bytes())) }
        }
    }
}

/// How far the key has come, without its result: that is the clients'.
fn state(record: Option<&once::Record>) -> Markup {
    html! {
        h2 { "State of the key" }
        @if let Some(record) = record {
            p {
                @match record.word() {
                    "running" => "A client has begun, and has not said how it ended",
                    "open" => "The last attempt failed, and the next client may try",
                    "done" => "Done",
                    _ => "Failed, for good",
                }
                ": attempt " (record.attempt()) ", token " (record.token()) "."
            }
        } @else {
            p { "New: no client has begun, or what came out is no longer kept." }
        }
    }
}
