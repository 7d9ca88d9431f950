//! `run --stall-limit` with the real program: a hung command loses its lock, one that shows progress keeps it.

mod common;

use common::{Place, one_sentence};
use testkit::is_alive;

#[test]
fn a_hung_command_is_stopped_and_the_next_one_gets_the_lock() {
    let place = Place::new();
    let script = "echo begun; echo $$ > pid; trap '' TERM; while :; do sleep 1000; done";
    let hung = place.start(&["run", "--ttl", "3s", "--stall-limit", "3s", "x", "--", "sh", "-c", script]);
    let command: i32 = place.number("pid").try_into().unwrap();
    let next = place.start(&["run", "x", "--", "sh", "-c", &format!("kill -0 {command} 2>/dev/null || echo gone")]);
    let ended = hung.wait();
    let said = "lockkeeper: the command was stopped, because the lock 'x' has seen no progress for almost --stall-limit 3.0s\n";
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(76), "begun\n", said));
    assert!(!is_alive(command));
    assert_eq!(next.wait().stdout, "gone\n");
}

#[test]
fn output_on_either_stream_is_progress_and_arrives_as_it_was() {
    let place = Place::new();
    // Longer than the limit in all.
    let script = "for n in 1 2 3 4 5 6 7 8; do echo $n; sleep 0.5; printf 'e%s\\000' $n >&2; sleep 0.5; done; exit 5";
    let ended = place.ends(&["run", "--ttl", "5s", "--stall-limit", "5s", "x", "--", "sh", "-c", script]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), "1\n2\n3\n4\n5\n6\n7\n8\n"), "{ended:?}");
    assert_eq!(ended.stderr, "e1\0e2\0e3\0e4\0e5\0e6\0e7\0e8\0");
}

#[test]
fn a_touched_file_is_progress_and_output_is_not() {
    let place = Place::new();
    let options = ["run", "--ttl", "5s", "--stall-limit", "5s", "--progress-file", "sign", "x", "--", "sh", "-c"];
    let touches = "for n in 1 2 3 4 5 6 7 8; do sleep 1; touch sign; done";
    let ended = place.ends(&[&options[..], &[touches]].concat());
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let ended = place.ends(&[&options[..], &["while :; do echo talk; sleep 0.2; done"]].concat());
    assert_eq!(ended.code, Some(76), "{ended:?}");
    assert!(ended.stderr.contains("no progress for almost --stall-limit 5.0s"), "{ended:?}");
}

#[test]
fn much_output_and_a_reader_that_leaves_are_as_without_a_limit() {
    let place = Place::new();
    let options = ["run", "--stall-limit", "20s", "x", "--"];
    let much = place.ends(&[&options[..], &["head", "-c", "3000000", "/dev/zero"]].concat());
    assert_eq!((much.code, much.stdout.len()), (Some(0), 3_000_000), "{}", much.stderr);
    let us = env!("CARGO_BIN_EXE_lockkeeper");
    let script = format!("{{ {us} run --stall-limit 20s x -- yes; echo $? > code; }} | head -n 1");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).current_dir(place.dir.path()).env("LOCKKEEPER_STORE", place.store());
    assert_eq!(testkit::Proc::start(&mut command).wait().stdout, "y\n");
    assert_ne!(place.text("code"), "0", "the command has no reader either");
}

#[test]
fn wrong_limits_are_named() {
    let place = Place::new();
    let wrong = |options: &[&str]| place.ends(&[&["run"], options, &["x", "--", "touch", "ran"]].concat());
    one_sentence(&wrong(&["--progress-file", "sign"]), 64, "--stall-limit <DURATION>");
    one_sentence(&wrong(&["--stall-limit", "5m", "--close"]), 64, "give --progress-file");
    one_sentence(&wrong(&["--stall-limit", "1ms"]), 78, "stall_limit 1ms is too short");
    assert!(!place.dir.join("ran").exists());
}
