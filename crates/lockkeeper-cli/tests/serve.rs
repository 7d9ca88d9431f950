//! `serve`, and the other commands through it.

mod common;

use common::{Place, one_sentence};
use std::process::Command;
use testkit::{Ended, Proc, SOON, Signal, eventually, found};

/// A gateway of the place's own store, on a port that the system chooses; its URL.
fn gateway(place: &Place, options: &[&str]) -> (Proc, String) {
    place.serve("127.0.0.1:0", options)
}

fn through(place: &Place, url: &str, args: &[&str]) -> Proc {
    Proc::start(place.bare(args).env("LOCKKEEPER_STORE", url))
}

fn ends(place: &Place, url: &str, args: &[&str]) -> Ended {
    through(place, url, args).wait()
}

#[test]
fn commands_behave_as_on_the_store_itself() {
    let place = Place::new();
    let (_gateway, url) = gateway(&place, &[]);
    let script = "echo $LOCKKEEPER_TOKEN > token; while [ ! -e go ]; do sleep 0.01; done";
    let holder = through(&place, &url, &["run", "--label", "far", "x", "--", "sh", "-c", script]);
    let token = place.text("token");
    // One world with the direct store.
    let direct = place.ends(&["show", "x"]);
    assert!(direct.stdout.contains(&token) && direct.stdout.contains("\"far\""), "{direct:?}");
    one_sentence(&place.ends(&["run", "-n", "x", "--", "true"]), 75, "held by");
    one_sentence(&ends(&place, &url, &["run", "-n", "x", "--", "true"]), 75, "held by");
    assert!(ends(&place, &url, &["ls"]).stdout.contains(&token));
    assert!(ends(&place, &url, &["show", "x", "--json"]).stdout.contains(&format!("\"token\":{token}")));
    let waiter = through(&place, &url, &["run", "x", "--", "true"]);
    place.until_waiting("x", 1);
    place.dir.write("go", "");
    assert_eq!((holder.wait().code, waiter.wait().code), (Some(0), Some(0)));
    // Broken through the gateway: the command is stopped.
    for file in ["go", "token"] {
        std::fs::remove_file(place.dir.join(file)).expect("it was there");
    }
    let held = place.holder("y", &[]);
    let token = place.text("token");
    one_sentence(&ends(&place, &url, &["break", "y", "--token", "1"]), 1, "");
    assert_eq!(ends(&place, &url, &["break", "y", "--token", &token]).code, Some(0));
    assert_eq!(held.wait().code, Some(76));
}

#[test]
fn a_gateway_that_is_killed_takes_no_lock_with_it() {
    let place = Place::new();
    let listen = format!("127.0.0.1:{}", testkit::free_port());
    let (first, url) = place.serve(&listen, &[]);
    let script = "echo x > started; while [ ! -e go ]; do sleep 0.01; done";
    let holder = through(&place, &url, &["run", "--ttl", "20s", "x", "--", "sh", "-c", script]);
    place.text("started");
    drop(first);
    let left = || {
        let object: serde_json::Value =
            serde_json::from_str(&place.ends(&["show", "x", "--json"]).stdout).expect("JSON");
        object["holders"][0]["remaining_ms"].as_u64().expect("it is held")
    };
    let before = left();
    let (_second, _) = place.serve(&listen, &[]);
    // Its lease has more time left than it had: it was renewed through the new one.
    eventually(SOON, "it is renewed", || left() > before);
    one_sentence(&place.ends(&["run", "-n", "x", "--", "true"]), 75, "held by");
    place.dir.write("go", "");
    assert_eq!(holder.wait().code, Some(0));
}

#[test]
fn mistakes_are_told_in_a_sentence_before_anything_is_served() {
    let place = Place::new();
    let tokens = place.dir.write("tokens.toml", "");
    let tokens = tokens.to_str().expect("UTF-8");
    for (args, code, says) in [
        (&["serve", "--listen", "0.0.0.0:0"][..], 78, "--tls-cert and --tls-key are needed"),
        (&["serve", "--tls-cert", "x"], 64, "--tls-key"),
        (&["serve", "--tls-cert", "/nowhere", "--tls-key", "/nowhere"], 78, "cannot be read"),
        (&["serve", "--tokens", "/nowhere"], 78, "cannot be read"),
        (&["serve", "--tokens", tokens], 77, "other users can read"),
        (&["serve", "--listen", "here"], 64, "--listen"),
        (&["serve", "--store", "memory:"], 78, "lives inside one process"),
        (&["serve", "--store", "redis://127.0.0.1:1"], 69, "nothing listens"),
        (&["serve", "--audit", "/nowhere/x"], 78, "cannot be written"),
        (&["serve", "token", "--id", "a b", "--allow", "x=read"], 78, "letters, digits"),
        (&["serve", "token", "--id", "a", "--allow", "x=fly"], 64, "not a verb"),
        (&["serve", "token", "--id", "a", "--allow", "x=read", "--expires", "soon"], 78, "2027-06-01"),
    ] {
        one_sentence(&place.ends(args), code, says);
    }
}

#[test]
fn a_token_that_was_made_opens_the_gateway_and_one_that_was_taken_out_does_not() {
    let place = Place::new();
    let made = place.ends(&["serve", "token", "--id", "ci", "--allow", "ci/=acquire,read"]).stdout;
    let secret = made.lines().find(|line| line.starts_with("lk_ci_")).expect("a secret").to_owned();
    let toml = made.split_once("[[token]]").expect("lines for the file").1;
    let file = place.dir.write("tokens.toml", &format!("[[token]]{toml}"));
    let chmod = Command::new("chmod").arg("600").arg(&file).status().expect("chmod");
    assert!(chmod.success());
    let (gateway, url) = gateway(&place, &["--tokens", file.to_str().expect("UTF-8")]);
    let allowed = url.replace("http://", &format!("http://:{secret}@"));
    assert_eq!(ends(&place, &allowed, &["run", "ci/x", "--", "true"]).code, Some(0));
    one_sentence(&ends(&place, &allowed, &["run", "prod", "--", "true"]), 77, "does not allow");
    one_sentence(&ends(&place, &url, &["run", "ci/x", "--", "true"]), 77, "needs a token");
    std::fs::write(&file, "").expect("ours");
    eventually(SOON, "the file is read again", || ends(&place, &allowed, &["ls"]).code == Some(77));
    let said = gateway.stderr();
    assert!(!said.contains(&secret), "{said}");
}

/// A balancer is told first; a second signal ends the wait.
#[test]
fn it_says_that_it_is_about_to_end() {
    let place = Place::new();
    let gateway = place.start(&["serve", "--listen", "127.0.0.1:0", "--drain", "1h"]);
    let url =
        found(SOON, "it serves", || Some(gateway.stderr().split("at ").nth(1)?.split_whitespace().next()?.to_owned()));
    let ready = || {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", &format!("{url}/readyz")]);
        Proc::start(&mut curl).wait().stdout
    };
    assert_eq!(ready(), "200");
    gateway.signal(Signal::TERM);
    eventually(SOON, "it says so", || ready() == "503");
    assert_eq!(ends(&place, &url, &["run", "x", "--", "true"]).code, Some(0), "it still serves");
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait().code, Some(0));
}

#[test]
fn it_ends_when_it_is_told_to() {
    let place = Place::new();
    for signal in [Signal::TERM, Signal::INT] {
        let (gateway, url) = gateway(&place, &[]);
        gateway.signal(signal);
        let ended = gateway.wait();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        one_sentence(&ends(&place, &url, &["ls"]), 69, "nothing listens");
    }
}

/// The script of docs/server.md, as it stands there.
#[test]
fn the_script_of_the_page_holds_renews_loses_fences_and_releases() {
    let place = Place::new();
    let (_gateway, url) = gateway(&place, &[]);
    let page = include_str!("../../../docs/server.md");
    let script =
        page.split("serve.rs -->\n```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a script");
    place.dir.write("script.sh", script);
    let run = |work: &str| {
        let file = place.dir.write("deploy.sh", &format!("#!/bin/sh\n{work}\n"));
        assert!(Command::new("chmod").arg("+x").arg(file).status().expect("chmod").success());
        let mut command = Command::new("bash");
        command.arg("script.sh").current_dir(place.dir.path()).env("URL", &url).env("EVERY", "0.2");
        Proc::start(&mut command)
    };
    let break_it = || {
        let shown = place.ends(&["show", "deploy"]);
        assert!(shown.stdout.contains("\"release 7\""), "{shown:?}");
        let token = shown.stdout.split("token").nth(1).and_then(|rest| rest.split_whitespace().next());
        assert_eq!(place.ends(&["break", "deploy", "--token", token.expect("a token")]).code, Some(0));
    };
    let holder = run("echo $$ > lost; while [ ! -e go ]; do sleep 0.01; done");
    place.text("lost");
    // Broken by an operator: the next renewal is refused, and the work is stopped.
    break_it();
    let ended = holder.wait();
    assert_ne!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("410"), "the renewal says that it is lost: {ended:?}");

    // The script is paused, and its work goes on meanwhile.
    let paused = run("echo $$ > paused; while [ ! -e go ]; do sleep 0.01; done; echo done > finished");
    place.text("paused");
    paused.signal(Signal::STOP);
    break_it();
    place.dir.write("go", "");
    place.text("finished");
    // A later holder is left alone: it finishes, writes and releases.
    let ended = run("echo done > later").wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    paused.signal(Signal::CONT);
    let ended = paused.wait();
    assert_ne!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("\"stale\""), "the fence refuses the earlier holder: {ended:?}");
    assert_eq!(place.ends(&["ls"]).stdout, "");
}
