//! A short run of every mode whose servers the test command installs, and what the program says to wrong input.

use std::process::Command;

fn torture(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_torture")).args(args).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The seed of the second half is drawn anew at each run, and printed.
#[test]
fn every_mode_keeps_its_promises_under_faults() {
    let (code, said, complained) = torture(&["smoke"]);
    assert_eq!(code, Some(0), "{said}\n{complained}");
    // Each mode was judged, and had something to be judged by: a run with few grants or faults is followed by another.
    // The acts of workers are counted apart, and are none of these faults.
    let number = |line: &str, before: &str| line.split(before).next()?.rsplit(' ').next()?.parse::<u64>().ok();
    let judged = said.lines().filter(|line| line.contains(" operations: "));
    let enough = judged.filter(|line| number(line, " granted") >= Some(50) && number(line, " faults, ") >= Some(3));
    assert_eq!(enough.count(), 12, "{said}");
    let mut out = std::io::stdout().lock();
    std::io::Write::write_all(&mut out, said.as_bytes()).expect("stdout is open");
}

#[test]
fn a_history_that_is_not_there_is_named() {
    let (code, _, complained) = torture(&["check", "no/such/history"]);
    assert_eq!(code, Some(1));
    assert!(complained.contains("no/such/history"), "{complained}");
}

#[test]
fn what_cannot_be_run_is_told_in_a_sentence() {
    let place = testkit::TempDir::new();
    place.write("old", "a line");
    let place = place.path().display().to_string();
    for (args, says) in [
        (&["run", "sqlite", "--history", &place][..], "is not empty; a history needs a directory of its own"),
        (&["run", "sqlite", "--subject", "redis-py"], "RedisPy does not know the servers of sqlite"),
        (&["run", "sqlite", "--workers", "0"], "a whole number from 1 on is needed"),
    ] {
        let (code, _, complained) = torture(args);
        assert!(code.is_some_and(|code| code != 0) && complained.contains(says), "{args:?}: {complained}");
    }
}

#[test]
fn a_mutant_of_another_name_is_refused() {
    let (code, _, complained) = torture(&["mutants", "none-such"]);
    assert_eq!(code, Some(1));
    assert!(complained.contains("no mutant is called 'none-such'; there are plain-incr"), "{complained}");
}
