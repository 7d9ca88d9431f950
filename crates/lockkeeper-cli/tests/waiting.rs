//! What `run` says while it waits, and when it does not get the lock.

mod common;

use common::Place;
use std::process::Command;
use testkit::{PostgresServer, Pty, SOON, eventually};

/// A program on a terminal of so many columns.
fn on_screen(command: &Command, columns: u16) -> Pty {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("stty cols {columns}; exec \"$@\""), "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        shell.env(key, value.unwrap_or_default());
    }
    Pty::start(shell.current_dir(command.get_current_dir().expect("a place")))
}

#[test]
fn the_waiting_line_fits_80_columns_with_place_pid_and_label() {
    let place = Place::new();
    let holder = place.holder("job", &["--label", "nightly build"]);
    let pty = on_screen(&place.lockkeeper(&["run", "job", "--", "true"]), 80);
    pty.shows(" for 'job' (1st in line), held ");
    pty.shows(&format!("(pid {}) \"nightly build\"", holder.pid()));
    assert!(!pty.screen().contains(" left"), "the lease's end reads as the end of the wait: {:?}", pty.screen());
}

#[test]
fn a_long_name_gives_way_to_who_holds_it() {
    let place = Place::new();
    let name = format!("billing/{}", "x".repeat(200));
    let holder = place.holder(&name, &["--label", "nightly build"]);
    let pty = on_screen(&place.lockkeeper(&["run", &name, "--", "true"]), 80);
    pty.shows(&format!("(pid {}) ", holder.pid()));
    pty.shows("\"nightly");
    pty.shows("for 'billing…'");
    for line in pty.screen().split("\r\x1b[K").skip(1) {
        assert!(line.chars().count() < 80, "{line:?}");
    }
}

#[test]
fn waiting_says_who_holds_it_after_a_second() {
    let place = Place::new();
    let holder = place.holder("job", &["--label", "nightly build"]);
    let waiter = place.start(&["run", "job", "--", "true"]);
    let who = format!("(pid {}) \"nightly build\"\n", holder.pid());
    eventually(SOON, "it says so", || waiter.stderr().ends_with(&who));
    assert!(waiter.stderr().contains(" for 'job' (1st in line), held "), "{}", waiter.stderr());
    let second = place.start(&["run", "job", "--", "true"]);
    eventually(SOON, "it says so", || second.stderr().contains("(2nd in line)"));
    place.dir.write("go", "");
    assert_eq!((waiter.wait().code, second.wait().code), (Some(0), Some(0)));
}

#[test]
fn busy_says_how_the_lock_is_held() {
    let place = Place::new();
    let permit: &[&str] = &["--permits", "1"];
    for (holding, asking, manner) in
        [(permit, permit, " as a permit of 1"), (&["--shared"], &[], " shared"), (&[], &[], "")]
    {
        let holder = place.holder("job", holding);
        let busy = place.ends(&[&["run", "-n"], asking, &["job", "--", "true"]].concat());
        common::one_sentence(&busy, 75, &format!("'job' is held{manner} by "));
        assert!(busy.stderr.contains(&format!("(pid {})", holder.pid())), "{busy:?}");
        let limited = place.ends(&[&["run", "-w", "1s"], asking, &["job", "--", "true"]].concat());
        common::one_sentence(&limited, 75, &format!("'job' is still held{manner} after 1.0s by "));
        place.dir.write("go", "");
        assert_eq!(holder.wait().code, Some(0));
        for file in ["go", "pid"] {
            std::fs::remove_file(place.dir.join(file)).unwrap();
        }
    }
}

#[test]
fn a_store_that_goes_away_while_waiting_is_told_and_so_is_its_return() {
    let (place, mut server) = (Place::new(), PostgresServer::new());
    let url = server.url();
    // Longer than the store is away: the holder keeps its lock.
    let holder = place.holder("job", &["--store", &url, "--ttl", "10m"]);
    let waiter = place.start(&["run", "--store", &url, "--ttl", "10m", "job", "--", "true"]);
    eventually(SOON, "it waits", || waiter.stderr().contains(" for 'job' (1st in line), held "));
    server.kill();
    eventually(SOON, "it says so", || waiter.stderr().contains(" for 'job'; the store does not answer: postgres: "));
    server.start();
    eventually(SOON, "it says so", || waiter.stderr().contains("the store answers again after "));
    place.dir.write("go", "");
    let ended = waiter.wait();
    assert_eq!((ended.code, holder.wait().code), (Some(0), Some(0)), "{ended:?}");
}
