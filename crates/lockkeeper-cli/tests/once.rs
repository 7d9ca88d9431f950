//! `once` with the real program: one run for a key, the same bytes for every caller, take-over, limits and bad input.

mod common;

use common::{Place, one_sentence, says_no_more_than_that_it_waits};
use std::process::{Output, Stdio};
use testkit::{RedisServer, Signal, is_alive};

/// The bytes of a call, which need not be text.
fn bytes(place: &Place, args: &[&str]) -> Output {
    place.lockkeeper(args).stdin(Stdio::null()).output().expect("it starts")
}

#[test]
fn every_call_gets_the_same_bytes_and_the_same_code() {
    let place = Place::new();
    let script = r"printf 'a\000\377\n'; printf 'e\033[1m\n' >&2; printf last; echo x >> ran; exit 0";
    let args = ["once", "charge/42", "--", "sh", "-c", script];
    let first = bytes(&place, &args);
    assert_eq!((&first.stdout[..], &first.stderr[..]), (&b"a\0\xff\nlast"[..], &b"e\x1b[1m\n"[..]));
    let again = bytes(&place, &args);
    assert_eq!((again.status.code(), again.stdout, again.stderr), (Some(0), first.stdout, first.stderr));
    assert_eq!(place.lines("ran"), 1);
    let other = place.ends(&["once", "charge/43", "--", "sh", "-c", "echo $LOCKKEEPER_ATTEMPT$LOCKKEEPER_TAKEN_OVER"]);
    assert_eq!((other.code, other.stdout.as_str()), (Some(0), "1\n"), "{other:?}");
}

#[test]
fn callers_at_the_same_time_get_one_run() {
    let server = RedisServer::new();
    let place = Place::new();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let script = "echo x >> ran; echo $LOCKKEEPER_TOKEN; sleep 0.2; exit 7";
    let args = ["once", "--store", &url, "--on-failure", "keep", "k", "--", "sh", "-c", script];
    let callers: Vec<_> = (0..8).map(|_| place.start(&args)).collect();
    let ends: Vec<_> = callers.into_iter().map(testkit::Proc::wait).collect();
    assert_eq!(place.lines("ran"), 1, "{ends:?}");
    for ended in &ends {
        assert_eq!((ended.code, &ended.stdout), (Some(7), &ends[0].stdout), "{ended:?}");
        assert!(says_no_more_than_that_it_waits(ended), "{ended:?}");
    }
}

#[test]
fn a_failure_is_tried_again_or_kept() {
    let place = Place::new();
    let script = "echo x >> $0; echo out; echo err >&2; [ $(wc -l < $0) -lt 3 ] && exit 3; exit 0";
    let call = |how: &str, key: &str| place.ends(&["once", "--on-failure", how, key, "--", "sh", "-c", script, key]);
    for (code, runs) in [(3, 1), (3, 2), (0, 3), (0, 3)] {
        let ended = call("retry", "a");
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(code), "out\n"), "{ended:?}");
        assert_eq!((ended.stderr.as_str(), place.lines("a")), ("err\n", runs));
    }
    for _ in 0..2 {
        let ended = call("keep", "b");
        assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(3), "out\n", "err\n"));
        assert_eq!(place.lines("b"), 1);
    }
    // What a signal ended has no result, even with keep.
    let killed = ["once", "--on-failure", "keep", "c", "--", "sh", "-c", "echo x >> c; kill -9 $$"];
    assert_eq!((place.ends(&killed).code, place.ends(&killed).code, place.lines("c")), (Some(137), Some(137), 2));
    for _ in 0..2 {
        one_sentence(&place.ends(&["once", "d", "--", "no-such-command"]), 127, "was not found");
    }
}

#[test]
fn output_over_the_limit_is_cut_and_the_command_does_not_run_again() {
    let place = Place::new();
    let script = "echo x >> ran; head -c 100000 /dev/zero | tr '\\0' a";
    let args = ["once", "big", "--", "sh", "-c", script];
    let first = place.ends(&args);
    assert_eq!((first.code, first.stdout.len()), (Some(0), 100_000), "{}", first.stderr);
    let said = "lockkeeper: the output of 'once/big' is 67232 bytes longer than the 32768 that are kept\n";
    assert_eq!(first.stderr, said);
    let again = place.ends(&args);
    assert_eq!((again.code, again.stdout), (Some(0), "a".repeat(32_768)), "{}", again.stderr);
    assert_eq!(again.stderr, "lockkeeper: the last 67232 bytes of the output of 'once/big' were not kept\n");
    assert_eq!(place.lines("ran"), 1);
}

#[test]
fn a_caller_that_is_killed_in_the_middle_is_taken_over() {
    let place = Place::new();
    let script = "echo $$ > pid; echo half; [ -n \"$LOCKKEEPER_TAKEN_OVER\" ] || sleep 1000; echo $LOCKKEEPER_ATTEMPT";
    let args = ["once", "--ttl", "2s", "k", "--", "sh", "-c", script];
    let first = place.start(&args);
    let command: i32 = place.number("pid").try_into().unwrap();
    one_sentence(&place.ends(&["once", "-n", "k", "--", "true"]), 75, "'once/k' is held by");
    let waiter = place.start(&["once", "-w", "100ms", "--ttl", "2s", "k", "--", "true"]).wait();
    one_sentence(&waiter, 75, "still held after 100ms");
    let next = place.start(&args);
    place.until_waiting("once/k", 1);
    first.signal(Signal::KILL);
    let ended = next.wait();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "half\n2\n"), "{ended:?}");
    assert!(!is_alive(command));
    assert_eq!(place.ends(&args).stdout, "half\n2\n");
}

#[test]
fn a_signal_goes_to_the_command_and_nothing_is_kept() {
    let place = Place::new();
    let running = place.start(&["once", "k", "--", "sh", "-c", "echo $$ > pid; exec sleep 1000"]);
    place.text("pid");
    let waiting = place.start(&["once", "k", "--", "true"]);
    place.until_waiting("once/k", 1);
    waiting.signal(Signal::INT);
    assert_eq!(waiting.wait().code, Some(130));
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code, Some(143));
    assert_eq!(place.ends(&["once", "k", "--", "echo", "now"]).stdout, "now\n");
}

#[test]
fn a_lost_lock_stops_the_command_and_nothing_is_kept() {
    let place = Place::new();
    let script = "echo $LOCKKEEPER_TOKEN > token; exec sleep 1000";
    let running = place.start(&["once", "--ttl", "2s", "k", "--", "sh", "-c", script]);
    assert_eq!(place.ends(&["break", "once/k", "--token", &place.text("token")]).code, Some(0));
    one_sentence(&running.wait(), 76, "the command was stopped, because the lock 'once/k' was lost");
    assert_eq!(place.ends(&["once", "k", "--", "echo", "now"]).stdout, "now\n");
    let limited = place.ends(&["once", "--ttl", "2s", "--max-hold", "2s", "m", "--", "sleep", "1000"]);
    one_sentence(&limited, 76, "has been held for almost --max-hold 2.0s");
}

#[test]
fn another_request_with_the_same_key_is_refused() {
    let place = Place::new();
    let call = |print: &str| place.ends(&["once", "--fingerprint", print, "k", "--", "echo", "done"]);
    assert_eq!((call("42 EUR").stdout.as_str(), call("42 EUR").stdout.as_str()), ("done\n", "done\n"));
    one_sentence(&call("43 EUR"), 65, "the fingerprints differ");
}

#[test]
fn a_result_is_kept_for_as_long_as_it_was_told() {
    let place = Place::new();
    let args = ["once", "--keep", "300ms", "k", "--", "sh", "-c", "echo x >> ran"];
    assert_eq!(place.ends(&args).code, Some(0));
    testkit::eventually(testkit::SOON, "it runs again", || place.ends(&args).code == Some(0) && place.lines("ran") > 1);
    one_sentence(&place.ends(&["once", "--keep", "4000d", "k", "--", "true"]), 78, "3650d");
}

#[test]
fn a_reader_that_leaves_does_not_cost_the_result() {
    let place = Place::new();
    let us = env!("CARGO_BIN_EXE_lockkeeper");
    let command = "echo 1; while [ ! -e gone ]; do sleep 0.01; done; seq 2 5000; echo x >> ran";
    let script = format!("{us} once k -- sh -c '{command}' | {{ head -n 1; exec <&-; touch gone; }}");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).current_dir(place.dir.path()).env("LOCKKEEPER_STORE", place.store());
    assert_eq!(testkit::Proc::start(&mut command).wait().stdout, "1\n");
    place.text("ran");
    let again = place.ends(&["once", "k", "--", "echo", "other"]);
    assert_eq!((again.stdout.lines().count(), place.lines("ran")), (5000, 1), "{}", again.stderr);
}
