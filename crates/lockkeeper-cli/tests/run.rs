//! `run` with the real program: exclusion, hand-over, crashes, exit codes, the command's environment.

mod common;

use common::Place;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use testkit::{MysqlServer, PostgresServer, RedisServer, Signal, is_alive};

#[test]
fn the_second_of_two_exits_75_at_once_and_says_who_holds_it() {
    let place = Place::new();
    let holder = place.holder("job", &["--label", "first\none"]);
    // The holder does not end before it.
    let second = place.ends(&["run", "-n", "job", "--", "touch", "ran"]);
    common::one_sentence(&second, 75, &format!("(pid {}) \"first\\x0aone\"", holder.pid()));
    assert!(!place.dir.join("ran").exists());
    let quiet = place.ends(&["run", "-n", "--busy-code", "0", "job", "--", "touch", "ran"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(0), ""), "{quiet:?}");
    let limited = place.ends(&["run", "-w", "200ms", "job", "--", "touch", "ran"]);
    common::one_sentence(&limited, 75, "still held after 200ms");
    assert!(!place.dir.join("ran").exists());
}

#[test]
fn a_waiter_starts_soon_after_the_holder_ends() {
    let mut gaps = Vec::new();
    for _ in 0..5 {
        let place = Place::new();
        let holder = place.holder("job", &[]);
        let waiter = place.start(&["run", "-w", "10s", "job", "--", "sh", "-c", "date +%s%N > start"]);
        place.until_waiting("job", 1);
        place.dir.write("go", "");
        assert_eq!((holder.wait().code, waiter.wait().code), (Some(0), Some(0)));
        gaps.push((place.number("start") - place.number("end")) / 1000);
    }
    gaps.sort_unstable();
    println!("hand-over between two processes, command end to command start, µs: {gaps:?}");
    assert!(gaps[2] < 1_000_000, "{gaps:?}");
}

#[test]
fn after_kill_9_the_next_waiter_runs_within_the_ttl_and_a_second() {
    let place = Place::new();
    let holder = place.holder("job", &["--ttl", "2s"]);
    let command = place.number("pid");
    let waiter = place.start(&["run", "job", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN > token2"]);
    place.until_waiting("job", 1);
    let killed = Instant::now();
    holder.signal(Signal::KILL);
    assert_eq!(waiter.wait().code, Some(0));
    let gap = killed.elapsed();
    println!("hand-over after kill -9 of the holder with a TTL of 2 s: {gap:?}");
    // Ten seconds for a machine that is busy with other tests.
    assert!(gap < Duration::from_secs(2 + 1 + 10), "{gap:?}");
    assert!(!is_alive(command.try_into().unwrap()), "the command dies with its lockkeeper");
    assert!(place.number("token2") > place.number("token"));
}

#[test]
fn two_processes_racing_500_times_never_overlap() {
    let place = Place::new();
    place.dir.write("counter", "0");
    // Not atomic in any way: one lost update would show.
    let script = "[ -e inside ] && touch overlap; touch inside; n=$(cat counter); echo $((n+1)) > counter; rm inside";
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..250 {
                    let ended = place.ends(&["run", "race", "--", "sh", "-c", script]);
                    assert_eq!(ended.code, Some(0), "{ended:?}");
                }
            });
        }
    });
    assert_eq!(place.dir.read("counter").unwrap(), "500");
    assert!(!place.dir.join("overlap").exists());
}

#[test]
fn permits_and_shared_locks_let_several_in() {
    let place = Place::new();
    for options in [["--permits", "2"].as_slice(), &["--shared"]] {
        let name = options[0].trim_start_matches('-');
        let _first = place.holder(name, options);
        let second = place.ends(&[&["run", "-n"], options, &[name, "--", "true"]].concat());
        assert_eq!(second.code, Some(0), "{second:?}");
        let exclusive = place.ends(&["run", "-n", name, "--", "true"]);
        assert_eq!(exclusive.code, Some(75), "{exclusive:?}");
        std::fs::remove_file(place.dir.join("pid")).unwrap();
    }
}

#[test]
fn exit_codes_pass_through() {
    let place = Place::new();
    for (script, code) in [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)] {
        let ended = place.ends(&["run", "x", "--", "sh", "-c", script]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(code), ""), "{script}");
    }
    common::one_sentence(&place.ends(&["run", "x", "--", "no-such-command"]), 127, "'no-such-command' was not found");
    let file = place.dir.write("plain", "text");
    common::one_sentence(&place.ends(&["run", "x", "--", file.to_str().unwrap()]), 126, "cannot be executed");
}

#[test]
fn the_command_gets_its_words_and_its_output_as_they_are() {
    let place = Place::new();
    let ended = place.ends(&["run", "x", "--", "printf", "%s|", "a b", "$HOME", "--", "-n"]);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("a b|$HOME|--|-n|", ""));
}

#[test]
fn a_name_may_begin_with_a_dash() {
    let place = Place::new();
    let ended = place.ends(&["run", "-n", "--", "-dash", "--", "printenv", "LOCKKEEPER_NAME"]);
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(0), "-dash\n", ""));
    let args = ["run", "-n", "--store", "local", "--ttl", "9s", "--", "--", "--", "printenv", "LOCKKEEPER_NAME"];
    let ended = place.ends(&args);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "--\n"), "{ended:?}");
    // Only where no name stands before the first "--": the command's own words stay its own.
    let ended = place.ends(&["run", "x", "--", "printf", "--", "%s|", "a"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "a|"), "{ended:?}");
    let ended = place.ends(&["run", "", "--", "echo", "--", "ran"]);
    common::one_sentence(&ended, 64, "1 to 512 bytes");
    let holder = place.holder_of(&["--", "-held"]);
    let shown = place.ends(&["show", "--", "-held"]).stdout;
    assert!(shown.starts_with(&format!("-held ({})\n  held by ", place.scheme())), "{shown}");
    assert_eq!(place.ends(&["ls", "--", "-he"]).stdout.lines().count(), 2);
    let broken = place.ends(&["break", "--token", &place.text("token"), "--", "-held"]);
    assert_eq!(broken.code, Some(0), "{broken:?}");
    drop(holder);
}

fn variables(text: &str) -> BTreeMap<String, String> {
    let ours = text.lines().filter(|line| line.starts_with("LOCKKEEPER_") && !line.starts_with("LOCKKEEPER_TEST"));
    ours.filter_map(|line| line.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

#[test]
fn the_commands_environment_is_exact() {
    let place = Place::new();
    let old = [
        "LOCKKEEPER_TOKEN",
        "LOCKKEEPER_HOLDER",
        "LOCKKEEPER_NAME",
        "LOCKKEEPER_TTL_MS",
        "LOCKKEEPER_HELD",
        "LOCKKEEPER_STORE_FILE",
    ];
    for (options, has_token) in [(["--ttl", "20s"].as_slice(), true), (&["--shared"], false)] {
        let mut command =
            place.bare(&[&["run", "--store", "sqlite:locks.db?busy=4s"], options, &["a/b", "--", "env"]].concat());
        for variable in old {
            command.env(variable, "stale");
        }
        let ended = testkit::Proc::start(&mut command).wait();
        let seen = variables(&ended.stdout);
        let mut names: Vec<_> = seen.keys().map(String::as_str).collect();
        let token = seen.get("LOCKKEEPER_TOKEN");
        names.retain(|name| *name != "LOCKKEEPER_TOKEN");
        assert_eq!(
            names,
            ["LOCKKEEPER_HELD", "LOCKKEEPER_HOLDER", "LOCKKEEPER_NAME", "LOCKKEEPER_STORE", "LOCKKEEPER_TTL_MS"],
            "{ended:?}"
        );
        assert_eq!(token.is_some(), has_token);
        assert!(token.is_none_or(|t| t.parse::<u64>().is_ok()));
        assert_eq!(seen["LOCKKEEPER_NAME"], "a/b");
        assert_eq!(seen["LOCKKEEPER_TTL_MS"], if has_token { "20000" } else { "30000" });
        assert_eq!(seen["LOCKKEEPER_STORE"], format!("sqlite:{}?busy=4s", place.file().display()));
        assert!(seen["LOCKKEEPER_HOLDER"].len() == 32 && seen["LOCKKEEPER_HOLDER"] != "stale");
    }
}

#[test]
fn a_nested_run_of_the_same_lock_is_refused_and_of_another_works() {
    let place = Place::new();
    let us = env!("CARGO_BIN_EXE_lockkeeper");
    let nested = |name: &str| place.ends(&["run", "outer", "--", us, "run", name, "--", "echo", "inside"]);
    common::one_sentence(&nested("outer"), 64, "'outer' is already held by the lockkeeper (pid ");
    let other = nested("inner");
    assert_eq!((other.code, other.stdout.as_str()), (Some(0), "inside\n"), "{other:?}");
    // Twice removed, with a shell in between.
    let script = format!("{us} run b -- sh -c '{us} run outer -- true; exit $?'");
    common::one_sentence(&place.ends(&["run", "outer", "--", "sh", "-c", &script]), 64, "already held");
}

#[test]
fn a_nested_run_that_could_not_wait_for_itself_is_let_in() {
    let place = Place::new();
    let us = env!("CARGO_BIN_EXE_lockkeeper");
    let shared = place.ends(&["run", "-s", "x", "--", us, "run", "-s", "x", "--", "echo", "inside"]);
    assert_eq!((shared.code, shared.stdout.as_str()), (Some(0), "inside\n"), "{shared:?}");
    // An exclusive claim that came in between waits for the outer one: it must not be waited for.
    let script = format!("echo 1 > held; while [ ! -e go ]; do sleep 0.01; done; {us} run -s x -- echo inside");
    let outer = place.start(&["run", "-s", "x", "--", "sh", "-c", &script]);
    place.text("held");
    let between = place.start(&["run", "x", "--", "echo", "between"]);
    place.until_waiting("x", 1);
    place.dir.write("go", "");
    let ended = outer.wait();
    assert!(ended.code == Some(75) && ended.stderr.contains("not waited for 'x'"), "{ended:?}");
    assert_eq!(between.wait().stdout, "between\n");
    for modes in [[None, Some("-s")], [Some("-s"), None]] {
        let [outer, inner] =
            modes.map(|mode| [vec!["run", "-w", "10s"], mode.into_iter().collect(), vec!["x", "--"]].concat());
        common::one_sentence(&place.ends(&[&outer[..], &[us], &inner, &["true"]].concat()), 64, "already held");
    }
    let server = PostgresServer::new();
    let [one, two] = ["one", "two"].map(|schema| format!("{}?schema={schema}", server.url()));
    let nested = |inner: &str| {
        place.ends(&[
            "run", "--store", &one, "x", "--", us, "run", "--store", inner, "-w", "10s", "x", "--", "echo", "inside",
        ])
    };
    let other = nested(&two);
    assert_eq!((other.code, other.stdout.as_str()), (Some(0), "inside\n"), "{other:?}");
    let same = nested(&format!("{one}&application_name=nested"));
    common::one_sentence(&same, 64, "already held");
}

#[test]
fn without_a_ttl_the_longest_that_the_store_allows_is_taken() {
    let place = Place::new();
    let servers: Vec<RedisServer> =
        (0..3).map(|_| RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"])).collect();
    let nodes: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let store = format!("redlock://{}?max_ttl=20s", nodes.join(","));
    let command = ["--", "sh", "-c", "echo $LOCKKEEPER_TTL_MS"];
    let ended = place.ends(&[&["run", "--store", &store, "x"], &command[..]].concat());
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "20000\n"), "{ended:?}");
}

#[test]
fn json_lines_tell_of_each_step() {
    let place = Place::new();
    let ended = place.ends(&["run", "--json", "x", "--", "sh", "-c", "exit 3"]);
    let events: Vec<_> =
        ended.stderr.lines().map(|l| l.split("\"event\":\"").nth(1).unwrap().split('"').next().unwrap()).collect();
    assert_eq!((ended.code, events), (Some(3), vec!["acquired", "started", "ended", "released"]), "{ended:?}");
    assert!(ended.stderr.lines().all(|l| l.contains("\"v\":1") && l.starts_with('{')), "{ended:?}");
    let local = testkit::Proc::start(&mut place.bare(&["run", "--json", "x", "--", "true"])).wait();
    assert!(local.stderr.lines().all(|l| l.starts_with('{')) && local.stderr.contains("\"notice\""), "{local:?}");
    let wrong = place.ends(&["run", "--json", "--ttl", "1ms", "x", "--", "true"]);
    assert_eq!(wrong.code, Some(78));
    assert!(wrong.stderr.contains("\"kind\":\"invalid-config\"") && wrong.stderr.contains("\"code\":78"), "{wrong:?}");
}

#[test]
fn a_lock_with_a_long_ttl_that_was_handed_over_is_not_in_danger() {
    let place = Place::new();
    let holder = place.holder("job", &[]);
    // A lease just handed over lasts 10 s: less than the sixth of this TTL that would end the command.
    let waiter = place.start(&["run", "--ttl", "90s", "job", "--", "sh", "-c", "sleep 0.2; exit 4"]);
    place.until_waiting("job", 1);
    place.dir.write("go", "");
    assert_eq!(holder.wait().code, Some(0));
    let ended = waiter.wait();
    assert_eq!(ended.code, Some(4), "{ended:?}");
}

/// The first try meets a connection that the server has closed; the second one is as good.
#[test]
fn a_release_that_takes_two_tries_is_no_failure() {
    let (place, server) = (Place::new(), MysqlServer::new());
    let holder = place.holder("job", &["--store", &server.url(), "--ttl", "1h"]);
    let ours = "FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db = 'test'";
    for id in server.sql(&format!("SELECT id {ours}")).lines() {
        server.sql(&format!("KILL {id}"));
    }
    place.dir.write("go", "");
    let ended = holder.wait();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let next = place.ends(&["run", "--store", &server.url(), "-n", "job", "--", "true"]);
    assert_eq!(next.code, Some(0), "{next:?}");
}
