//! What people paste: the cron lines of the README, the manual pages and the help; and one file for several users.

mod common;

use common::Place;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::{Ended, Proc, SOON, eventually, found};

fn page(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The command of each crontab line in a text: what follows the five fields.
fn cron_commands(text: &str, command: &str) -> Vec<String> {
    let is_crontab = |line: &&str| line.starts_with(['*', '0']) && line.contains(command);
    let lines = text.lines().map(str::trim).filter(is_crontab);
    lines.map(|line| line.split_whitespace().skip(5).collect::<Vec<_>>().join(" ")).collect()
}

/// Runs a line as cron does: by a shell, in an environment with next to nothing.
fn by_cron(place: &Place, line: &str) -> Ended {
    let program = Path::new(env!("CARGO_BIN_EXE_lockkeeper")).parent().expect("a directory").display().to_string();
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(place.dir.path()).env_clear();
    shell.env("HOME", place.dir.path()).env("PATH", format!("{program}:/usr/bin:/bin")).env("SHELL", "/bin/sh");
    shell
        .env("LOCKKEEPER_TEST_ETC", place.dir.join("etc"))
        .env("LOCKKEEPER_TEST_SYSTEM_DIR", place.dir.join("absent/system"));
    Proc::start(&mut shell).wait()
}

#[test]
fn cron_lines_to_paste_write_nothing_whether_they_run_or_are_busy() {
    let help = Place::new().ends(&["--help"]).stdout;
    let mut lines = 0;
    for text in [page("docs/operations.md"), help] {
        for line in cron_commands(&text, "lockkeeper run ") {
            lines += 1;
            let place = Place::new();
            let (before, _) = line.split_once(" -- ").expect("a command after --");
            let name = before.split_whitespace().last().expect("a name");
            let ran = by_cron(&place, &format!("{before} -- touch ran"));
            assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "", ""), "{line}");
            assert!(place.dir.join("ran").exists(), "{line}");
            let holder = Proc::start(&mut place.bare(&[
                "run",
                "--store",
                "local",
                name,
                "--",
                "sh",
                "-c",
                "echo in > in; while [ ! -e go ]; do sleep 0.01; done",
            ]));
            place.text("in");
            let busy = by_cron(&place, &format!("{before} -- touch ran-twice"));
            assert_eq!((busy.code, busy.stdout.as_str(), busy.stderr.as_str()), (Some(0), "", ""), "{line}");
            assert!(!place.dir.join("ran-twice").exists(), "{line}");
            place.dir.write("go", "");
            assert_eq!(holder.wait().code, Some(0));
        }
    }
    assert_eq!(lines, 2, "one in each: the search is broken");
}

#[test]
fn cron_lines_for_many_machines_run_once_and_write_nothing() {
    let help = Place::new().ends(&["--help"]).stdout;
    let mut lines = 0;
    for text in [page("README.md"), page("docs/operations.md"), page("docs/recipes/job.md"), help] {
        for line in cron_commands(&text, "lockkeeper cron ") {
            lines += 1;
            let place = Place::new();
            let (before, _) = line.split_once(" -- ").expect("a command after --");
            // The pages name a server, or a file that names one.
            let before = before.replace("--store redis://host", "");
            let store = format!("LOCKKEEPER_STORE=sqlite:{}", place.file().display());
            for _ in 0..2 {
                let ran = by_cron(&place, &format!("{store} {before} -- sh -c 'echo x >> ran'"));
                assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "", ""), "{line}");
            }
            assert_eq!(place.lines("ran"), 1, "{line}");
        }
    }
    assert_eq!(lines, 4, "one in each: the search is broken");
}

/// Two users of one group, and a directory made as docs/operations.md says. Any numbers do: a user needs no name.
const GROUP: &str = "60010";
const ANN: &str = "60001";
const BOB: &str = "60002";

struct Shared {
    place: Place,
    dir: PathBuf,
}

impl Shared {
    fn new() -> Self {
        let place = Place::new();
        let dir = place.dir.join("srv");
        let text = page("docs/operations.md");
        let steps: Vec<_> = text.lines().filter(|line| line.starts_with("install ")).collect();
        assert_eq!(steps.len(), 2, "the page shows how to make a directory and a file");
        for step in steps {
            let step = step.replace("/srv/locks", &dir.display().to_string()).replace("-g ops", &format!("-g {GROUP}"));
            assert_eq!(Proc::start(Command::new("sh").args(["-c", &step])).wait().stderr, "", "{step}");
        }
        // Where the program lies, other users may not look.
        let program = place.dir.join("lockkeeper");
        if std::fs::hard_link(env!("CARGO_BIN_EXE_lockkeeper"), &program).is_err() {
            std::fs::copy(env!("CARGO_BIN_EXE_lockkeeper"), &program).expect("the program can be copied");
        }
        Self { place, dir }
    }

    /// The program as another user, in the shared directory.
    fn command(&self, user: &str, args: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--groups", GROUP]);
        command.arg(self.place.dir.join("lockkeeper")).args(args).current_dir(&self.dir).env_clear();
        command.env("PATH", "/usr/bin:/bin").env("LOCKKEEPER_STORE", self.store());
        command
    }

    fn store(&self) -> String {
        format!("sqlite:{}/locks.db", self.dir.display())
    }

    fn start(&self, user: &str, args: &[&str]) -> Proc {
        Proc::start(&mut self.command(user, args))
    }

    /// A holder that runs until the file `go` is there.
    fn holder(&self, user: &str) -> Proc {
        let script = "echo in > in; while [ ! -e go ]; do sleep 0.01; done; rm in go";
        let holder = self.start(user, &["run", "nightly", "--", "sh", "-c", script]);
        eventually(SOON, "it holds", || {
            assert!(!holder.stderr().contains("lockkeeper: "), "{}", holder.stderr());
            self.dir.join("in").exists()
        });
        holder
    }

    fn mode(&self, file: &str) -> Option<u32> {
        Some(std::fs::metadata(self.dir.join(file)).ok()?.permissions().mode() & 0o777)
    }
}

#[test]
fn users_of_one_group_exclude_each_other_by_a_file_made_as_the_page_says() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can run programs as two other users");
        return;
    }
    let shared = Shared::new();
    // Each is the first once: SQLite's own files beside the database are made anew by who comes first.
    for (first, second) in [(ANN, BOB), (BOB, ANN), ("0", BOB), (ANN, "0")] {
        let holder = shared.holder(first);
        for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
            assert_eq!(shared.mode(file), Some(0o660), "{file} of {first}");
        }
        let busy = shared.start(second, &["run", "-n", "nightly", "--", "touch", "ran"]).wait();
        common::one_sentence(&busy, 75, "'nightly' is held by ");
        let waiter = shared.start(second, &["run", "nightly", "--", "true"]);
        found(SOON, "it waits", || {
            let shown = shared.start(second, &["show", "--json", "nightly"]).wait().stdout;
            shown.contains("\"waiting\":1").then_some(())
        });
        std::fs::write(shared.dir.join("go"), "").unwrap();
        for ended in [holder.wait(), waiter.wait()] {
            assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{first} then {second}: {ended:?}");
        }
        assert!(!shared.dir.join("ran").exists());
    }
}
