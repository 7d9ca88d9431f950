//! `run` when it, its command or its lock come to harm: signals, stops, a store that goes away.

mod common;

use common::Place;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use testkit::{Proc, SOON, Signal, eventually, is_alive, is_stopped};

/// Ignores TERM, and starts a process in another session that does too; both write the time again and again.
const STUBBORN: &str = "trap '' TERM INT HUP
setsid sh -c 'trap \"\" TERM; echo $$ > far; while :; do date +%s%N > beat.tmp; mv beat.tmp beat; sleep 0.02; done' &
echo $$ > near; while :; do sleep 0.1; done";

fn pids(place: &Place) -> [i32; 2] {
    ["near", "far"].map(|file| place.number(file).try_into().expect("a process id"))
}

fn nanos() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    since.as_nanos().try_into().expect("a clock before 2262")
}

#[test]
fn signals_are_passed_on_to_the_command() {
    let place = Place::new();
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        let script = format!("trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.01; done");
        let run = place.start(&["run", "x", "--", "sh", "-c", &script]);
        eventually(SOON, "it is ready", || run.stdout().contains("ready"));
        run.signal(signal);
        let ended = run.wait();
        assert_eq!((ended.code, ended.stdout.contains(&format!("got {name}"))), (Some(9), true), "{name}: {ended:?}");
    }
    let run = place.start(&["run", "x", "--", "sh", "-c", "echo ready; exec sleep 100"]);
    eventually(SOON, "it is ready", || run.stdout().contains("ready"));
    run.signal(Signal::TERM);
    assert_eq!(run.wait().code, Some(143));
}

#[test]
fn a_waiter_ends_by_a_signal_and_leaves_its_place() {
    let place = Place::new();
    let _holder = place.holder("job", &[]);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let waiter = place.start(&["run", "job", "--", "touch", "ran"]);
        place.until_waiting("job", 1);
        waiter.signal(signal);
        assert_eq!(waiter.wait().code, Some(code));
        place.until_waiting("job", 0);
    }
    assert!(!place.dir.join("ran").exists());
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let place = Place::new();
    let us = env!("CARGO_BIN_EXE_lockkeeper");
    let script =
        format!("trap '' HUP; exec {us} run x -- sh -c 'echo ready; while [ ! -e go ]; do sleep 0.01; done; exit 5'");
    let mut shell = place.lockkeeper(&[]);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).current_dir(place.dir.path()).env_clear();
    for (key, value) in shell.arg("").get_envs() {
        command.env(key, value.unwrap_or_default());
    }
    let run = Proc::start(&mut command);
    eventually(SOON, "it is ready", || run.stdout().contains("ready"));
    run.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(100));
    place.dir.write("go", "");
    assert_eq!(run.wait().code, Some(5), "nohup holds for lockkeeper and its command");
}

#[test]
fn stopped_past_the_ttl_with_its_command_it_kills_it_before_it_can_go_on() {
    let place = Place::new();
    let script = "echo $LOCKKEEPER_TOKEN > token; echo $$ > pid; n=0; while :; do n=$((n+1)); echo $n > count; done";
    let run = place.start(&["run", "--ttl", "1s", "job", "--", "sh", "-c", script]);
    let command: i32 = place.number("pid").try_into().unwrap();
    place.text("count");
    run.signal(Signal::STOP);
    testkit::signal(command, Signal::STOP);
    eventually(SOON, "both are stopped", || is_stopped(command) && is_stopped(run.pid()));
    let before = std::fs::read_to_string(place.dir.join("count")).unwrap();
    let next = place.ends(&["run", "-w", "20s", "job", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN > token2"]);
    assert_eq!(next.code, Some(0), "another holder gets it meanwhile: {next:?}");
    run.signal(Signal::CONT);
    let ended = run.wait();
    common::one_sentence(&ended, 76, "'job' was lost: its lease ended");
    assert!(!is_alive(command));
    assert_eq!(std::fs::read_to_string(place.dir.join("count")).unwrap(), before, "the command did not go on");
    assert!(place.number("token2") > place.number("token"));
}

#[test]
fn stopped_alone_past_the_ttl_it_kills_the_command_when_it_goes_on() {
    let place = Place::new();
    let run = place.start(&["run", "--ttl", "1s", "job", "--", "sh", "-c", STUBBORN]);
    let both = pids(&place);
    run.signal(Signal::STOP);
    assert_eq!(place.ends(&["run", "-w", "20s", "job", "--", "true"]).code, Some(0));
    run.signal(Signal::CONT);
    common::one_sentence(&run.wait(), 76, "'job' was lost");
    assert_eq!(both.map(is_alive), [false, false]);
}

#[test]
fn when_the_store_is_cut_the_whole_tree_is_gone_before_the_lease_ends() {
    let place = Place::new();
    let ttl = Duration::from_secs(3);
    let run = place.start(&["run", "--ttl", "3s", "job", "--", "sh", "-c", STUBBORN]);
    let both = pids(&place);
    place.text("beat");
    let cut = nanos();
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        let _ = std::fs::rename(place.dir.join(file), place.dir.join(&format!("{file}.away")));
    }
    let ended = run.wait();
    common::one_sentence(&ended, 76, "'job' could not be renewed and its lease was about to end");
    assert_eq!(both.map(is_alive), [false, false]);
    let last = place.number("beat") - cut;
    println!("store cut with a TTL of 3 s: last sign of life of the tree {} ms after the cut", last / 1_000_000);
    assert!(last < i64::try_from(ttl.as_nanos()).unwrap(), "{last}");
}

#[test]
fn max_hold_ends_the_whole_tree_before_its_time() {
    let place = Place::new();
    let started = nanos();
    let run = place.start(&["run", "--max-hold", "3s", "job", "--", "sh", "-c", STUBBORN]);
    let both = pids(&place);
    common::one_sentence(&run.wait(), 76, "held for almost --max-hold 3");
    assert_eq!(both.map(is_alive), [false, false]);
    let last = place.number("beat") - started;
    assert!(last < 3_500_000_000, "{last}");
    assert_eq!(place.ends(&["run", "-n", "job", "--", "true"]).code, Some(0), "it is free at once");
}

#[test]
fn a_command_that_hears_term_may_clean_up() {
    let place = Place::new();
    let script = "trap 'sleep 0.1; echo cleaned; exit 0' TERM; while :; do sleep 0.01; done";
    let ended = place.ends(&["run", "--max-hold", "3s", "job", "--", "sh", "-c", script]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(76), "cleaned\n"), "{ended:?}");
}

#[test]
fn a_broken_lock_kills_its_command_at_once() {
    let place = Place::new();
    let holder = place.holder("job", &["--ttl", "2s"]);
    let command: i32 = place.number("pid").try_into().unwrap();
    let broken = place.ends(&["break", "job", "--token", &place.text("token")]);
    assert_eq!(broken.code, Some(0), "{broken:?}");
    common::one_sentence(&holder.wait(), 76, "was lost");
    assert!(!is_alive(command));
}

#[test]
fn the_command_dies_with_its_lockkeeper() {
    let place = Place::new();
    let holder = place.holder("job", &[]);
    let command: i32 = place.number("pid").try_into().unwrap();
    holder.signal(Signal::KILL);
    eventually(SOON, "the command is gone", || !is_alive(command));
}

#[test]
fn orphans_are_reaped_while_the_command_runs() {
    let place = Place::new();
    // Each `sh &` leaves an orphan behind that ends at once: nobody but the supervisor can reap it.
    let script = "for i in 1 2 3 4 5; do (sh -c 'echo $$ >> orphans' &); done; while [ ! -e go ]; do sleep 0.01; done";
    let run = place.start(&["run", "x", "--", "sh", "-c", script]);
    eventually(SOON, "five orphans", || place.dir.read("orphans").is_some_and(|t| t.lines().count() == 5));
    let gone = |pid: &str| !std::path::Path::new(&format!("/proc/{pid}")).exists();
    eventually(SOON, "none is left as a zombie", || place.text("orphans").lines().all(gone));
    place.dir.write("go", "");
    assert_eq!(run.wait().code, Some(0));
}
