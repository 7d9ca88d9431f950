//! The clients of `examples/http`, in other languages than Rust, at a real gateway: each holds, renews, notices a loss,
//! and is refused at the fence.

mod common;

use common::Place;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::{Proc, SOON, found};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/http");

fn python() -> Vec<PathBuf> {
    vec!["python3".into(), Path::new(EXAMPLES).join("hold.py")]
}

fn php() -> Vec<PathBuf> {
    vec!["php".into(), Path::new(EXAMPLES).join("hold.php")]
}

/// `scripts/peers` has built it.
fn go() -> Vec<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Path::new(&std::env::var_os("HOME").expect("HOME or XDG_CACHE_HOME is set")).join(".cache");
    let folder = cache.unwrap_or_else(home).join("lockkeeper/peers/go-example");
    let source = std::fs::read(Path::new(EXAMPLES).join("go/main.go")).ok();
    assert!(source.is_some() && std::fs::read(folder.join("main.go")).ok() == source, "not built: run scripts/peers");
    vec![folder.join("hold")]
}

/// A client of the gateway, and the other end of its input.
struct Client {
    process: Proc,
    input: File,
}

/// A gateway whose tokens file has one token, and the file with its secret.
fn gateway(place: &Place) -> (Proc, String) {
    let rule = ["--allow", "*=acquire,register"];
    let made = place.ends(&[&["serve", "token", "--id", "example"][..], &rule].concat()).stdout;
    let secret = made.lines().find(|line| line.starts_with("lk_example_")).expect("a secret");
    let toml = made.split_once("[[token]]").expect("lines for the file").1;
    for (file, text) in [("secret", secret), ("tokens.toml", &format!("[[token]]{toml}"))] {
        let path = place.dir.write(file, text);
        assert!(Command::new("chmod").arg("600").arg(path).status().is_ok_and(|status| status.success()));
    }
    let process = place.start(&["serve", "--listen", "127.0.0.1:0", "--drain", "0s", "--tokens", "tokens.toml"]);
    let at = found(SOON, "it serves", || {
        Some(process.stderr().split("http://").nth(1)?.split_whitespace().next()?.to_owned())
    });
    (process, format!("http://{at}"))
}

fn client(place: &Place, url: &str, program: &[PathBuf], ttl: &str) -> Client {
    assert!(Command::new("mkfifo").arg(place.dir.join("input")).status().is_ok_and(|status| status.success()));
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$@\" < input", "sh"]).args(program).args([url, "job"]);
    shell.current_dir(place.dir.path()).env("TTL_MS", ttl).env("BEARER_FILE", "secret");
    let process = Proc::start(&mut shell);
    // Waits until the client has opened its end.
    let input = File::options().write(true).open(place.dir.join("input")).expect("a pipe");
    Client { process, input }
}

impl Client {
    fn says(&self, text: &str) -> String {
        found(SOON, text, || {
            let said = self.process.stdout();
            let line = said.lines().find_map(|line| line.strip_prefix(text))?;
            // A whole line, not the beginning of one.
            said.ends_with('\n').then(|| line.trim().to_owned())
        })
    }

    fn write(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it reads");
    }
}

fn seen(place: &Place) -> serde_json::Value {
    serde_json::from_str(&place.ends(&["show", "job", "--json"]).stdout).expect("JSON")
}

#[track_caller]
fn holds_renews_and_releases(program: &[PathBuf]) {
    let place = Place::new();
    let (_gateway, url) = gateway(&place);
    let mut client = client(&place, &url, program, "6000");
    let token = client.says("token ");
    assert_eq!(seen(&place)["holders"][0]["token"].to_string(), token);
    client.write("one");
    client.says("wrote one");
    // More time is left than before: it was renewed.
    let left = || seen(&place)["holders"][0]["remaining_ms"].as_u64().unwrap_or_default();
    let mut least = left();
    found(SOON, "it renews", || {
        let now = left();
        let renewed = now > least;
        least = least.min(now);
        renewed.then_some(())
    });
    client.write("two");
    client.says("wrote two");
    drop(client.input);
    let ended = client.process.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(seen(&place)["holders"], serde_json::json!([]), "released");
}

#[track_caller]
fn notices_that_its_lock_was_broken(program: &[PathBuf]) {
    let place = Place::new();
    let (_gateway, url) = gateway(&place);
    let client = client(&place, &url, program, "6000");
    let token = client.says("token ");
    assert_eq!(place.ends(&["break", "job", "--token", &token]).code, Some(0));
    let ended = client.process.wait();
    assert_eq!((ended.code, ended.stderr.trim()), (Some(76), "lost: broken"), "{ended:?}");
}

#[track_caller]
fn is_refused_at_the_fence(program: &[PathBuf]) {
    let place = Place::new();
    let (_gateway, url) = gateway(&place);
    // It does not ask for its lock again during this test.
    let mut client = client(&place, &url, program, "300000");
    let token = client.says("token ");
    client.write("one");
    client.says("wrote one");
    assert_eq!(place.ends(&["break", "job", "--token", &token]).code, Some(0));
    // A later holder, of the same example, enters.
    std::fs::remove_file(place.dir.join("input")).expect("it was there");
    let mut later = self::client(&place, &url, program, "300000");
    let above = later.says("token ");
    later.write("later");
    later.says("wrote later");
    client.write("two");
    let ended = client.process.wait();
    let said = format!("stale: the fence has seen token {above}");
    assert_eq!((ended.code, ended.stderr.trim()), (Some(1), said.as_str()), "{ended:?}");
    assert!(!ended.stdout.contains("wrote two"));
}

#[test]
fn python_holds_renews_and_releases() {
    holds_renews_and_releases(&python());
}

#[test]
fn python_notices_that_its_lock_was_broken() {
    notices_that_its_lock_was_broken(&python());
}

#[test]
fn python_is_refused_at_the_fence() {
    is_refused_at_the_fence(&python());
}

#[test]
fn php_holds_renews_and_releases() {
    holds_renews_and_releases(&php());
}

#[test]
fn php_notices_that_its_lock_was_broken() {
    notices_that_its_lock_was_broken(&php());
}

#[test]
fn php_is_refused_at_the_fence() {
    is_refused_at_the_fence(&php());
}

#[test]
fn go_holds_renews_and_releases() {
    holds_renews_and_releases(&go());
}

#[test]
fn go_notices_that_its_lock_was_broken() {
    notices_that_its_lock_was_broken(&go());
}

#[test]
fn go_is_refused_at_the_fence() {
    is_refused_at_the_fence(&go());
}
