//! What `run` writes to stderr: JSON lines of one kind, and a reader that does not read.

mod common;

use common::Place;
use serde_json::Value;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use testkit::{Ended, Proc, SOON, eventually, found, is_alive};

/// Every line is an object of this version; their events in order.
#[track_caller]
fn objects(ended: &Ended) -> Vec<Value> {
    let read = |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
    let objects: Vec<Value> = ended.stderr.lines().map(read).collect();
    assert!(objects.iter().all(|o| o["v"] == 1 && o["time_ms"].is_u64()), "{ended:?}");
    objects
}

fn events(objects: &[Value]) -> Vec<&str> {
    objects.iter().map(|o| o["event"].as_str().unwrap_or("?")).collect()
}

#[test]
fn a_command_that_never_ran_is_not_called_started() {
    let place = Place::new();
    let plain = place.dir.write("plain", "text");
    for (command, code, kind) in
        [("no-such-command", 127, "not-found"), (plain.to_str().unwrap(), 126, "not-executable")]
    {
        let ended = place.ends(&["run", "--json", "x", "--", command]);
        let objects = objects(&ended);
        assert_eq!((ended.code, events(&objects)), (Some(code), vec!["acquired", "error", "released"]), "{ended:?}");
        assert_eq!((&objects[1]["kind"], &objects[1]["code"]), (&kind.into(), &code.into()), "{ended:?}");
        assert!(objects[1]["message"].as_str().unwrap().contains(command), "{ended:?}");
    }
}

#[test]
fn with_json_wrong_usage_is_an_object_too() {
    let place = Place::new();
    for args in [
        &["run", "--json", "--ttl", "5", "x", "--", "true"] as &[&str],
        &["run", "--json"],
        &["run", "--json", "x"],
        &["--store", "sqlite:x", "run", "x", "--json", "--bogus", "--", "true"],
        &["elect", "--json"],
        &["once", "--json", "x", "--keep", "soon", "--", "true"],
        &["cron", "x", "--json", "--", "true"],
    ] {
        let ended = place.ends(args);
        let objects = objects(&ended);
        assert_eq!((ended.code, events(&objects)), (Some(64), vec!["error"]), "{args:?}: {ended:?}");
        assert_eq!((&objects[0]["kind"], &objects[0]["code"]), (&"usage".into(), &64.into()), "{ended:?}");
    }
    // The command's own words are not ours.
    common::one_sentence(&place.ends(&["run", "-z", "x", "--", "tool", "--json"]), 64, "'-z' is not known here");
}

#[test]
fn with_json_the_log_is_made_of_objects_too() {
    let place = Place::new();
    let script = "echo $LOCKKEEPER_TOKEN > token; sleep 100";
    let mut command = place.lockkeeper(&["run", "--json", "--ttl", "2s", "x", "--", "sh", "-c", script]);
    let run = Proc::start(command.env("LOCKKEEPER_LOG", "debug"));
    assert_eq!(place.ends(&["break", "x", "--token", &place.text("token")]).code, Some(0));
    let ended = run.wait();
    let objects = objects(&ended);
    let mut told = events(&objects);
    told.retain(|event| *event != "log");
    assert_eq!((ended.code, told), (Some(76), vec!["acquired", "started", "ended"]), "{ended:?}");
    let lost = |o: &Value| o["event"] == "log" && o["message"].as_str().is_some_and(|m| m.contains("lock lost"));
    assert!(objects.iter().any(lost), "{ended:?}");
}

#[test]
fn json_has_the_exact_name() {
    let place = Place::new();
    let name = "a\\b \"c\" \x1b[2J é\u{9b}\n";
    let ended =
        place.ends(&["run", "--json", "--label", name, name, "--", "sh", "-c", "printf %s \"$LOCKKEEPER_NAME\""]);
    assert!(ended.stdout == name && !ended.stderr.contains(['\x1b', '\u{9b}']), "{ended:?}");
    for object in objects(&ended) {
        assert_eq!(object["name"], name, "{object}");
    }
    let _holder = place.holder(name, &["--label", name]);
    let shown: Value = serde_json::from_str(&place.ends(&["show", "--json", name]).stdout).unwrap();
    assert_eq!((&shown["name"], &shown["holders"][0]["label"]), (&name.into(), &name.into()));
    let listed: Value = serde_json::from_str(&place.ends(&["ls", "--json"]).stdout).unwrap();
    assert_eq!(listed["locks"][0]["name"], name);
    let broken = place.ends(&["break", "--json", "--token", "1", name]);
    assert_eq!(serde_json::from_str::<Value>(&broken.stdout).unwrap()["name"], name);
}

#[test]
fn a_name_that_is_not_utf_8_is_in_json_by_its_bytes() {
    let place = Place::new();
    let mut command = place.lockkeeper(&["show", "--json"]);
    let ended = Proc::start(command.arg(std::ffi::OsStr::from_bytes(b"a\xff"))).wait();
    let shown: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&shown["name"], &shown["name_hex"]), (&Value::Null, &"61ff".into()));
}

/// A run whose stderr is full: the command writes into it more than a pipe holds, and the test does not read.
fn with_a_full_stderr(place: &Place, options: &[&str], log: bool) -> Child {
    let script = "head -c 100000 /dev/zero >&2 & echo $$ > near
        while [ ! -e go ]; do date +%s%N > beat.tmp; mv beat.tmp beat; sleep 0.02; done; kill $!; wait";
    let args = [&["run"], options, &["job", "--", "sh", "-c", script]].concat();
    let mut command = place.lockkeeper(&args);
    if log {
        command.env("LOCKKEEPER_LOG", "trace");
    }
    let run = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    place.text("beat");
    run
}

fn nanos() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    since.as_nanos().try_into().expect("a clock before 2262")
}

fn ends(run: &mut Child) -> Option<i32> {
    found(SOON, "it ends", || run.try_wait().expect("it is ours")).code()
}

#[test]
fn a_reader_that_stalls_does_not_let_the_command_outlive_the_lease() {
    for options in [["--json", "--ttl", "3s"].as_slice(), &["--ttl", "3s"]] {
        let place = Place::new();
        let mut run = with_a_full_stderr(&place, options, false);
        let command: i32 = place.number("near").try_into().unwrap();
        let cut = nanos();
        for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
            let _ = std::fs::rename(place.dir.join(file), place.dir.join(&format!("{file}.away")));
        }
        eventually(SOON, "the command is gone", || !is_alive(command));
        let last = place.number("beat") - cut;
        assert!(last < 3_000_000_000, "{options:?}: the last sign of life came {last} ns after the store was cut");
        assert_eq!(ends(&mut run), Some(76), "{options:?}");
    }
}

#[test]
fn a_log_that_is_not_read_does_not_hold_up_renewals() {
    let place = Place::new();
    let mut run = with_a_full_stderr(&place, &["--ttl", "6s"], true);
    let files = ["locks.db", "locks.db-wal", "locks.db-shm"];
    let away = |file: &str| place.dir.join(&format!("{file}.away"));
    // Without its file the store fails a renewal, which the keeper's thread logs.
    for file in files {
        let _ = std::fs::rename(place.dir.join(file), away(file));
    }
    std::thread::sleep(Duration::from_millis(2500));
    for file in files {
        let _ = std::fs::rename(away(file), place.dir.join(file));
    }
    // Longer than the lease.
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(run.try_wait().unwrap(), None, "it runs on");
    assert_eq!(place.ends(&["run", "-n", "job", "--", "true"]).code, Some(75));
    let mut stderr = run.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        stderr.read_to_end(&mut said).map(|_| String::from_utf8_lossy(&said).into_owned())
    });
    place.dir.write("go", "");
    assert_eq!(ends(&mut run), Some(0));
    let said = reader.join().unwrap().unwrap();
    assert!(said.contains("renewal failed"), "{}", said.replace('\0', ""));
}

#[test]
fn a_reader_that_reads_misses_nothing() {
    let place = Place::new();
    let ended =
        place.ends(&["run", "--json", "x", "--", "sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' '\\n' >&2; exit 3"]);
    let told: Vec<_> = ended.stderr.lines().filter(|l| !l.is_empty()).collect();
    assert_eq!((ended.code, told.len()), (Some(3), 4), "{told:?}");
    assert!(told[3].contains("\"released\""), "{told:?}");
}
