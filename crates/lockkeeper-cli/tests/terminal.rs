//! `run` on a terminal: the command can read it, Ctrl-C and Ctrl-Z reach it, and the shell gets it back.

mod common;

use common::Place;
use std::process::Command;
use testkit::{Pty, SOON, eventually, is_alive, is_stopped};

#[test]
fn the_command_reads_from_the_terminal() {
    let place = Place::new();
    let mut pty = Pty::start(&place.lockkeeper(&["run", "x", "--", "sh", "-c", "echo ready; read a; echo got $a"]));
    pty.shows("ready");
    pty.type_in("hello\n");
    pty.shows("got hello");
    assert_eq!(pty.wait(), 0, "{}", pty.screen());
}

#[test]
fn the_command_has_no_signal_blocked() {
    let place = Place::new();
    let mut pty = Pty::start(&place.lockkeeper(&["run", "x", "--", "grep", "SigBlk", "/proc/self/status"]));
    assert_eq!(pty.wait(), 0, "{}", pty.screen());
    pty.shows("SigBlk:\t0000000000000000");
}

#[test]
fn ctrl_c_ends_the_command_and_gives_130() {
    let place = Place::new();
    let mut pty =
        Pty::start(&place.lockkeeper(&["run", "x", "--", "sh", "-c", "echo $$ > pid; echo ready; exec sleep 100"]));
    pty.shows("ready");
    pty.type_in("\x03");
    assert_eq!(pty.wait(), 130, "{}", pty.screen());
    assert!(!is_alive(place.number("pid").try_into().unwrap()));
}

#[test]
fn a_live_line_shows_the_holder_and_ctrl_c_ends_the_wait() {
    let place = Place::new();
    let holder = place.holder("job", &[]);
    let mut pty = Pty::start(&place.lockkeeper(&["run", "job", "--", "true"]));
    pty.shows(" for 'job' (1st in line), held ");
    // Without the program's name where the screen is too narrow for it.
    let lines = ["\r\x1b[Klockkeeper: waiting ", "\r\x1b[Kwaiting "];
    assert!(lines.iter().any(|line| pty.screen().contains(line)), "{:?}", pty.screen());
    pty.type_in("\x03");
    assert_eq!(pty.wait(), 130);
    eventually(SOON, "the line is cleared", || pty.screen().ends_with("\r\x1b[K"));
    drop(holder);
}

/// An interactive shell in the place.
fn shell(place: &Place) -> Pty {
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "--noediting", "-i"]).current_dir(place.dir.path()).env_clear();
    for (key, value) in place.lockkeeper(&[]).get_envs() {
        bash.env(key, value.unwrap_or_default());
    }
    bash.env("PS1", "ready> ").env("LK", env!("CARGO_BIN_EXE_lockkeeper")).env("TERM", "dumb");
    let pty = Pty::start(&bash);
    pty.shows("ready> ");
    pty
}

#[test]
fn ctrl_z_stops_both_and_fg_goes_on() {
    let place = Place::new();
    let mut pty = shell(&place);
    pty.type_in("$LK run x -- sh -c 'echo $$ > pid; echo run''ning; read a; echo got $a; exit 7'\n");
    pty.shows("running");
    let command: i32 = place.number("pid").try_into().unwrap();
    pty.type_in("\x1a");
    pty.shows("Stopped");
    eventually(SOON, "the command is stopped", || is_stopped(command));
    pty.type_in("echo shell has it''\n");
    pty.shows("\nshell has it");
    pty.type_in("fg\n");
    eventually(SOON, "the command goes on", || !is_stopped(command));
    pty.type_in("words\n");
    pty.shows("got words");
    pty.type_in("echo code=$?\n");
    pty.shows("code=7");
    pty.type_in("exit 0\n");
    assert_eq!(pty.wait(), 0, "{}", pty.screen());
}

#[test]
fn after_ctrl_z_past_the_ttl_fg_kills_the_command_instead_of_continuing_it() {
    let place = Place::new();
    let mut pty = shell(&place);
    pty.type_in("$LK run --ttl 1s x -- sh -c 'echo $$ > pid; echo run''ning; while :; do echo on >> on; done'\n");
    pty.shows("running");
    let command: i32 = place.number("pid").try_into().unwrap();
    // Only once the shell is in its loop, which starts nothing: a shell caught while it starts a process cannot be stopped.
    place.text("on");
    pty.type_in("\x1a");
    pty.shows("Stopped");
    eventually(SOON, "the command is stopped", || is_stopped(command));
    let before = place.dir.read("on");
    assert_eq!(place.ends(&["run", "-w", "20s", "x", "--", "true"]).code, Some(0), "another one takes it");
    pty.type_in("fg\n");
    pty.shows("was lost");
    pty.type_in("echo code=$?\n");
    pty.shows("code=76");
    assert!(!is_alive(command));
    assert_eq!(place.dir.read("on"), before, "the command did not go on");
    pty.type_in("exit 0\n");
    pty.wait();
}

#[test]
fn in_a_pipeline_the_other_end_keeps_the_terminal() {
    let place = Place::new();
    let mut pty = shell(&place);
    // The reader asks the terminal itself, as a pager does, while the command runs.
    pty.type_in("$LK run x -- sh -c 'echo from-command; sleep 0.2' | sh -c 'read a; echo as''king; read b < /dev/tty; echo $a and $b'\n");
    pty.shows("asking");
    pty.type_in("keys\n");
    pty.shows("from-command and keys");
    pty.type_in("exit 0\n");
    assert_eq!(pty.wait(), 0, "{}", pty.screen());
}

#[test]
fn in_a_script_the_command_gets_the_terminal_when_it_asks() {
    let place = Place::new();
    let mut pty = shell(&place);
    place.dir.write("script", "$LK run x -- sh -c 'echo as''king; read a; echo got $a'\nread b\necho script $b\n");
    pty.type_in("sh script\n");
    pty.shows("asking");
    pty.type_in("one\n");
    pty.shows("got one");
    pty.type_in("two\n");
    pty.shows("script two");
    pty.type_in("exit 0\n");
    assert_eq!(pty.wait(), 0, "{}", pty.screen());
}

/// A command that writes all the time, with a descendant in another session that does too.
const BUSY: &str = "sh -c 'setsid sh -c \"echo \\$\\$ > far; while :; do echo on >> far-on; done\" & echo $$ > pid; echo run\"\"ning; while :; do echo on >> on; done'";

/// The `lockkeeper` above a command: the parent of its shim. It stops last, after all that the command has started.
fn supervisor(command: i32) -> i32 {
    let parent = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
        let after = stat.rsplit(')').next().expect("a state");
        after.split_whitespace().nth(1).expect("a parent").parse().expect("a process id")
    };
    parent(parent(command))
}

/// Both processes, once they are in their loops: a shell caught while it starts a process cannot be stopped.
fn busy(place: &Place, pty: &Pty) -> [i32; 2] {
    pty.shows("running");
    let _ = ["on", "far-on"].map(|file| place.text(file));
    ["pid", "far"].map(|file| place.number(file).try_into().expect("a process id"))
}

/// Ways to be started in which the command is not in front, and how to see what became of it.
fn ways(place: &Place, options: &str) -> [(String, &'static str); 2] {
    place.dir.write("script", &format!("$LK run {options} x -- {BUSY}\n"));
    [
        (format!("set -o pipefail; $LK run {options} x -- {BUSY} | cat\n"), "echo code=$?\n"),
        ("sh script\n".to_owned(), "echo code=$?\n"),
    ]
}

#[test]
fn ctrl_z_in_a_pipeline_or_a_script_stops_the_whole_tree_and_fg_goes_on() {
    for way in 0..2 {
        let place = Place::new();
        let mut pty = shell(&place);
        let (line, code) = ways(&place, "")[way].clone();
        pty.type_in(&line);
        let both = busy(&place, &pty);
        pty.type_in("\x1a");
        pty.shows("Stopped");
        let all = [both[0], both[1], supervisor(both[0])];
        eventually(SOON, "all are stopped", || all.iter().all(|pid| is_stopped(*pid)));
        pty.type_in("fg\n");
        eventually(SOON, "both go on", || both.iter().all(|pid| is_alive(*pid) && !is_stopped(*pid)));
        pty.type_in("\x03");
        eventually(SOON, "the command is gone", || !is_alive(both[0]));
        // Ctrl-C is not for other sessions: what is left is ended by name.
        testkit::signal(both[1], testkit::Signal::KILL);
        pty.type_in(code);
        pty.shows("code=130");
        pty.type_in("exit 0\n");
        pty.wait();
    }
}

#[test]
fn after_ctrl_z_in_a_pipeline_or_a_script_past_the_ttl_fg_kills_the_tree() {
    for way in 0..2 {
        let place = Place::new();
        let mut pty = shell(&place);
        let (line, code) = ways(&place, "--ttl 1s")[way].clone();
        pty.type_in(&line);
        let both = busy(&place, &pty);
        pty.type_in("\x1a");
        pty.shows("Stopped");
        let all = [both[0], both[1], supervisor(both[0])];
        eventually(SOON, "all are stopped", || all.iter().all(|pid| is_stopped(*pid)));
        let seen = || ["on", "far-on"].map(|file| place.dir.read(file).unwrap().len());
        let before = seen();
        assert_eq!(place.ends(&["run", "-w", "20s", "x", "--", "true"]).code, Some(0), "another one takes it");
        assert_eq!(seen(), before, "nothing was written in another holder's time");
        pty.type_in("fg\n");
        pty.shows("was lost");
        pty.type_in(code);
        pty.shows("code=76");
        assert_eq!(both.map(is_alive), [false, false]);
        assert_eq!(seen(), before, "the command did not go on");
        pty.type_in("exit 0\n");
        pty.wait();
    }
}

#[test]
fn a_stop_signal_to_lockkeeper_alone_stops_the_whole_tree() {
    for signal in ["TSTP", "TTIN", "TTOU"] {
        let place = Place::new();
        let mut pty = shell(&place);
        // The shell is to say at once what it has noticed.
        pty.type_in(&format!("set -b; $LK run x -- {BUSY} & echo $! > lockkeeper\n"));
        let both = busy(&place, &pty);
        let run: i32 = place.number("lockkeeper").try_into().unwrap();
        pty.type_in(&format!("kill -{signal} $!\n"));
        eventually(SOON, "all are stopped", || is_stopped(run) && both.iter().all(|pid| is_stopped(*pid)));
        pty.shows("Stopped");
        pty.type_in("bg\n");
        let go_on = |pid: &i32| is_alive(*pid) && !is_stopped(*pid);
        eventually(SOON, &format!("after {signal}, all go on"), || [run].iter().chain(&both).all(go_on));
        testkit::signal(both[1], testkit::Signal::KILL);
        pty.type_in("kill $!; wait $!; echo code=$?\n");
        pty.shows("code=143");
        pty.type_in("exit 0\n");
        pty.wait();
    }
}

#[test]
fn ctrl_c_ends_a_candidate_for_good() {
    let place = Place::new();
    let args = ["elect", "--restart", "always", "x", "--", "sh", "-c", "echo $$ > pid; echo ready; exec sleep 100"];
    let mut pty = Pty::start(&place.lockkeeper(&args));
    pty.shows("ready");
    pty.type_in("\x03");
    assert_eq!(pty.wait(), 130, "{}", pty.screen());
    assert!(!is_alive(place.number("pid").try_into().unwrap()));
}

#[test]
fn ctrl_z_between_two_terms_stops_the_candidate_and_fg_goes_on() {
    let place = Place::new();
    let mut pty = shell(&place);
    pty.type_in("$LK elect --restart always x -- true\n");
    pty.shows("campaigning again in 1.0s");
    pty.type_in("\x1a");
    pty.shows("Stopped");
    pty.type_in("fg\n");
    pty.shows("campaigning again in 2.0s");
    pty.type_in("\x03");
    pty.type_in("echo co''de $?\n");
    pty.shows("code 130");
    pty.type_in("exit\n");
    pty.wait();
}

#[test]
fn a_command_whose_output_is_seen_still_reads_from_the_terminal() {
    let place = Place::new();
    for words in [&["once", "x"] as &[&str], &["run", "--stall-limit", "30s", "x"]] {
        let script = "echo ready; read a; echo got $a; [ -t 1 ] || echo pipe; exec sleep 100";
        let mut pty = Pty::start(&place.lockkeeper(&[words, &["--", "sh", "-c", script]].concat()));
        pty.shows("ready");
        pty.type_in("hello\n");
        pty.shows("got hello");
        pty.shows("pipe");
        pty.type_in("\x03");
        assert_eq!(pty.wait(), 130, "{}", pty.screen());
    }
}
