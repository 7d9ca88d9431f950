//! `elect` and `leader` with the real program: one command at a time, terms that rise, restarts, losses and signals.

mod common;

use common::{Place, one_sentence};
use serde_json::Value;
use testkit::{Proc, RedisServer, SOON, Signal, eventually, found, is_alive};

/// A candidate whose command says who leads in the file NAME, and runs until the file NAME-go exists.
fn candidate(place: &Place, name: &str, options: &[&str]) -> Proc {
    let script = format!(
        "[ -e other ] && kill -0 $(cat other) 2>/dev/null && touch overlap; echo $$ > other
         echo $LOCKKEEPER_TERM $$ > {name}.tmp; mv {name}.tmp {name}; while [ ! -e {name}-go ]; do sleep 0.01; done"
    );
    let args = [&["elect", "--value", name], options, &["boss", "--", "sh", "-c", &script]].concat();
    place.start(&args)
}

/// The term and the process id that a candidate's command has written.
fn term(place: &Place, name: &str) -> (u64, i32) {
    let text = place.text(name);
    let (term, pid) = text.split_once(' ').expect("two numbers");
    (term.parse().expect("a term"), pid.parse().expect("a process id"))
}

fn leader(place: &Place) -> Value {
    let ended = place.ends(&["leader", "--json", "boss"]);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended:?}"))
}

#[test]
fn one_candidate_leads_and_the_next_follows_it() {
    let place = Place::new();
    let first = candidate(&place, "a", &["--label", "on\nA"]);
    let (one, _) = term(&place, "a");
    let second = candidate(&place, "b", &[]);
    place.until_waiting("election/boss", 1);
    let seen = leader(&place);
    assert_eq!(
        (&seen["name"], &seen["leader"]["value"], &seen["leader"]["term"]),
        (&"boss".into(), &"a".into(), &one.into())
    );
    assert_eq!((&seen["leader"]["pid"], &seen["leader"]["label"]), (&first.pid().into(), &"on\nA".into()));
    let page = place.ends(&["leader", "boss"]);
    let says = format!("(pid {}) \"on\\x0aA\"\n    term   {one}\n    value  a\n", first.pid());
    let head = format!("boss ({})\n  led by ", place.scheme());
    assert!(page.stdout.starts_with(&head) && page.stdout.ends_with(&says), "{page:?}");
    place.dir.write("a-go", "");
    assert_eq!(first.wait().code, Some(0));
    assert!(term(&place, "b").0 > one);
    place.dir.write("b-go", "");
    let ended = second.wait();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{ended:?}");
    assert!(!place.dir.join("overlap").exists());
    one_sentence(&place.ends(&["leader", "boss"]), 1, "no candidate leads 'boss'");
    assert_eq!(leader(&place)["leader"], Value::Null);
}

#[test]
fn after_kill_9_the_old_command_is_gone_before_the_next_one_starts() {
    let server = RedisServer::new();
    let place = Place::new();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let first = candidate(&place, "a", &["--ttl", "2s", "--store", &url]);
    let (one, command) = term(&place, "a");
    let second = candidate(&place, "b", &["--ttl", "2s", "--store", &url]);
    first.signal(Signal::KILL);
    let (two, _) = term(&place, "b");
    assert!(two > one && !is_alive(command), "{one} {two}");
    assert!(!place.dir.join("overlap").exists());
    place.dir.write("b-go", "");
    assert_eq!(second.wait().code, Some(0));
}

#[test]
fn the_exit_code_and_the_restarts_follow_the_policy() {
    let place = Place::new();
    let run = |policy: &str, file: &str, code: u8| {
        let script = format!("echo x >> {file}; [ $(wc -l < {file}) -lt 2 ] || exit 0; exit {code}");
        place.ends(&["elect", "--restart", policy, file, "--", "sh", "-c", &script])
    };
    let ended = run("never", "a", 3);
    assert_eq!((ended.code, ended.stderr.as_str(), place.lines("a")), (Some(3), "", 1), "{ended:?}");
    let ended = run("on-failure", "b", 3);
    assert_eq!((ended.code, place.lines("b")), (Some(0), 2), "{ended:?}");
    let said = "lockkeeper: the command has ended with exit code 3; campaigning again in 1.0s\n";
    assert_eq!(ended.stderr, said);
    let ended = run("on-failure", "c", 0);
    assert_eq!((ended.code, place.lines("c")), (Some(0), 1), "{ended:?}");
    // A command that does not exist will not exist the next time.
    let ended = place.ends(&["elect", "--restart", "always", "d", "--", "no-such-command"]);
    one_sentence(&ended, 127, "'no-such-command' was not found");
}

#[test]
fn term_and_ctrl_c_end_a_candidate_for_good() {
    let place = Place::new();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let name = format!("s{code}");
        let running = candidate(&place, &name, &["--restart", "always"]);
        term(&place, &name);
        let waiting = candidate(&place, "never", &["--restart", "always"]);
        place.until_waiting("election/boss", 1);
        waiting.signal(signal);
        let ended = waiting.wait();
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(code), ""), "while waiting: {ended:?}");
        place.until_waiting("election/boss", 0);
        running.signal(signal);
        let ended = running.wait();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(code), ""), "while running: {ended:?}");
    }
    let pausing = place.start(&["elect", "--restart", "always", "p", "--", "sh", "-c", "echo x >> ran"]);
    eventually(SOON, "it pauses", || pausing.stderr().contains("campaigning again"));
    pausing.signal(Signal::TERM);
    assert_eq!(pausing.wait().code, Some(143), "while pausing");
}

#[test]
fn a_lost_leadership_stops_the_command_and_may_be_won_again() {
    let place = Place::new();
    let once = candidate(&place, "a", &["--ttl", "2s"]);
    let (one, command) = term(&place, "a");
    let broken = place.ends(&["break", "election/boss", "--token", &one.to_string()]);
    assert_eq!(broken.code, Some(0), "{broken:?}");
    one_sentence(&once.wait(), 76, "the command was stopped, because the lock 'election/boss' was lost");
    assert!(!is_alive(command));
    let again = candidate(&place, "b", &["--ttl", "2s", "--restart", "on-failure"]);
    let (two, command) = term(&place, "b");
    assert_eq!(place.ends(&["break", "election/boss", "--token", &two.to_string()]).code, Some(0));
    let three = found(SOON, "another term", || Some(term(&place, "b")).filter(|(term, _)| *term > two)).0;
    assert!(three > two && !is_alive(command));
    assert!(again.stderr().contains("the leadership was lost; campaigning again in 1.0s"), "{}", again.stderr());
    place.dir.write("b-go", "");
    assert_eq!(again.wait().code, Some(0));
}

#[test]
fn a_busy_office_need_not_be_waited_for() {
    let place = Place::new();
    let first = candidate(&place, "a", &[]);
    term(&place, "a");
    let ended = place.ends(&["elect", "-n", "boss", "--", "touch", "ran"]);
    one_sentence(&ended, 75, &format!("'election/boss' is held by {}", testkit_host(&first)));
    let ended = place.ends(&["elect", "-w", "200ms", "boss", "--", "touch", "ran"]);
    one_sentence(&ended, 75, "still held after 200ms");
    assert!(!place.dir.join("ran").exists());
}

/// How a holder is named, up to its process id.
fn testkit_host(holder: &Proc) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("Linux has it");
    format!("{} (pid {})", host.trim(), holder.pid())
}

#[test]
fn a_candidate_inside_its_own_command_is_refused() {
    let place = Place::new();
    let us = env!("CARGO_BIN_EXE_lockkeeper");
    let ended = place.ends(&["elect", "boss", "--", us, "elect", "boss", "--", "true"]);
    one_sentence(&ended, 64, "'election/boss' is already held by the lockkeeper");
}

#[test]
fn json_lines_tell_of_a_term() {
    let place = Place::new();
    let ended = place.ends(&["elect", "--json", "boss", "--", "sh", "-c", "exit 3"]);
    let objects: Vec<Value> = ended.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<_> = objects.iter().map(|o| o["event"].as_str().unwrap()).collect();
    assert_eq!((ended.code, events), (Some(3), vec!["acquired", "started", "ended", "released"]), "{ended:?}");
    assert_eq!(objects[0]["name"], "election/boss");
}
