//! `run --also` with the real program: several locks at once, all or none, and no deadlock.

mod common;

use common::{Place, one_sentence, says_no_more_than_that_it_waits};
use serde_json::Value;
use testkit::{Ended, Signal, is_alive};

fn went_well(ended: &Ended) {
    assert!(ended.code == Some(0) && says_no_more_than_that_it_waits(ended), "{ended:?}");
}

#[test]
fn opposite_orders_never_deadlock() {
    let place = Place::new();
    place.dir.write("counter", "0");
    // Not atomic in any way: one lost update would show.
    let script = "[ -e inside ] && touch overlap; touch inside; n=$(cat counter); echo $((n+1)) > counter; rm inside";
    std::thread::scope(|scope| {
        for (first, second) in [("a", "b"), ("b", "a")] {
            let place = &place;
            scope.spawn(move || {
                for _ in 0..60 {
                    let ended = place.ends(&["run", first, "--also", second, "--", "sh", "-c", script]);
                    went_well(&ended);
                }
            });
        }
    });
    assert_eq!(place.dir.read("counter").unwrap(), "120");
    assert!(!place.dir.join("overlap").exists());
    assert_eq!(place.ends(&["ls"]).stdout, "");
}

#[test]
fn a_circle_of_three_never_deadlocks() {
    let place = Place::new();
    std::thread::scope(|scope| {
        for (first, second) in [("a", "b"), ("b", "c"), ("c", "a")] {
            let place = &place;
            scope.spawn(move || {
                for _ in 0..15 {
                    let ended = place.ends(&["run", first, "--also", second, "--", "true"]);
                    went_well(&ended);
                }
            });
        }
    });
    assert_eq!(place.ends(&["ls"]).stdout, "");
}

#[test]
fn the_command_learns_the_token_of_each_lock() {
    let place = Place::new();
    let script = "echo \"$LOCKKEEPER_NAME $LOCKKEEPER_TOKEN\"; echo \"$LOCKKEEPER_LOCKS\"";
    let args = ["run", "b", "--also", "c", "--also", "a", "--", "sh", "-c", script];
    let ended = place.ends(&args);
    let (first, locks) = ended.stdout.split_once('\n').unwrap_or_else(|| panic!("{ended:?}"));
    let locks: Value = serde_json::from_str(locks).unwrap();
    let names: Vec<_> = locks.as_array().unwrap().iter().map(|lock| lock["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["b", "c", "a"]);
    assert_eq!(first, format!("b {}", locks[0]["token"]));
    assert!(locks[2]["holder"].as_str().is_some_and(|holder| holder.len() == 32), "{locks}");
    // A nested run does not take the outer one's list for its own.
    let us = env!("CARGO_BIN_EXE_lockkeeper");
    let nested = place.ends(&["run", "a", "--also", "b", "--", us, "run", "d", "--", "printenv", "LOCKKEEPER_LOCKS"]);
    assert_eq!((nested.code, nested.stdout.as_str()), (Some(1), ""), "{nested:?}");
    let refused = place.ends(&["run", "a", "--also", "b", "--", us, "run", "b", "--", "true"]);
    one_sentence(&refused, 64, "'b' is already held by the lockkeeper");
}

#[test]
fn all_or_none_are_held() {
    let place = Place::new();
    let holder = place.holder("b", &[]);
    let busy = place.ends(&["run", "-n", "a", "--also", "b", "--", "touch", "ran"]);
    one_sentence(&busy, 75, "'b' is held by ");
    assert!(busy.stderr.contains(&format!("(pid {})", holder.pid())), "{busy:?}");
    let limited = place.ends(&["run", "-w", "200ms", "a", "--also", "b", "--", "touch", "ran"]);
    one_sentence(&limited, 75, "'b' is still held after 200ms by");
    let listed = place.ends(&["ls"]).stdout;
    assert!(listed.lines().count() == 2 && listed.contains("\nb "), "{listed}");
    let waiting = place.start(&["run", "a", "--also", "b", "--", "touch", "ran"]);
    place.until_waiting("b", 1);
    waiting.signal(Signal::INT);
    assert_eq!(waiting.wait().code, Some(130));
    place.until_waiting("b", 0);
    assert_eq!(place.ends(&["run", "-n", "a", "--", "true"]).code, Some(0));
    assert!(!place.dir.join("ran").exists());
}

#[test]
fn one_lost_lock_stops_the_command() {
    let place = Place::new();
    let script = "echo \"$LOCKKEEPER_LOCKS\" > locks; echo $$ > pid; exec sleep 1000";
    let run = place.start(&["run", "--ttl", "2s", "a", "--also", "b", "--", "sh", "-c", script]);
    let command: i32 = place.number("pid").try_into().unwrap();
    let locks: Value = serde_json::from_str(&place.text("locks")).unwrap();
    let broken = place.ends(&["break", "b", "--token", &locks[1]["token"].to_string()]);
    assert_eq!(broken.code, Some(0), "{broken:?}");
    one_sentence(&run.wait(), 76, "the command was stopped, because the lock 'b' was lost");
    assert!(!is_alive(command));
    assert_eq!(place.ends(&["ls"]).stdout, "");
}

#[test]
fn a_wrong_list_of_names_is_told() {
    let place = Place::new();
    let wrong = |options: &[&str]| place.ends(&[&["run", "a"], options, &["--", "touch", "ran"]].concat());
    one_sentence(&wrong(&["--also", ""]), 64, "1 to 512 bytes");
    one_sentence(&wrong(&["--also"]), 64, "--also <NAME>");
    one_sentence(&wrong(&["--also", "a"]), 64, "'a' is given twice");
    one_sentence(&wrong(&["--also", "b", "--also", "b"]), 64, "'b' is given twice");
    one_sentence(&wrong(&["--also", "b", "--shared"]), 64, "cannot be used together with");
    one_sentence(&wrong(&["--also", "b", "--permits", "2"]), 64, "cannot be used together with");
    assert!(!place.dir.join("ran").exists());
}
