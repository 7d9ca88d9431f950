//! `SECURITY.md` names the tests behind its checklist: they exist.

use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The text of every Rust file below a folder.
fn sources(folder: &Path, into: &mut String) {
    for entry in std::fs::read_dir(folder).expect("readable").flatten() {
        let path = entry.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&std::fs::read_to_string(&path).expect("UTF-8"));
        }
    }
}

#[test]
fn every_line_of_the_checklist_names_tests_that_exist() {
    let page = std::fs::read_to_string(Path::new(ROOT).join("SECURITY.md")).expect("it is there");
    let checklist = page.split("\n## Checklist\n").nth(1).expect("a checklist");
    let mut code = String::new();
    sources(&Path::new(ROOT).join("crates"), &mut code);
    let lines: Vec<_> =
        checklist.lines().filter(|line| line.starts_with("| ") && *line != "| what holds | tests |").collect();
    assert!(lines.len() > 20, "{lines:?}");
    for line in lines {
        let tests = line.trim_end_matches('|').rsplit('|').next().expect("a cell");
        let mut named = tests.split('`').skip(1).step_by(2).filter(|word| !word.contains('/')).peekable();
        assert!(named.peek().is_some(), "no test: {line}");
        for test in named {
            // Cases of the conformance suite are functions of the same name.
            assert!(code.contains(&format!("fn {test}(")), "there is no test {test}");
        }
    }
}
