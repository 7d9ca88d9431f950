//! The documentation keeps its own promises: links lead somewhere, metrics are the real ones, sizes are kept.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Files with this ending in a folder and below it.
fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|e| e == ending) {
            found.push(path);
        }
    }
}

fn pages() -> Vec<PathBuf> {
    let mut pages = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(|p| root().join(p)).to_vec();
    files(&root().join("docs"), "md", &mut pages);
    pages
}

/// The text without fenced code.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// What a heading is called in a link: lower case, words joined by hyphens.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text);
    let headings = headings.lines().filter_map(|line| line.strip_prefix('#')).map(|line| line.trim_start_matches('#'));
    let word = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    headings.map(|h| h.trim().to_lowercase().chars().filter(word).collect::<String>().replace(' ', "-")).collect()
}

#[test]
fn the_readme_is_short() {
    let lines = read("README.md").lines().count();
    assert!(lines <= 150, "{lines} lines");
}

#[test]
fn relative_links_lead_to_files_and_headings() {
    let mut links = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        for target in prose(&text).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            links += 1;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let to = if file.is_empty() { page.clone() } else { page.parent().expect("a folder").join(file) };
            assert!(to.exists(), "{}: the link '{target}' leads nowhere", page.display());
            let inside = to.canonicalize().expect("a path").starts_with(root().canonicalize().expect("the root"));
            assert!(inside, "{}: the link '{target}' leaves the repository", page.display());
            if !heading.is_empty() {
                let known = anchors(&fs::read_to_string(&to).expect("a page"));
                assert!(known.contains(heading), "{}: '{target}' is none of {known:?}", page.display());
            }
        }
    }
    assert!(links > 20, "only {links} links found: the search is broken");
}

fn metric_names(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    let names = text.match_indices("lockkeeper_").map(|(at, _)| &text[at..]);
    let names = names.map(|rest| rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())].to_owned());
    // What all of them begin with is no name.
    names.filter(|name| name != "lockkeeper_").collect()
}

#[test]
fn metrics_in_the_code_and_on_the_page_are_the_same() {
    let code = metric_names(&read("crates/lockkeeper/src/metrics.rs"));
    let page = metric_names(&read("docs/operations.md"));
    assert!(code.len() > 5, "{code:?}");
    assert_eq!(code, page);
    let mut sources = Vec::new();
    files(&root().join("crates/lockkeeper/src"), "rs", &mut sources);
    for text in sources.iter().map(read) {
        for (_, rest) in text.match_indices("fence_rejected(\"").map(|(at, m)| text.split_at(at + m.len())) {
            let fence = rest.split('"').next().unwrap_or_default();
            assert!(read("docs/operations.md").contains(&format!("`{fence}`")), "the page does not know {fence}");
        }
    }
}

#[test]
fn examples_are_short_and_say_how_to_run_them() {
    let mut examples = Vec::new();
    files(&root().join("crates/lockkeeper/examples"), "rs", &mut examples);
    assert!(examples.len() >= 5);
    for path in examples {
        let text = fs::read_to_string(&path).expect("an example");
        assert!(text.lines().count() <= 60, "{} is too long", path.display());
        let name = path.file_stem().and_then(|s| s.to_str()).expect("a name");
        let first = text.lines().next().unwrap_or_default();
        assert!(first.starts_with("//! cargo ") && first.ends_with(name), "{}: {first}", path.display());
    }
}

/// The rows of the table whose heading begins with `| store |`.
fn store_table(text: &str) -> String {
    let lines = text.lines().map(|line| line.trim_start_matches("//!").trim());
    lines.skip_while(|line| !line.starts_with("| store |")).take_while(|line| line.starts_with('|')).collect()
}

#[test]
fn every_store_feature_and_url_scheme_is_in_both_tables() {
    let manifest = read("crates/lockkeeper/Cargo.toml");
    let features = manifest.split("[features]").nth(1).and_then(|rest| rest.split("\n[").next()).expect("features");
    let features = features.lines().filter_map(|line| line.split_once(" = [")).map(|(name, _)| name);
    let is_store = |name: &&str| {
        let path = root().join("crates/lockkeeper/src/stores").join(name);
        path.is_dir() || path.with_extension("rs").exists()
    };
    let features: Vec<_> = features.filter(is_store).collect();
    assert!(features.contains(&"mysql") && features.contains(&"zookeeper"), "{features:?}");
    // What an unknown scheme is answered with.
    let code = read("crates/lockkeeper/src/url.rs");
    let list =
        code.split("const KINDS: ").nth(1).and_then(|rest| rest.split("\n};").next()).expect("the table of stores");
    let schemes: Vec<_> = list.split('"').skip(1).step_by(2).flat_map(|form| form.split(", ")).collect();
    let schemes: Vec<_> = schemes.iter().filter_map(|form| form.trim().split_once(':')).map(|(s, _)| s).collect();
    assert!(schemes.contains(&"mysql") && schemes.contains(&"redis+cluster"), "{schemes:?}");
    for page in ["README.md", "crates/lockkeeper/src/lib.rs"] {
        let table = store_table(&read(page));
        for feature in features.iter().filter(|_| page.ends_with(".rs")) {
            let shown = if *feature == "memory" { "always on" } else { &format!("`{feature}`") };
            assert!(table.contains(&format!("| {shown} |")), "{page} has no feature {feature}: {table}");
        }
        for scheme in &schemes {
            assert!(table.contains(&format!("`{scheme}:")), "{page} has no {scheme}: {table}");
        }
    }
    let readme = read("README.md");
    for feature in features.into_iter().filter(|feature| *feature != "memory") {
        assert!(readme.contains(&format!("`{feature}`")), "the README does not name the feature {feature}");
    }
}

/// Without these, docs.rs shows the memory store alone, and crates.io no link.
#[test]
fn docs_rs_builds_every_feature_and_links_lead_to_the_repository() {
    let manifest = read("crates/lockkeeper/Cargo.toml");
    let section = manifest.split("[package.metadata.docs.rs]").nth(1).expect("settings for docs.rs");
    assert!(section.split("\n[").next().is_some_and(|s| s.contains("all-features = true")), "{section}");
    let workspace = read("Cargo.toml");
    let repository = workspace.lines().find_map(|line| line.strip_prefix("repository = ")).expect("a repository");
    let repository = repository.trim_matches('"');
    for crate_ in ["lockkeeper", "lockkeeper-cli", "lockkeeper-server"] {
        assert!(read(format!("crates/{crate_}/Cargo.toml")).contains("repository.workspace = true"), "{crate_}");
    }
    let mut links = 0;
    let text = read("crates/lockkeeper/src/lib.rs");
    for target in text.split(repository).skip(1).filter_map(|rest| rest.strip_prefix("/blob/main/")) {
        links += 1;
        let file = target.split(['#', '\n']).next().unwrap_or_default();
        assert!(root().join(file).exists(), "the link to '{file}' leads nowhere");
    }
    assert!(links >= 10, "only {links} links found");
    for command in ["cargo install", "cargo add"] {
        assert!(read("README.md").contains(command), "the README does not say how to {command}");
    }
}

#[test]
fn the_store_pages_are_linked_from_the_readme() {
    let readme = read("README.md");
    let mut pages = Vec::new();
    files(&root().join("docs/stores"), "md", &mut pages);
    for page in pages {
        let name = page.file_name().and_then(|n| n.to_str()).expect("a name");
        assert!(readme.contains(&format!("docs/stores/{name}")), "{name} is not linked");
    }
}

#[test]
fn the_map_names_files_that_are_there() {
    let map = read("docs/architecture.md");
    assert!(map.lines().count() <= 120, "a map is short");
    let is_path = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let named = map.split('`').skip(1).step_by(2).filter(|text| text.contains(['/', '.']) && text.chars().all(is_path));
    let mut paths = 0;
    for path in named.filter(|path| path.ends_with('/') || path.ends_with(".rs") || path.starts_with("crates/")) {
        paths += 1;
        let bases = [
            "",
            "crates/lockkeeper",
            "crates/lockkeeper/src",
            "crates/lockkeeper/src/engine",
            "crates/lockkeeper/src/machine",
            "crates/lockkeeper/src/stores",
            "crates/lockkeeper/src/recipes",
            "crates/lockkeeper-cli/src",
            "crates/lockkeeper-cli/src/supervise",
            "crates/lockkeeper-server/src",
        ];
        assert!(bases.iter().any(|base| root().join(base).join(path).exists()), "'{path}' is not there");
    }
    assert!(paths > 40, "only {paths} paths found: the search is broken");
}

/// The functions of all crates, tests among them.
fn functions() -> BTreeSet<String> {
    let mut sources = Vec::new();
    files(&root().join("crates"), "rs", &mut sources);
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name = |rest: &str| rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())].to_owned();
    let all = sources.iter().map(read).collect::<Vec<_>>();
    all.iter().flat_map(|text| text.split("fn ").skip(1).map(name).collect::<Vec<_>>()).collect()
}

/// `row_07_…` has the number 7.
fn row_of(test: &str) -> Option<usize> {
    test.strip_prefix("row_")?.split('_').next()?.parse().ok()
}

#[test]
fn the_failure_catalogue_names_real_tests_and_all_that_cite_it() {
    let page = read("docs/failures.md");
    let known = functions();
    let rows: Vec<Vec<&str>> = page.lines().map(|line| line.split(" | ").collect()).collect();
    let rows = rows
        .iter()
        .filter(|cells| cells.len() == 4)
        .filter_map(|cells| Some((cells[0].trim_start_matches('|').trim().parse::<usize>().ok()?, cells[3])));
    let rows: Vec<(usize, &str)> = rows.collect();
    let numbers: Vec<usize> = rows.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=42).collect::<Vec<_>>(), "a number never changes: tests cite it");
    let mut cited = BTreeSet::new();
    for (number, shown) in rows {
        let tests: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty() || shown.starts_with("none: "), "row {number} names no test and does not say why");
        for test in tests {
            assert!(known.contains(test), "row {number}: there is no test '{test}'");
            assert!(row_of(test).is_none_or(|row| row == number), "row {number}: '{test}' is of another row");
            cited.insert(test.to_owned());
        }
    }
    for test in known.iter().filter(|name| row_of(name).is_some()) {
        assert!(cited.contains(test), "docs/failures.md does not name '{test}'");
    }
}
