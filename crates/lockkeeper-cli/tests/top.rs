//! `top`: one frame for scripts, and a live screen that leaves the terminal as it was.

mod common;

use common::{Place, one_sentence};
use std::process::Command;
use testkit::{Pty, SOON, Signal, eventually};

const ENTERED: &str = "\x1b[?1049h";
const LEFT: &str = "\x1b[?1049l";

/// A shell on a wide terminal. It says how the terminal is before and after `top`, and with which code `top` ended.
fn live(place: &Place, args: &[&str]) -> Pty {
    let top = place.lockkeeper(&[&["top", "--every", "100ms"], args].concat());
    let mut shell = Command::new("bash");
    let run = "sh -c 'echo $$ > pid; exec \"$@\"' sh \"$@\"; code=$?";
    let script =
        format!("trap : INT; stty rows 24 cols 150; stty -g > before; {run}; stty -g > after; echo code=$code");
    shell.args(["--norc", "--noprofile", "-c", &script, "bash"]);
    shell.arg(top.get_program()).args(top.get_args());
    top.get_envs().for_each(|(key, value)| _ = shell.env(key, value.unwrap_or_default()));
    // Without it the key "!" does nothing.
    shell.env("LOCKKEEPER_TEST_PANIC", "1");
    Pty::start(shell.env("NO_COLOR", "1").current_dir(place.dir.path()))
}

/// What is on the screen: everything that was drawn since the last frame began.
fn frame(pty: &Pty) -> String {
    pty.screen().rsplit("\x1b[H").next().unwrap_or_default().to_owned()
}

#[track_caller]
fn draws(pty: &Pty, text: &str) {
    let mut last = String::new();
    let end = std::time::Instant::now() + SOON;
    while !last.contains(text) {
        assert!(std::time::Instant::now() < end, "{text:?} is not in the frame:\n{last}");
        std::thread::sleep(std::time::Duration::from_millis(5));
        last = frame(pty);
    }
}

#[track_caller]
fn ended(place: &Place, pty: &mut Pty, code: i32) {
    pty.shows("code=");
    pty.wait();
    let shown = pty.screen();
    assert!(shown.contains(&format!("code={code}")), "{shown:?}");
    assert_eq!(shown.matches(ENTERED).count(), shown.matches(LEFT).count(), "{shown:?}");
    assert!(shown.contains("\x1b[?25h\x1b[?1049l"), "the cursor is back: {shown:?}");
    assert_eq!(place.dir.read("before"), place.dir.read("after"), "the terminal's modes are as they were");
}

#[test]
fn one_frame_without_a_terminal() {
    let place = Place::new();
    let empty = place.ends(&["top"]);
    assert_eq!((empty.code, empty.stdout.lines().count()), (Some(0), 2), "{empty:?}");
    let _holder = place.holder("billing/a", &["--label", "month end"]);
    let _waiter = place.start(&["run", "billing/a", "--", "true"]);
    place.until_waiting("billing/a", 1);
    for args in [&["top"][..], &["top", "--once"], &["top", "billing/", "--every", "5s"]] {
        let frame = place.ends(args);
        let lines: Vec<_> = frame.stdout.lines().collect();
        assert_eq!((frame.code, lines.len()), (Some(0), 3), "{frame:?}");
        assert!(lines[0].starts_with(place.scheme()), "{frame:?}");
        assert!(lines[0].ends_with(", guarantee machine: 1 held, 1 waiting"), "{frame:?}");
        assert!(lines[1].starts_with("NAME") && lines[2].contains(&place.text("token")), "{frame:?}");
        assert!(!frame.stdout.contains('\x1b'), "{frame:?}");
    }
    assert!(place.ends(&["top", "other"]).stdout.contains(": 0 held, 0 waiting"));
    one_sentence(&place.ends(&["top", "--every", "5ms"]), 64, "at least 100ms");
    one_sentence(&place.ends(&["top", "--store", "redis://127.0.0.1:1"]), 69, "nothing listens");
}

#[test]
fn locks_come_and_go_and_one_is_looked_at_filtered_and_broken() {
    let place = Place::new();
    let mut pty = live(&place, &[]);
    draws(&pty, "no lock is held or waited for");
    let holder = place.holder("billing/a", &["--label", "month end"]);
    draws(&pty, "> billing/a");
    draws(&pty, "1 held, 0 waiting, ");
    let token = place.text("token");
    std::fs::remove_file(place.dir.join("pid")).expect("it was there");
    let _other = place.holder("a/first", &[]);
    let _waiter = place.start(&["run", "a/first", "--", "true"]);
    // The one that is waited for comes first; the chosen one stays chosen.
    draws(&pty, "2 held, 1 waiting, ");
    eventually(SOON, "both are drawn, in order", || {
        let frame = frame(&pty);
        let (first, second) = (frame.find("  a/first"), frame.find("> billing/a"));
        first.is_some() && first < second
    });
    pty.type_in("s");
    draws(&pty, "; by age");
    pty.type_in("\x1b[A");
    pty.type_in("/month");
    draws(&pty, "with: month_");
    pty.type_in("\r");
    draws(&pty, "; only 'month'");
    draws(&pty, "1 held, 0 waiting");
    assert!(!frame(&pty).contains("a/first"));
    pty.type_in("\r");
    draws(&pty, "if a holder died now");
    draws(&pty, &format!("token     {token}"));
    // Anything but its token breaks nothing.
    for (typed, said) in [("x", "a token is a whole number"), ("1", "no holder has 'billing/a' with token 1")] {
        pty.type_in("b");
        draws(&pty, "to break 'billing/a' type the token");
        pty.type_in(&format!("{typed}\r"));
        draws(&pty, said);
    }
    pty.type_in("b");
    draws(&pty, "type the token of its holder");
    pty.type_in(&format!("{token}\x1b"));
    draws(&pty, "Esc back");
    pty.type_in(&format!("b{token}\r"));
    draws(&pty, "was taken from the holder");
    assert_eq!(holder.wait().code, Some(76));
    draws(&pty, "not held");
    pty.type_in("\x1b");
    draws(&pty, "0 held, 0 waiting");
    pty.type_in("q");
    ended(&place, &mut pty, 0);
}

#[test]
fn the_terminal_is_put_back_however_it_ends() {
    for (end, code) in [("q", 0), ("\x03", 130), ("TERM", 143), ("HUP", 129), ("!", 101)] {
        let place = Place::new();
        let mut pty = live(&place, &[]);
        draws(&pty, "q quit");
        let pid: i32 = place.number("pid").try_into().expect("a process id");
        match end {
            "TERM" => testkit::signal(pid, Signal::TERM),
            "HUP" => testkit::signal(pid, Signal::HUP),
            keys => pty.type_in(keys),
        }
        ended(&place, &mut pty, code);
        if end == "!" {
            let shown = pty.screen();
            let told = shown.find("a test asked for it").expect("the panic is told");
            assert!(shown.find(LEFT).is_some_and(|left| left < told), "on the main screen: {shown:?}");
        }
    }
}

#[test]
fn ctrl_z_gives_the_terminal_back_and_fg_takes_it_again() {
    let place = Place::new();
    let top = place.lockkeeper(&[]);
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "--noediting", "-i"]).current_dir(place.dir.path()).env_clear();
    top.get_envs().for_each(|(key, value)| _ = bash.env(key, value.unwrap_or_default()));
    let mut pty = Pty::start(bash.env("PS1", "ready> ").env("LK", env!("CARGO_BIN_EXE_lockkeeper")));
    pty.shows("ready> ");
    pty.type_in("$LK top\n");
    draws(&pty, "q quit");
    pty.type_in("\x1a");
    pty.shows("Stopped");
    assert!(pty.screen().contains(LEFT), "{:?}", pty.screen());
    pty.type_in("echo shell has it''\n");
    pty.shows("\nshell has it");
    let entered = pty.screen().matches(ENTERED).count();
    pty.type_in("fg\n");
    eventually(SOON, "it has the screen again", || pty.screen().matches(ENTERED).count() > entered);
    draws(&pty, "q quit");
    // What is typed before the shell has the terminal again would be taken for keys.
    let left = pty.screen().matches(LEFT).count();
    pty.type_in("q");
    eventually(SOON, "it has given the screen back", || pty.screen().matches(LEFT).count() > left);
    eventually(SOON, "the shell asks", || pty.screen().ends_with("ready> "));
    pty.type_in("echo co''de $?\n");
    pty.shows("code 0");
    pty.type_in("exit\n");
    pty.wait();
}

/// What was seen last stays, and the operator is told that it is old.
#[test]
fn a_store_that_goes_away_leaves_what_was_seen() {
    let place = Place::new();
    let server = testkit::RedisServer::new();
    let url = server.url();
    let mut holder = place.bare(&["run", "--ttl", "60s", "kept", "--", "sh", "-c", "echo x > started; exec sleep 100"]);
    let _holder = testkit::Proc::start(holder.env("LOCKKEEPER_STORE", &url));
    place.text("started");
    let mut pty = live(&place, &["--store", &url]);
    draws(&pty, "> kept");
    drop(server);
    draws(&pty, "as seen before; the store does not answer");
    draws(&pty, "> kept");
    pty.type_in("q");
    ended(&place, &mut pty, 0);
}
