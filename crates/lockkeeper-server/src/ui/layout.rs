//! What all pages share: the frame, links to locks, times.

use super::access::Visitor;
use super::assets::icon;
use crate::gateway::Gateway;
use chrono::{DateTime, Utc};
use lockkeeper::name::escape;
use lockkeeper::wire::{hex, millis};
use lockkeeper::{LockName, Note};
use maud::{DOCTYPE, Markup, html};
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

/// The pages of the navigation.
const PAGES: [(&str, &str); 3] = [("/", "Locks"), ("/health", "Health"), ("/events", "Events")];

/// One page.
pub(super) struct Frame<'a> {
    pub(super) title: &'a str,
    /// Which of the navigation it is.
    pub(super) path: &'a str,
    /// What keeps it fresh.
    pub(super) stream: Option<String>,
    /// Whether it is loaded again every few seconds where there is no JavaScript.
    pub(super) reload: bool,
}

impl Frame<'_> {
    pub(super) fn around(&self, gateway: &Gateway, visitor: &Visitor, body: &Markup) -> Markup {
        let store = &gateway.info;
        let content = html! {
            header {
                a.skip href="#main" { "Skip to the content" }
                p.brand { strong { "Lockkeeper" } " " span.store { (store.scheme) " " (escape(store.servers.as_bytes())) } }
                nav aria-label="Pages" {
                    @for (path, title) in PAGES {
                        a href=(path) aria-current=[(path == self.path).then_some("page")] { (title) }
                    }
                }
                @if visitor.session.is_some() {
                    form method="post" action="/logout" {
                        input type="hidden" name="csrf" value=(visitor.csrf);
                        button.quiet { "Log out " (visitor.asking.caller.id) }
                    }
                }
            }
            main #main data-stream=[self.stream.as_deref()] { (body) }
        };
        document(self.title, self.reload, &content)
    }
}

/// A page for visitors who are not let in.
pub(super) fn bare(title: &str, body: &Markup) -> Markup {
    let content = html! {
        header { p.brand { strong { "Lockkeeper" } } }
        main { (body) }
    };
    document(title, false, &content)
}

fn document(title: &str, reload: bool, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Lockkeeper" }
                link rel="icon" href=(icon());
                link rel="stylesheet" href="/assets/style.css";
                script src="/assets/live.js" defer {}
                @if reload {
                    noscript { meta http-equiv="refresh" content="5"; }
                }
            }
            body { (content) }
        }
    }
}

/// Buttons that only JavaScript can give a meaning; it shows them.
pub(super) fn pause() -> Markup {
    html! { button #pause .quiet type="button" hidden aria-pressed="false" { "Pause" } }
}

/// A link to the page of a lock.
pub(super) fn lock_link(name: &LockName) -> Markup {
    html! { a href=(lock_url("/lock", name)) { (name) } }
}

/// A path with a lock's name.
pub(super) fn lock_url(path: &str, name: &LockName) -> String {
    let (field, value) = name_field(name);
    format!("{path}?{field}={}", encoded(&value))
}

/// The name as the field of a form or a query. Browsers rewrite line ends and drop what is not text, and what cannot be seen
/// misleads who reads an address: then in digits.
pub(super) fn name_field(name: &LockName) -> (&'static str, String) {
    match std::str::from_utf8(name.as_bytes()) {
        Ok(text) if escape(text.as_bytes()) == text.replace('\\', "\\\\") => ("name", text.to_owned()),
        _ => ("name_hex", hex(name.as_bytes())),
    }
}

/// As a value of a query.
pub(super) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(byte.into());
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// A client: machine and process.
pub(super) fn client(note: Option<&Note>) -> String {
    note.map_or_else(
        || "another client".to_owned(),
        |note| format!("{} (pid {})", escape(note.host.as_bytes()), note.pid),
    )
}

/// Its label.
pub(super) fn label(note: Option<&Note>) -> String {
    note.map(|note| escape(note.label.as_bytes())).unwrap_or_default()
}

/// How long something has lasted; the script goes on counting.
pub(super) fn age(since: Option<SystemTime>) -> Markup {
    let age = since.map(|since| since.elapsed().unwrap_or_default());
    html! { @if let Some(age) = age { span data-age=(millis(age)) { (span(age)) } } @else { "–" } }
}

/// How long something still lasts; the script goes on counting.
pub(super) fn left(left: Option<Duration>) -> Markup {
    html! { @if let Some(left) = left { span data-left=(millis(left)) { (span(left)) } } @else { "–" } }
}

/// A time in two units, whole seconds at least: what a person can follow. The script writes the same.
pub(super) fn span(time: Duration) -> String {
    let s = time.as_secs();
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m {:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h {:02}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d {:02}h", s / 86_400, s % 86_400 / 3600),
    }
}

/// A moment in UTC.
pub(super) fn utc(at: SystemTime) -> Markup {
    let at = DateTime::<Utc>::from(at);
    html! { time datetime=(at.format("%Y-%m-%dT%H:%M:%SZ")) { (at.format("%Y-%m-%d %H:%M:%SZ")) } }
}

/// `1 lock`, `2 locks`.
pub(super) fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives_a_form_and_a_query() {
        for (name, url) in [
            (&b"orders/42"[..], "/lock?name=orders/42"),
            (b"a b&c=d%+#?", "/lock?name=a%20b%26c%3Dd%25%2B%23%3F"),
            ("k\u{e4}se".as_bytes(), "/lock?name=k%C3%A4se"),
            (b"a\r\nb", "/lock?name_hex=610d0a62"),
            (b"\xff", "/lock?name_hex=ff"),
            (b"../x", "/lock?name=../x"),
            (b"a\\b", "/lock?name=a%5Cb"),
            ("\u{202e}x".as_bytes(), "/lock?name_hex=e280ae78"),
        ] {
            assert_eq!(lock_url("/lock", &LockName::new(name).expect("a name")), url);
        }
    }

    #[test]
    fn times_have_two_units() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (65, "1m 05s"), (3661, "1h 01m"), (90_000, "1d 01h")] {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
    }
}
