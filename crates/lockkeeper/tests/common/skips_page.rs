//! `docs/conformance-skips.md`: what the conformance suite leaves out on each store.

use lockkeeper::conformance::CASES;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A store, and its cases that are left out with the reasons.
pub(crate) type Skips = (&'static str, Vec<(&'static str, &'static str)>);

const HEAD: &str = "# What the conformance suite leaves out, store by store

Every store runs every case. A case that needs what a store does not declare is skipped, and only those; this page is
written by `UPDATE=1 cargo test -p lockkeeper --all-features --test conformance` and checked by the same test.
";

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/conformance-skips.md")
}

fn section(name: &str, skips: &[(&str, &str)]) -> String {
    let mut text = format!("\n## {name}\n\n{} of {} cases run.\n", CASES.len() - skips.len(), CASES.len());
    if !skips.is_empty() {
        text.push_str("\n| skipped | because |\n|---|---|\n");
    }
    for (case, reason) in skips {
        text += &format!("| `{case}` | {reason} |\n");
    }
    text
}

/// The page as it is, by store.
pub(crate) fn sections() -> BTreeMap<String, String> {
    let page = std::fs::read_to_string(path()).unwrap_or_default();
    let parts = page.split("\n## ").skip(1);
    parts
        .map(|part| (part.lines().next().unwrap_or_default().to_owned(), format!("\n## {}\n", part.trim_end())))
        .collect()
}

/// Checks that the page says of these stores what is so; with `UPDATE=1` writes it.
pub(crate) fn check(skips: &[Skips]) {
    let page = std::fs::read_to_string(path()).unwrap_or_default();
    let mut wanted = sections();
    // A store that this build, or this test, leaves out keeps what is written of it.
    wanted.extend(skips.iter().map(|(name, skips)| ((*name).to_owned(), section(name, skips))));
    let wanted = wanted.values().fold(HEAD.to_owned(), |page, section| page + section);
    if std::env::var_os("UPDATE").is_some() {
        return std::fs::write(path(), wanted).expect("written");
    }
    assert!(page == wanted, "docs/conformance-skips.md is out of date (UPDATE=1 rewrites it); it should be:\n{wanted}");
}
