//! `--metrics-file` with the real program: what the textfile collector of Prometheus finds.

mod common;

use common::{Place, one_sentence};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// The series of a file.
fn series(place: &Place, file: &str) -> BTreeMap<String, f64> {
    let text = place.dir.read(file).unwrap_or_default();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let split =
        |line: &str| line.rsplit_once(' ').map(|(series, value)| (series.to_owned(), value.parse().expect("f64")));
    samples.map(|line| split(line).expect("a sample")).collect()
}

fn gauge(place: &Place, name: &str, what: &str) -> Option<f64> {
    series(place, "job.prom").get(&format!("lockkeeper_run_{what}{{name=\"{name}\"}}")).copied()
}

/// How often it ran, was busy, was lost, failed.
fn totals(place: &Place, name: &str) -> [f64; 4] {
    ["ran", "busy", "lost", "failed"]
        .map(|word| series(place, "job.prom")[&format!("lockkeeper_run_total{{name=\"{name}\",outcome=\"{word}\"}}")])
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64()
}

const FILE: [&str; 2] = ["--metrics-file", "job.prom"];

fn words<'a>(command: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&[command][..], &FILE, rest].concat()
}

#[test]
fn totals_go_on_from_run_to_run() {
    let place = Place::new();
    let before = now();
    assert_eq!(place.ends(&words("run", &["x", "--", "true"])).code, Some(0));
    assert_eq!(totals(&place, "x"), [1.0, 0.0, 0.0, 0.0]);
    let succeeded = gauge(&place, "x", "succeeded_timestamp_seconds").expect("it has");
    assert!(succeeded >= before - 0.01 && succeeded <= now() + 0.01, "{succeeded}");
    assert_eq!(gauge(&place, "x", "exit_code"), Some(0.0));
    assert!(gauge(&place, "x", "wait_seconds").is_some() && gauge(&place, "x", "hold_seconds").is_some());
    assert_eq!(place.ends(&words("run", &["x", "--", "sh", "-c", "exit 7"])).code, Some(7));
    assert_eq!(place.ends(&words("run", &["x", "--", "./absent"])).code, Some(127));
    // A store that cannot be: no command was started.
    assert_eq!(place.ends(&words("run", &["--store", "sqlite:/absent/x.db", "x", "--", "true"])).code, Some(78));
    assert_eq!(totals(&place, "x"), [1.0, 0.0, 0.0, 3.0]);
    assert_eq!(gauge(&place, "x", "succeeded_timestamp_seconds"), Some(succeeded), "when it last went well");
    assert_eq!(gauge(&place, "x", "exit_code"), Some(78.0));
    assert!(gauge(&place, "x", "ended_timestamp_seconds") >= Some(succeeded));
    let left: Vec<_> =
        std::fs::read_dir(place.dir.path()).expect("ours").map(|e| e.expect("ours").file_name()).collect();
    let ours = left.iter().filter(|file| file.to_string_lossy().starts_with("job.prom"));
    assert_eq!(ours.count(), 2, "the file and its lock: {left:?}");
}

#[test]
fn a_run_is_seen_while_it_lasts_and_when_it_was_busy_or_lost() {
    let place = Place::new();
    let script = "echo $LOCKKEEPER_TOKEN > token; while :; do sleep 0.01; done";
    // A broken holder learns of it at its next renewal, after a third of the TTL.
    let holder = place.start(&words("run", &["--ttl", "9s", "x", "--", "sh", "-c", script]));
    let token = place.text("token");
    assert!(gauge(&place, "x", "started_timestamp_seconds").is_some());
    assert_eq!((gauge(&place, "x", "ended_timestamp_seconds"), totals(&place, "x")), (None, [0.0; 4]));
    one_sentence(&place.ends(&words("run", &["-n", "x", "--", "true"])), 75, "held by");
    assert_eq!(place.ends(&words("run", &["-n", "--busy-code", "0", "x", "--", "true"])).code, Some(0));
    assert_eq!(totals(&place, "x"), [0.0, 2.0, 0.0, 0.0]);
    assert_eq!(gauge(&place, "x", "hold_seconds"), None);
    assert_eq!(place.ends(&["break", "x", "--token", &token]).code, Some(0));
    assert_eq!(holder.wait().code, Some(76));
    assert_eq!(totals(&place, "x"), [0.0, 2.0, 1.0, 0.0]);
}

#[test]
fn cron_and_elect_write_it_too() {
    let place = Place::new();
    let every = ["--every", "24h", "report", "--", "true"];
    assert_eq!(place.ends(&words("cron", &every)).code, Some(0));
    assert_eq!(place.ends(&words("cron", &every)).code, Some(0));
    assert_eq!(totals(&place, "job/report"), [1.0, 1.0, 0.0, 0.0], "the second one is skipped");
    assert_eq!(gauge(&place, "job/report", "wait_seconds"), None);
    std::fs::remove_file(place.dir.join("job.prom")).expect("ours");
    let again = ["--restart", "on-failure", "e", "--", "sh", "-c", "[ -e once ] || { touch once; exit 3; }"];
    assert_eq!(place.ends(&words("elect", &again)).code, Some(0));
    assert_eq!(totals(&place, "election/e"), [1.0, 0.0, 0.0, 1.0]);
}

#[test]
fn a_damaged_file_is_replaced_with_one_line() {
    let place = Place::new();
    place.dir.write("job.prom", "lockkeeper_run_total{name=\"x\",outcome=\"ran\"} many\n");
    let ended = place.ends(&words("run", &["x", "--", "true"]));
    one_sentence(&ended, 0, "it is replaced, and totals begin anew");
    assert_eq!(totals(&place, "x"), [1.0, 0.0, 0.0, 0.0]);
    // The numbers of another lock are as foreign.
    one_sentence(&place.ends(&words("run", &["y", "--", "true"])), 0, "it is replaced");
    one_sentence(&place.ends(&["run", "--metrics-file", "job.txt", "x", "--", "touch", "ran"]), 64, "end with .prom");
    assert!(!place.dir.join("ran").exists());
    // The command is worth more than its numbers.
    let lost = place.ends(&["run", "--metrics-file", "absent/job.prom", "x", "--", "touch", "ran"]);
    assert_eq!((lost.code, lost.stderr.lines().count()), (Some(0), 2), "{lost:?}");
    assert!(lost.stderr.contains("absent/job.prom was not written"), "{lost:?}");
    assert!(place.dir.join("ran").exists());
}

#[test]
fn runs_at_the_same_time_lose_no_count() {
    let place = Place::new();
    let permits = words("run", &["--permits", "8", "x", "--", "true"]);
    let runs: Vec<_> = (0..8).map(|_| place.start(&permits)).collect();
    runs.into_iter().for_each(|run| assert_eq!(run.wait().code, Some(0)));
    assert_eq!(totals(&place, "x"), [8.0, 0.0, 0.0, 0.0]);
}
