//! Wrong input of every kind: one clear sentence, the right exit code, the command not started.

mod common;

use common::{Place, one_sentence};
use std::os::unix::ffi::OsStrExt;
use testkit::{Proc, RedisServer};

#[test]
fn wrong_command_lines() {
    let place = Place::new();
    let long = "x".repeat(600);
    // The name fits, and with the recipe's own part in front it does not.
    let near = "x".repeat(510);
    let value = "x".repeat(5000);
    for (args, code, part) in [
        (vec![], 64, "say what to do"),
        (vec!["dance"], 64, "'dance' is not a command"),
        (
            vec!["rnu", "x", "--", "touch", "ran"],
            64,
            "'rnu' is not a command (did you mean 'run'?); known are run, elect",
        ),
        (vec!["fence", "instal"], 64, "did you mean 'install'?"),
        (vec!["store", "inti"], 64, "did you mean 'init'?"),
        (
            vec!["run", "--stor", "local", "x", "--", "touch", "ran"],
            64,
            "'--stor' is not known here (did you mean '--store'?)",
        ),
        (vec!["ls", "--jsn"], 64, "did you mean '--json'?"),
        (vec!["completions", "bahs"], 64, "did you mean 'bash'?"),
        (vec!["man", "rnu"], 64, "did you mean 'run'?"),
        (vec!["run", "--store", "redid://h", "x", "--", "touch", "ran"], 78, "did you mean redis://HOST?"),
        (
            vec!["run", "--store", "postgre://h/d", "x", "--", "touch", "ran"],
            78,
            "did you mean postgres://HOST/DATABASE?",
        ),
        (vec!["run", "--store", "sqlite3:x.db", "x", "--", "touch", "ran"], 78, "did you mean sqlite:PATH?"),
        // What flock(1) has taught.
        (vec!["run", "-n", "x", "-c", "touch ran"], 64, "write: lockkeeper run NAME -- sh -c 'CMD'"),
        (vec!["run", "-n", "-E", "0", "x", "--", "touch", "ran"], 64, "write: --busy-code N"),
        (vec!["run", "-x", "x", "--", "touch", "ran"], 64, "'-x' is not needed: a lock is exclusive without --shared"),
        (
            vec!["run", "-n", "-dash", "--", "touch", "ran"],
            64,
            "a name that begins with a dash goes after --: lockkeeper run -- -dash -- CMD…",
        ),
        (vec!["show", "-dash"], 64, "goes after --: lockkeeper show -- -dash"),
        (vec!["run", "--", "touch", "ran"], 64, "the lock name is missing; write: lockkeeper run NAME -- CMD…"),
        (vec!["run", "--", "x", "--"], 64, "write: lockkeeper run NAME -- CMD…"),
        (vec!["run"], 64, "a lock name and a command are missing"),
        (vec!["run", "x"], 64, "the command is missing"),
        (vec!["run", "x", "--"], 64, "the command is missing"),
        (vec!["run", "x", "touch", "ran"], 64, "the command goes after --"),
        (vec!["run", "-z", "x", "--", "touch", "ran"], 64, "'-z' is not known here"),
        (vec!["elect", "--", "touch", "ran"], 64, "the lock name is missing; write: lockkeeper elect NAME -- CMD…"),
        (vec!["elect", "x", "touch", "ran"], 64, "the command goes after --: lockkeeper elect NAME -- CMD…"),
        (vec!["elect", "--restart", "alwys", "x", "--", "touch", "ran"], 64, "did you mean 'always'?"),
        (vec!["elect", "-n", "-dash", "--", "touch", "ran"], 64, "lockkeeper elect -- -dash -- CMD…"),
        (vec!["elect", "--value", &value, "x", "--", "touch", "ran"], 78, "at most 4096"),
        (vec!["elect", "", "--", "touch", "ran"], 64, "it must have 1 to 512 bytes"),
        (vec!["leader"], 64, "<NAME> is missing"),
        (vec!["leader", ""], 64, "it must have 1 to 512 bytes"),
        (vec!["once"], 64, "a key and a command are missing; write: lockkeeper once KEY -- CMD…"),
        (vec!["once", "x", "--"], 64, "the command is missing; write: lockkeeper once KEY -- CMD…"),
        (vec!["once", "--on-failure", "kep", "x", "--", "touch", "ran"], 64, "did you mean 'keep'?"),
        (vec!["once", "--keep", "0", "x", "--", "touch", "ran"], 78, "a result is kept for 1ms to 3650d"),
        (vec!["cron", "--every", "5m", "x", "touch", "ran"], 64, "the command goes after --: lockkeeper cron"),
        (vec!["cron", "--every", "5m", "", "--", "touch", "ran"], 64, "it must have 1 to 512 bytes"),
        (vec!["cron", "--every", "5m", &near, "--", "touch", "ran"], 64, "514 bytes"),
        (vec!["history", "-dash"], 64, "goes after --: lockkeeper history -- -dash"),
        (vec!["run", "--shared", "--permits", "3", "x", "--", "touch", "ran"], 64, "cannot be used together with"),
        (vec!["run", "-n", "-w", "1s", "x", "--", "touch", "ran"], 64, "cannot be used together with"),
        (vec!["run", "-n", "-n", "x", "--", "touch", "ran"], 64, "--nonblock is given twice"),
        (vec!["run", "--ttl", "1s", "--ttl", "2s", "x", "--", "touch", "ran"], 64, "--ttl <DURATION> is given twice"),
        (vec!["run", "--permits", "0", "x", "--", "touch", "ran"], 64, "--permits"),
        (vec!["run", "--busy-code", "256", "x", "--", "touch", "ran"], 64, "--busy-code"),
        (vec!["run", "--wait"], 64, "needs a value"),
        (vec!["run", "", "--", "touch", "ran"], 64, "it must have 1 to 512 bytes"),
        (vec!["run", &long, "--", "touch", "ran"], 64, "600 bytes"),
        (vec!["run", "-w", "10", "x", "--", "touch", "ran"], 64, "the unit is missing"),
        (vec!["run", "--ttl", "soon", "x", "--", "touch", "ran"], 64, "is not a duration"),
        (vec!["run", "--ttl", "0", "x", "--", "touch", "ran"], 78, "sqlite allows 50ms to 30d"),
        (vec!["run", "--ttl", "1ms", "x", "--", "touch", "ran"], 78, "ttl 1ms is out of range"),
        (vec!["run", "--ttl", "1000000000000s", "x", "--", "touch", "ran"], 78, "out of range"),
        (vec!["run", "--max-hold", "0", "x", "--", "touch", "ran"], 78, "max_hold 0s is too short"),
        (vec!["run", "--max-hold", "1ms", "x", "--", "touch", "ran"], 78, "sqlite needs at least 50ms"),
        (vec!["run", "--label", &long, "x", "--", "touch", "ran"], 78, "at most 200"),
        (vec!["run", "--store", "memory:", "x", "--", "touch", "ran"], 78, "would exclude no other process"),
        (vec!["run", "--store", "mongo://x", "x", "--", "touch", "ran"], 78, "known are memory:[NAME], sqlite:PATH"),
        (vec!["run", "--store", "what", "x", "--", "touch", "ran"], 78, "begins with its scheme"),
        (vec!["run", "--store", "sqlite:a.db?bussy=1s", "x", "--", "touch", "ran"], 78, "known are busy"),
        (vec!["run", "--store", "", "x", "--", "touch", "ran"], 78, "--store is empty"),
        (vec!["show", ""], 64, "1 to 512"),
        (vec!["break", "x"], 64, "--token <N> is missing; `lockkeeper show NAME` prints it"),
        (vec!["break", "x", "--token", "abc"], 64, "a token is a whole number"),
        (vec!["store"], 64, "lockkeeper store init"),
        (vec!["store", "dance"], 64, "known are store init"),
        (vec!["store", "init", "a:", "--store", "b:"], 64, "cannot be used together with"),
        (vec!["--store", "b:", "store", "init", "a:"], 64, "cannot be used together with"),
        (vec!["store", "init", "what"], 78, "begins with its scheme"),
        (vec!["completions", "cobol"], 64, "is not one of bash"),
        (vec!["man", "dance"], 64, "'dance' is not one of run, elect"),
    ] {
        let ended = place.ends(&args);
        one_sentence(&ended, code, part);
    }
    assert!(!place.dir.join("ran").exists());
}

#[test]
fn names_that_move_cursors_are_escaped() {
    let place = Place::new();
    let mut command = place.lockkeeper(&["show"]);
    let ended = Proc::start(command.arg(std::ffi::OsStr::from_bytes(b"a\x1b[2J\n\xff"))).wait();
    assert_eq!(ended.code, Some(0));
    assert!(ended.stdout.contains("a\\x1b[2J\\x0a\\xff") && !ended.stdout.contains('\x1b'), "{ended:?}");
    let wrong = place.ends(&["run", "x", "\x1b[2J"]);
    assert!(wrong.code == Some(64) && !wrong.stderr.contains('\x1b'), "{wrong:?}");
}

#[test]
fn a_place_that_cannot_hold_the_file_is_named() {
    let place = Place::new();
    place.dir.write("file", "");
    let run = |store: &str| place.ends(&["run", "--store", store, "x", "--", "true"]);
    for store in ["sqlite:file/locks.db", "sqlite:absent/locks.db", "sqlite:/proc/locks.db", "sqlite:."] {
        let ended = run(store);
        assert!([69, 70, 77, 78].contains(&ended.code.unwrap()), "{store}: {ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{store}: {ended:?}");
        println!("{store}: {} {}", ended.code.unwrap(), ended.stderr.trim());
    }
    place.dir.write("notes.db", "this is not a database, but some notes of mine\n");
    let foreign = run("sqlite:notes.db");
    assert_eq!(foreign.code, Some(70), "{foreign:?}");
}

#[test]
fn without_a_home_the_local_store_has_no_place() {
    let place = Place::new();
    for args in [&["run", "x", "--", "true"] as &[&str], &["ls", "--store", "local"]] {
        let ended = Proc::start(place.bare(args).env_remove("HOME")).wait();
        one_sentence(&ended, 78, "neither HOME nor XDG_STATE_HOME is set");
    }
}

#[test]
fn a_wrong_config_is_named_with_its_file() {
    let place = Place::new();
    place.dir.write("etc/lockkeeper/config.toml", "stroe = 'sqlite:x'\n");
    let ended = Proc::start(&mut place.bare(&["ls"])).wait();
    one_sentence(&ended, 78, "etc/lockkeeper/config.toml");
    assert!(ended.stderr.contains("stroe") && ended.stderr.contains("the only key is store"), "{ended:?}");
    let ended = Proc::start(place.bare(&["ls"]).env("LOCKKEEPER_STORE_FILE", "absent")).wait();
    one_sentence(&ended, 78, "does not exist");
}

#[test]
fn a_secret_never_shows() {
    let place = Place::new();
    for url in ["redis://me:hunter2@host/0", "sqlite:a.db?password=hunter2", "mongo://me:hunter2@h", "hunter2"] {
        for args in [&["run", "x", "--", "env"] as &[&str], &["run", "--json", "x", "--", "env"], &["ls"]] {
            let ended = Proc::start(place.bare(args).env("LOCKKEEPER_STORE", url)).wait();
            assert_ne!(ended.code, Some(0), "{url}");
            assert!(!format!("{ended:?}").contains("hunter2"), "{url}: {ended:?}");
        }
    }
}

/// The commands that need registers.
const RECIPES: [&[&str]; 5] = [
    &["elect", "x", "--", "touch", "ran"],
    &["once", "x", "--", "touch", "ran"],
    &["cron", "--every", "5m", "x", "--", "touch", "ran"],
    &["leader", "x"],
    &["history", "x"],
];

#[test]
fn a_store_without_registers_names_one_that_has_them() {
    let place = Place::new();
    let servers: Vec<RedisServer> =
        (0..3).map(|_| RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"])).collect();
    let nodes: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let url = format!("redlock://{}?max_ttl=20s", nodes.join(","));
    for args in RECIPES {
        let ended = Proc::start(place.bare(args).env("LOCKKEEPER_STORE", &url)).wait();
        one_sentence(&ended, 64, "needs registers");
        assert!(ended.stderr.contains("redis://"), "{ended:?}");
    }
    assert!(!place.dir.join("ran").exists());
}

#[test]
fn a_store_that_is_down_is_told_at_once() {
    let place = Place::new();
    let url = format!("redis://127.0.0.1:{}", testkit::free_port());
    for args in RECIPES.iter().chain(&[&["run", "x", "--also", "y", "--", "touch", "ran"] as &[&str]]) {
        let ended = Proc::start(place.bare(args).env("LOCKKEEPER_STORE", &url)).wait();
        one_sentence(&ended, 69, "redis");
    }
    assert!(!place.dir.join("ran").exists());
}
