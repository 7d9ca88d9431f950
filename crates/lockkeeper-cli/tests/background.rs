//! What a command leaves running: `run` holds the lock until it is gone, and ends it when the lock or `run` itself is lost.

mod common;

use common::Place;
use testkit::{Proc, SOON, Signal, eventually, is_alive};

/// Runs on when its parent has ended, until the file `go` exists.
const REST: &str = "(echo $$ > shell; sh -c 'echo $$ > rest; while [ ! -e go ]; do sleep 0.01; done') & exit 4";

fn pid(place: &Place, file: &str) -> i32 {
    place.number(file).try_into().expect("a process id")
}

/// Until the command itself has ended, and only what it has started is left.
fn until_only_the_rest_is_left(place: &Place) -> i32 {
    let (shell, rest) = (pid(place, "command"), pid(place, "rest"));
    eventually(SOON, "the command has ended", || !is_alive(shell));
    rest
}

fn start(place: &Place, options: &[&str], script: &str) -> Proc {
    let script = format!("echo $$ > command; {script}");
    place.start(&[&["run"], options, &["job", "--", "sh", "-c", &script]].concat())
}

#[test]
fn the_lock_is_held_until_what_the_command_started_is_gone() {
    let daemon = "setsid sh -c 'echo $$ > rest; while [ ! -e go ]; do sleep 0.01; done' & exit 4";
    for script in [REST, daemon] {
        let place = Place::new();
        let run = start(&place, &[], script);
        until_only_the_rest_is_left(&place);
        assert_eq!(place.ends(&["run", "-n", "job", "--", "true"]).code, Some(75), "{script}");
        eventually(SOON, "it says what it waits for", || run.stderr().contains("--close"));
        place.dir.write("go", "");
        let ended = run.wait();
        common::one_sentence(&ended, 4, "'job' stays held until what the command started has ended");
        assert_eq!(place.ends(&["run", "-n", "job", "--", "true"]).code, Some(0), "{script}");
    }
}

#[test]
fn with_close_the_lock_is_released_when_the_command_ends() {
    for close in ["--close", "-o"] {
        let place = Place::new();
        let run = start(&place, &[close], REST);
        assert_eq!(run.wait().code, Some(4));
        assert_eq!(place.ends(&["run", "-n", "job", "--", "true"]).code, Some(0));
        let rest = pid(&place, "rest");
        assert!(is_alive(rest), "it may go on");
        place.dir.write("go", "");
        eventually(SOON, "it ends by itself", || !is_alive(rest));
    }
}

#[test]
fn json_tells_what_is_still_running() {
    let place = Place::new();
    let run = start(&place, &["--json"], REST);
    let rest = until_only_the_rest_is_left(&place);
    eventually(SOON, "it says so", || run.stderr().contains("\"event\":\"background\""));
    assert!(run.stderr().contains(&rest.to_string()), "{}", run.stderr());
    place.dir.write("go", "");
    let ended = run.wait();
    let events: Vec<_> =
        ended.stderr.lines().filter_map(|l| l.split("\"event\":\"").nth(1)?.split('"').next()).collect();
    assert_eq!(events, ["acquired", "started", "background", "ended", "released"], "{ended:?}");
}

#[test]
fn signals_reach_what_is_left() {
    // A shell makes what it starts with & ignore INT: then Ctrl-C would end nothing.
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let place = Place::new();
        let run = start(&place, &[], REST);
        let rest = until_only_the_rest_is_left(&place);
        run.signal(signal);
        assert_eq!(run.wait().code, Some(4), "the command's own code");
        assert!(!is_alive(rest));
    }
}

#[test]
fn a_signal_that_comes_before_the_commands_end_is_reported_reaches_what_is_left() {
    let place = Place::new();
    let left = "(sh -c 'echo $$ > rest; while :; do sleep 0.01; done') &";
    let script = format!("echo $PPID > shim; {left} while [ ! -e end ]; do sleep 0.01; done; exit 4");
    let run = start(&place, &["--json"], &script);
    let (shim, rest) = (pid(&place, "shim"), pid(&place, "rest"));
    // Before that it has not said which process the command is.
    eventually(SOON, "the shim has reported the start", || run.stderr().contains("\"event\":\"started\""));
    // It cannot report while it is stopped.
    testkit::signal(shim, Signal::STOP);
    eventually(SOON, "the shim stands still", || testkit::is_stopped(shim));
    place.dir.write("end", "");
    until_only_the_rest_is_left(&place);
    run.signal(Signal::INT);
    eventually(SOON, "what is left ends", || !is_alive(rest));
    testkit::signal(shim, Signal::CONT);
    assert_eq!(run.wait().code, Some(4), "the command's own code");
}

#[test]
fn a_lost_lock_ends_what_is_left() {
    let place = Place::new();
    let run = start(&place, &["--ttl", "2s"], &format!("echo $LOCKKEEPER_TOKEN > token; {REST}"));
    let rest = until_only_the_rest_is_left(&place);
    let broken = place.ends(&["break", "job", "--token", &place.text("token")]);
    assert_eq!(broken.code, Some(0), "{broken:?}");
    let ended = run.wait();
    assert!(ended.code == Some(76) && ended.stderr.contains("was lost"), "{ended:?}");
    assert!(!is_alive(rest));
}

/// A command, one of its descendants in another session, and one whose parents are gone; `as_user` comes before both.
fn family(as_user: &str) -> String {
    let on = "while :; do sleep 0.1; done";
    format!(
        "umask 0; trap '' TERM HUP; {as_user} setsid sh -c 'echo $$ > far; {on}' &
        (setsid sh -c '({as_user} sh -c \"echo \\$\\$ > twice; {on}\") &' &)
        echo $$ > near; {on}"
    )
}

fn after_kill_9(as_user: &str) {
    let place = Place::new();
    std::fs::set_permissions(place.dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("the directory is ours");
    let run = place.start(&["run", "--ttl", "3s", "job", "--", "sh", "-c", &family(as_user)]);
    let all = ["near", "far", "twice"].map(|file| pid(&place, file));
    run.signal(Signal::KILL);
    let alive =
        format!("for pid in {} {} {}; do kill -0 $pid 2> /dev/null && echo $pid; done; true", all[0], all[1], all[2]);
    let next = place.ends(&["run", "-w", "20s", "job", "--", "sh", "-c", &alive]);
    assert_eq!(
        (next.code, next.stdout.as_str()),
        (Some(0), ""),
        "alive in the next holder's time, of {all:?}: {next:?}"
    );
}

#[test]
fn after_kill_9_of_lockkeeper_all_it_started_is_gone_before_the_lease_ends() {
    after_kill_9("");
}

/// As `sudo` does it: the kernel then forgets that the command was to die with its parent.
#[test]
fn after_kill_9_also_what_changed_its_user_is_gone() {
    if !rustix::process::geteuid().is_root() {
        return println!("only root may become another user");
    }
    after_kill_9("setpriv --reuid 65534 --clear-groups --");
}

#[test]
fn after_kill_9_a_stopped_command_is_gone_too() {
    let place = Place::new();
    let holder = place.holder("job", &[]);
    let command = pid(&place, "pid");
    testkit::signal(command, Signal::STOP);
    eventually(SOON, "it is stopped", || testkit::is_stopped(command));
    holder.signal(Signal::KILL);
    eventually(SOON, "the command is gone", || !is_alive(command));
}

#[test]
fn the_shim_between_does_not_show() {
    let place = Place::new();
    let fds = "for fd in /proc/$$/fd/*; do echo ${fd##*/}; done";
    let script = format!("cut -d' ' -f1,5 /proc/$$/stat; {fds}; kill $PPID; sleep 0.1; exit 5");
    let ended = place.ends(&["run", "--json", "x", "--", "sh", "-c", &script]);
    let (ids, inherited) = ended.stdout.split_once('\n').unwrap();
    let (pid, group) = ids.split_once(' ').unwrap();
    assert_eq!(pid, group, "the command leads its own group: {ended:?}");
    assert!(ended.stderr.contains(&format!("\"pid\":{pid},")), "{ended:?}");
    let without = Proc::start(std::process::Command::new("sh").args(["-c", fds])).wait();
    assert_eq!(inherited, without.stdout, "it inherits no descriptor of ours");
    assert_eq!(
        ended.code,
        Some(5),
        "what a control group gets ends the supervisor and the command, not the shim: {ended:?}"
    );
}

#[test]
fn when_the_shim_is_killed_the_command_ends_and_the_lock_is_released() {
    let place = Place::new();
    let script = "echo $PPID > shim; echo $$ > near; setsid sh -c 'echo $$ > far; sleep 100' & sleep 100";
    let run = place.start(&["run", "job", "--", "sh", "-c", script]);
    let all = ["near", "far"].map(|file| pid(&place, file));
    testkit::signal(pid(&place, "shim"), Signal::KILL);
    let ended = run.wait();
    assert_eq!(ended.code, Some(137), "{ended:?}");
    assert_eq!(all.map(is_alive), [false, false]);
    assert_eq!(place.ends(&["run", "-n", "job", "--", "true"]).code, Some(0));
}

/// `lockkeeper` as the first process of a new PID namespace, whose process group was made outside of it.
fn in_a_namespace(place: &Place, options: &[&str], args: &[&str]) -> Proc {
    let inner = place.lockkeeper(args);
    let mut command = std::process::Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    command.args(["--fork", "--pid", "--kill-child"]).args(options).arg(inner.get_program()).args(inner.get_args());
    command.current_dir(place.dir.path()).env_clear();
    for (key, value) in inner.get_envs() {
        command.env(key, value.unwrap_or_default());
    }
    Proc::start(&mut command)
}

#[test]
fn in_a_pid_namespace_whose_group_lies_outside_it_the_command_runs() {
    // Once with the outer /proc, which counts process ids otherwise, and once with a new one.
    for options in [&[] as &[&str], &["--mount-proc"]] {
        let place = Place::new();
        let ended = in_a_namespace(&place, options, &["run", "x", "--", "sh", "-c", "echo inside; exit 3"]).wait();
        assert_eq!(
            (ended.code, ended.stdout.as_str(), ended.stderr.as_str()),
            (Some(3), "inside\n", ""),
            "{options:?}"
        );
        let script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; touch far; while :; do sleep 0.1; done' & wait";
        let ended = in_a_namespace(&place, options, &["run", "--max-hold", "2s", "x", "--", "sh", "-c", script]).wait();
        common::one_sentence(&ended, 76, "held for almost --max-hold");
        assert!(place.dir.join("far").exists());
        let rest = "(sleep 0.3; echo rest) & exit 5";
        let ended = in_a_namespace(&place, options, &["run", "x", "--", "sh", "-c", rest]).wait();
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), "rest\n"), "{options:?}: {ended:?}");
    }
}

#[test]
fn without_proc_the_command_is_not_started() {
    if !rustix::process::geteuid().is_root() {
        return println!("only root may hide /proc");
    }
    let place = Place::new();
    let inner = place.lockkeeper(&["run", "x", "--", "echo", "ran"]);
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"]);
    command.arg(inner.get_program()).args(inner.get_args()).current_dir(place.dir.path()).env_clear();
    for (key, value) in inner.get_envs() {
        command.env(key, value.unwrap_or_default());
    }
    common::one_sentence(&Proc::start(&mut command).wait(), 71, "/proc does not show this process");
}
