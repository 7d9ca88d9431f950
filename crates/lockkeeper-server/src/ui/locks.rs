//! The list of locks.

use super::access::Visitor;
use super::layout::{Frame, age, client, count, encoded, label, left, lock_link, pause, utc};
use super::live::{Part, View, follow};
use super::trouble::Trouble;
use crate::gateway::Gateway;
use crate::poll::{MOST, Snapshot};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::IntoResponse;
use lockkeeper::name::escape;
use lockkeeper::store::{HolderRecord, Record};
use maud::{Markup, html};
use serde::Deserialize;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

/// How many locks one page shows: what a browser draws again every second without being felt.
const ON_A_PAGE: usize = 500;

/// What is shown, and in which order.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Shown {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    sort: Sort,
    #[serde(default)]
    page: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Sort {
    #[default]
    Name,
    /// Held for the longest time first.
    Held,
    /// What ends next first.
    Ends,
    /// The longest line first.
    Waiting,
}

impl Sort {
    fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Held => "held",
            Self::Ends => "ends",
            Self::Waiting => "waiting",
        }
    }

    fn sort(self, records: &mut [&Record]) {
        // All are in the order of their names before, and equal ones stay so.
        match self {
            Self::Name => {}
            Self::Held => records.sort_by_key(|r| {
                let since = r.holders.iter().filter_map(|holder| holder.since).min();
                (since.is_none(), since)
            }),
            Self::Ends => records.sort_by_key(|r| {
                let left = r.holders.iter().filter_map(|holder| holder.remaining).min();
                (left.is_none(), left)
            }),
            Self::Waiting => records.sort_by_key(|r| Reverse(r.waiting)),
        }
    }
}

impl Shown {
    fn url(&self, path: &str, sort: Sort, page: usize) -> String {
        format!("{path}?prefix={}&sort={}&page={page}", encoded(&self.prefix), sort.word())
    }

    /// What the visitor may see of it, in order.
    fn records<'a>(&self, visitor: &Visitor, snapshot: &'a Snapshot) -> Vec<&'a Record> {
        let wanted = |r: &&Record| r.name.as_bytes().starts_with(self.prefix.as_bytes()) && visitor.sees(&r.name);
        let mut records: Vec<&Record> = snapshot.records.iter().filter(wanted).collect();
        self.sort.sort(&mut records);
        records
    }

    /// Whether the snapshot may lack locks that are wanted.
    fn is_cut(&self, snapshot: &Snapshot) -> bool {
        snapshot.more && !self.prefix.is_empty()
    }
}

impl View for Shown {
    async fn parts(&self, _: &Arc<Gateway>, visitor: &Visitor, snapshot: &Snapshot) -> Vec<Part> {
        let records = self.records(visitor, snapshot);
        vec![
            ("summary", summary(&records, snapshot)),
            ("rows", rows(&records, self.page, snapshot)),
            ("more", self.pages(records.len())),
        ]
    }
}

/// One line that a screen reader says when it changes; so it has no time that runs.
fn summary(records: &[&Record], snapshot: &Snapshot) -> Markup {
    let held = records.iter().filter(|record| !record.holders.is_empty()).count();
    let waiting: usize = records.iter().map(|record| record.waiting as usize).sum();
    html! {
        (trouble(snapshot))
        @if snapshot.at.is_some() {
            (count(held, "lock is", "locks are")) " held, " (count(waiting, "client waits", "clients wait")) "."
        }
        @if snapshot.more {
            " The store has more than " (MOST) " locks; filter by prefix to see all of some."
        }
    }
}

/// What to know when the store does not answer.
pub(super) fn trouble(snapshot: &Snapshot) -> Markup {
    html! {
        @if let Some(failed) = &snapshot.failed {
            strong.bad { "The store does not answer: " (escape(failed.as_bytes())) ". " }
            @if let Some((_, at)) = snapshot.at { "What follows was so at " (utc(at)) ". " }
        }
    }
}

/// A row for each holder; a lock that is only waited for has one too.
fn rows(records: &[&Record], page: usize, snapshot: &Snapshot) -> Markup {
    let shown = records.iter().skip(page.saturating_mul(ON_A_PAGE)).take(ON_A_PAGE);
    html! {
        @for record in shown {
            @if record.holders.is_empty() { (row(record, None, snapshot.age())) }
            @for holder in &record.holders { (row(record, Some(holder), snapshot.age())) }
        }
        @if records.is_empty() && snapshot.at.is_some() {
            tr { td colspan="8" { "No lock is held or waited for." } }
        }
    }
}

fn row(record: &Record, holder: Option<&HolderRecord>, old: Duration) -> Markup {
    let note = holder.and_then(|holder| holder.note.as_ref());
    html! {
        tr {
            th scope="row" { (lock_link(&record.name)) }
            td.wide { @if let Some(holder) = holder { (holder.mode) } }
            td.named { @if holder.is_some() { (client(note)) } @else { "not held" } }
            td.named.wide { (label(note)) }
            td.number.wide { @if let Some(token) = holder.and_then(|holder| holder.token) { (token) } @else { "–" } }
            td.number.wide { (age(holder.and_then(|holder| holder.since))) }
            td.number { (left(holder.and_then(|holder| holder.remaining).map(|left| left.saturating_sub(old)))) }
            td.number { (record.waiting) }
        }
    }
}

impl Shown {
    fn pages(&self, locks: usize) -> Markup {
        let last = locks.saturating_sub(1) / ON_A_PAGE;
        html! {
            @if last > 0 {
                nav aria-label="More locks" {
                    @for page in 0..=last {
                        a href=(self.url("/", self.sort, page)) aria-current=[(page == self.page).then_some("page")] {
                            (page * ON_A_PAGE + 1) "–" (locks.min((page + 1) * ON_A_PAGE))
                        }
                    }
                }
            }
        }
    }

    /// The head of a column that can be sorted by.
    fn head(&self, sort: Sort, title: &str, class: &str) -> Markup {
        let way = if matches!(sort, Sort::Name | Sort::Ends) { "ascending" } else { "descending" };
        html! {
            th scope="col" class=(class) aria-sort=[(self.sort == sort).then_some(way)] {
                a href=(self.url("/", sort, 0)) { (title) }
            }
        }
    }
}

pub(super) async fn page(
    State(gateway): State<Arc<Gateway>>,
    visitor: Visitor,
    query: Result<Query<Shown>, QueryRejection>,
) -> Result<Markup, Trouble> {
    let Query(shown) = query?;
    let mut snapshot = gateway.poll.now().await;
    let is_cut = shown.is_cut(&snapshot);
    if is_cut {
        snapshot = gateway.poll.below(shown.prefix.as_bytes()).await;
    }
    let records = shown.records(&visitor, &snapshot);
    let body = html! {
        h1 { "Locks" }
        form.filter action="/" role="search" {
            label for="prefix" { "Names that begin with" }
            input #prefix name="prefix" value=(shown.prefix) autocomplete="off" spellcheck="false";
            input type="hidden" name="sort" value=(shown.sort.word());
            button { "Filter" }
            (pause())
        }
        p #summary role="status" data-live { (summary(&records, &snapshot)) }
        @if is_cut {
            p { "With so many locks, a filtered list is not followed. Load the page again to see changes." }
        }
        table {
            thead {
                tr {
                    (shown.head(Sort::Name, "Name", ""))
                    th.wide scope="col" { "Mode" }
                    th scope="col" { "Holder" }
                    th.wide scope="col" { "Label" }
                    th.number.wide scope="col" { "Token" }
                    (shown.head(Sort::Held, "Held for", "number wide"))
                    (shown.head(Sort::Ends, "Ends unless renewed", "number"))
                    (shown.head(Sort::Waiting, "Waiting", "number"))
                }
            }
            tbody #rows data-live { (rows(&records, shown.page, &snapshot)) }
        }
        div #more data-live { (shown.pages(records.len())) }
    };
    let stream = (!is_cut).then(|| shown.url("/live/locks", shown.sort, shown.page));
    let frame = Frame { title: "Locks", path: "/", stream, reload: true };
    Ok(frame.around(&gateway, &visitor, &body))
}

pub(super) async fn live(
    State(gateway): State<Arc<Gateway>>,
    visitor: Visitor,
    query: Result<Query<Shown>, QueryRejection>,
) -> Result<impl IntoResponse, Trouble> {
    follow(gateway, visitor, query?.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::{LockName, Mode};
    use std::time::SystemTime;

    #[test]
    fn what_is_not_known_comes_last() {
        let record = |name: &str, held: Option<u64>, waiting| {
            let mut record = Record::new(LockName::new(name).expect("a name"));
            if let Some(held) = held {
                let mut holder = HolderRecord::new(Mode::Exclusive);
                holder.since = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - held));
                holder.remaining = Some(Duration::from_secs(held));
                record = record.held_by(holder);
            }
            record.waiting = waiting;
            record
        };
        let records = [record("a", None, 1), record("b", Some(10), 0), record("c", Some(90), 7)];
        for (sort, names) in [(Sort::Name, "abc"), (Sort::Held, "cba"), (Sort::Ends, "bca"), (Sort::Waiting, "cab")] {
            let mut sorted: Vec<&Record> = records.iter().collect();
            sort.sort(&mut sorted);
            assert_eq!(sorted.iter().map(|record| record.name.to_string()).collect::<String>(), names, "{sort:?}");
        }
    }
}
