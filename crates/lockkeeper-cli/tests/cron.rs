//! `cron` and `history` with the real program: once for each scheduled time on any number of machines, with clocks that
//! differ, after crashes, and by itself with `--daemon`.

mod common;

use common::{Place, SkewedClock, one_sentence};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use testkit::{Ended, Proc, RedisServer, SOON, Signal, eventually, is_alive};

/// Two minutes, the window of most of these tests.
const WINDOW: i64 = 120;

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    since.as_secs().try_into().expect("a clock before 2262")
}

/// A scheduled time in the future, so that windows of a test are its own: whole hours are multiples of all windows here.
fn scheduled() -> i64 {
    now() - now() % 3600 + 24 * 3600
}

/// A program that sees another time.
struct Machine<'a> {
    place: &'a Place,
    clock: &'a SkewedClock,
}

impl Machine<'_> {
    /// Starts `cron` when the machine's clock shows `time`.
    fn start(&self, time: i64, words: &[&str]) -> Proc {
        let mut command = self.place.lockkeeper(&[&["cron"], words].concat());
        Proc::start(self.clock.set(&mut command, time - now()))
    }

    fn ends(&self, time: i64, words: &[&str]) -> Ended {
        self.start(time, words).wait()
    }
}

/// Windows that a command has written, one a line: each once.
#[track_caller]
fn windows(place: &Place) -> Vec<i64> {
    let text = place.dir.read("runs").unwrap_or_default();
    let windows: Vec<i64> = text.lines().map(|line| line.parse().expect("seconds")).collect();
    let once: BTreeSet<i64> = windows.iter().copied().collect();
    assert_eq!(once.len(), windows.len(), "a window was run twice: {windows:?}");
    windows
}

/// 20 machines start the job in each of so many windows, their clocks off by up to `skew`.
fn many_machines(place: &Place, store: &str, rounds: i64, skew: i64) {
    let clock = SkewedClock::new();
    let machine = Machine { place, clock: &clock };
    let first = scheduled();
    let script = "echo $LOCKKEEPER_WINDOW >> runs";
    let words = ["--store", store, "--every", "2m", "report", "--", "sh", "-c", script];
    for round in 0..rounds {
        let time = first + round * WINDOW;
        let off = |n: i64| -skew + n * 2 * skew / 19;
        let started: Vec<Proc> = (0..20).map(|n| machine.start(time + off(n), &words)).collect();
        for ended in started.into_iter().map(|one| one.wait_for(2 * SOON)) {
            assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
        }
        assert_eq!(windows(place).last(), Some(&time), "round {round}: {:?}", windows(place));
    }
    assert_eq!(windows(place).len(), usize::try_from(rounds).expect("a small number"));
}

#[test]
fn twenty_processes_in_one_second_run_each_window_once() {
    let place = Place::new();
    many_machines(&place, &place.store(), 6, 0);
}

#[test]
#[ignore = "takes minutes; scripts/test-extended runs it"]
fn twenty_processes_run_each_of_a_hundred_windows_once() {
    let place = Place::new();
    many_machines(&place, &place.store(), 100, 0);
}

#[test]
fn clocks_that_differ_by_a_minute_run_a_window_of_two_minutes_once() {
    let server = RedisServer::new();
    many_machines(&Place::new(), &format!("redis://127.0.0.1:{}", server.port()), 4, 30);
}

#[test]
#[ignore = "takes minutes; scripts/test-extended runs it"]
fn clocks_that_differ_run_each_of_a_hundred_windows_once() {
    let server = RedisServer::new();
    many_machines(&Place::new(), &format!("redis://127.0.0.1:{}", server.port()), 100, 30);
}

#[test]
fn a_start_that_comes_too_late_is_quiet_or_says_why() {
    let (place, clock) = (Place::new(), SkewedClock::new());
    let machine = Machine { place: &place, clock: &clock };
    let time = scheduled();
    let script = "echo $$ > pid; while [ ! -e go ]; do sleep 0.01; done; exit 3";
    let first = machine.start(time, &["--every", "2m", "job", "--", "sh", "-c", script]);
    place.text("pid");
    let late = |options: &[&str]| {
        machine.ends(time + 5, &[&["--every", "2m"], options, &["job", "--", "touch", "ran"]].concat())
    };
    let quiet = late(&[]);
    assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (Some(0), "", ""));
    one_sentence(&late(&["--skip-code", "9"]), 9, "'job/job' is skipped: it is being run by ");
    let table = place.ends(&["history", "job"]).stdout;
    assert!(table.contains(" running "), "{table}");
    place.dir.write("go", "");
    assert_eq!(first.wait().code, Some(3));
    one_sentence(&late(&["--skip-code", "9"]), 9, "'job/job' is skipped: it was run already");
    assert_eq!(late(&[]).code, Some(0));
    assert!(!place.dir.join("ran").exists());
}

#[test]
fn history_has_the_last_runs_with_their_ends() {
    let (place, clock) = (Place::new(), SkewedClock::new());
    let machine = Machine { place: &place, clock: &clock };
    one_sentence(&place.ends(&["history", "job"]), 0, "no run of 'job' is known");
    let time = scheduled();
    for (n, script) in ["exit 0", "exit 3", "kill -9 $$"].iter().enumerate() {
        let at = time + i64::try_from(n).unwrap() * WINDOW;
        machine.ends(at, &["--every", "2m", "--label", "a\nb", "job", "--", "sh", "-c", script]);
    }
    let ended = place.ends(&["history", "job", "--json"]);
    let object: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended:?}"));
    let runs = object["runs"].as_array().unwrap();
    let ends: Vec<_> =
        runs.iter().map(|run| (run["result"].as_str().unwrap(), run["text"].as_str().unwrap())).collect();
    assert_eq!(ends, [("failed", "signal 9"), ("failed", "exit code 3"), ("done", "")]);
    assert_eq!((&object["v"], &object["name"]), (&1.into(), &"job".into()));
    assert_eq!(runs[2]["window_ms"], time * 1000);
    assert!(runs[0]["token"].as_u64() > runs[1]["token"].as_u64());
    let table = place.ends(&["history", "job"]).stdout;
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.starts_with("WINDOW") && table.contains(":00:00Z") && table.contains("\"a b\""), "{table}");
}

#[test]
fn a_run_that_was_cut_off_is_interrupted_and_may_be_caught_up_with() {
    let (place, clock) = (Place::new(), SkewedClock::new());
    let machine = Machine { place: &place, clock: &clock };
    let time = scheduled();
    let hangs = "echo $$ > pid; exec sleep 1000";
    let first = machine.start(time, &["--ttl", "2s", "--every", "2m", "job", "--", "sh", "-c", hangs]);
    let command: i32 = place.number("pid").try_into().unwrap();
    first.signal(Signal::KILL);
    drop(first);
    eventually(SOON, "the command dies with its lockkeeper", || !is_alive(command));
    let script = "echo $LOCKKEEPER_WINDOW >> runs";
    let words = ["--ttl", "2s", "--every", "2m", "--catch-up", "latest", "job", "--", "sh", "-c", script];
    // The dead runner keeps the lock for its TTL.
    eventually(SOON, "the next window is run", || {
        machine.ends(time + WINDOW, &words);
        place.lines("runs") == 2
    });
    assert_eq!(windows(&place), [time, time + WINDOW]);
    let table = place.ends(&["history", "job"]).stdout;
    assert!(table.contains(" interrupted "), "{table}");
}

#[test]
fn a_cron_expression_has_a_time_zone() {
    let (place, clock) = (Place::new(), SkewedClock::new());
    let machine = Machine { place: &place, clock: &clock };
    // Midnight UTC on a day in July 2031, when Berlin is two hours ahead.
    let midnight = 1_941_321_600;
    let ended = machine.ends(midnight + 4, &["--at", "0 0 * * *", "a", "--", "printenv", "LOCKKEEPER_WINDOW"]);
    assert_eq!(ended.stdout, format!("{midnight}\n"), "{ended:?}");
    let words = ["--at", "0 2 * * *", "--time-zone", "Europe/Berlin", "b", "--", "printenv", "LOCKKEEPER_WINDOW"];
    let ended = machine.ends(midnight - 7, &words);
    assert_eq!(ended.stdout, format!("{midnight}\n"), "{ended:?}");
}

#[test]
fn a_command_that_takes_too_long_is_stopped() {
    let place = Place::new();
    let script = "echo $$ > pid; sleep 1000";
    let args = ["cron", "--every", "2m", "--ttl", "2s", "--at-most", "2s", "job", "--", "sh", "-c", script];
    one_sentence(&place.ends(&args), 76, "the lock 'job/job' has been held for almost --at-most 2.0s");
    assert!(!is_alive(place.number("pid").try_into().unwrap()));
    let table = place.ends(&["history", "job"]).stdout;
    assert!(table.lines().nth(1).is_some_and(|line| line.contains(" lost ") || line.contains(" failed ")), "{table}");
}

#[test]
fn daemons_keep_one_schedule_together() {
    let place = Place::new();
    let script = "echo $LOCKKEEPER_WINDOW >> runs; [ $(wc -l < runs) != 2 ] || exit 3";
    let args = ["cron", "--daemon", "--every", "1s", "--ttl", "1s", "tick", "--", "sh", "-c", script];
    let daemons: Vec<Proc> = (0..2).map(|_| place.start(&args)).collect();
    eventually(2 * SOON, "five windows", || place.lines("runs") >= 5);
    let windows = windows(&place);
    assert!(windows.is_sorted(), "{windows:?}");
    let mut said = String::new();
    for daemon in daemons {
        daemon.signal(Signal::TERM);
        let ended = daemon.wait();
        // The signal's own code; or the command's, when the signal came while it ran and it ended by itself.
        assert!(matches!(ended.code, Some(143 | 0)), "{ended:?}");
        said += &ended.stderr;
    }
    assert!(said.contains("has failed: exit code 3"), "{said}");
}

#[test]
fn a_signal_ends_the_command_and_the_daemon() {
    let place = Place::new();
    let script = "echo $$ > pid; exec sleep 1000";
    for daemon in [&["--every", "24h"] as &[&str], &["--every", "1s", "--ttl", "1s", "--daemon"]] {
        // Names of their own: in the afternoon the nearest window of a day is tomorrow's, and later ones of this name follow it.
        let name = format!("job-{}", daemon.len());
        let running = place.start(&[&["cron"], daemon, &[&name, "--", "sh", "-c", script]].concat());
        let command: i32 = place.number("pid").try_into().unwrap();
        running.signal(Signal::INT);
        let ended = running.wait_for(Duration::from_secs(60));
        assert_eq!(ended.code, Some(130), "{ended:?}");
        assert!(!is_alive(command));
        std::fs::remove_file(place.dir.join("pid")).unwrap();
    }
}

#[test]
fn a_wrong_schedule_is_named() {
    let place = Place::new();
    let wrong = |options: &[&str]| place.ends(&[&["cron"], options, &["job", "--", "touch", "ran"]].concat());
    let both = wrong(&["--every", "5m", "--at", "0 3 * * *"]);
    one_sentence(&both, 64, "cannot be used together with");
    one_sentence(&wrong(&[]), 64, "the schedule is missing; give --every DURATION or --at EXPRESSION");
    one_sentence(&wrong(&["--at", "0 25 * * *"]), 78, "'0 25 * * *' is not a cron expression");
    one_sentence(&wrong(&["--at", "0 3 * *"]), 78, "it has 4 fields, not 5");
    one_sentence(&wrong(&["--at", "0 3 * * *", "--time-zone", "Mars/Base"]), 78, "'Mars/Base' is not a time zone");
    one_sentence(&wrong(&["--every", "5m", "--time-zone", "UTC"]), 64, "cannot be used together with");
    one_sentence(&wrong(&["--every", "10s"]), 78, "the window of 10s is shorter than the ttl 30s");
    one_sentence(&wrong(&["--every", "5m", "--at-least", "5m"]), 78, "at_least 5m is too long");
    one_sentence(&wrong(&["--every", "5m", "--catch-up", "all"]), 64, "skip, latest, or how many");
    one_sentence(&wrong(&["--every", "5m", "--catch-up", "100000"]), 78, "too many");
    one_sentence(&wrong(&["--every", "5m", "--keep-history", "51"]), 78, "at most 50");
    one_sentence(&wrong(&["--every", "5"]), 64, "--every <DURATION>");
    assert!(!place.dir.join("ran").exists());
}
