//! A place of a test's own: a directory with a store in it, and the real program.
#![allow(dead_code, reason = "every test file uses its own part of it")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use testkit::{Ended, Proc, SOON, TempDir, found};

/// Whether the commands reach the store through a gateway: so in that program, which has the tests of other files.
pub(crate) fn through_a_gateway() -> bool {
    env!("CARGO_CRATE_NAME") == "through_a_gateway"
}

pub(crate) struct Place {
    /// Between the commands and the store, and its URL.
    gateway: Option<(Proc, String)>,
    pub(crate) dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let mut place = Self { dir: TempDir::new(), gateway: None };
        if through_a_gateway() {
            place.gateway = Some(place.serve("127.0.0.1:0", &[]));
        }
        place
    }

    /// A gateway of the store, and its URL.
    pub(crate) fn serve(&self, listen: &str, options: &[&str]) -> (Proc, String) {
        let process = self.start(&[&["serve", "--listen", listen, "--drain", "0s"], options].concat());
        let url = found(SOON, "it serves", || {
            let said = process.stderr();
            Some(said.split("serving sqlite at ").nth(1)?.split_whitespace().next()?.to_owned())
        });
        (process, url)
    }

    /// Where the commands find the store.
    pub(crate) fn store(&self) -> String {
        let direct = || format!("sqlite:{}", self.file().display());
        self.gateway.as_ref().map_or_else(direct, |(_, url)| url.clone())
    }

    /// What the commands call the store.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.gateway.is_some() { "https" } else { "sqlite" }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join("locks.db")
    }

    /// The program with its store, in the directory, with nothing of the surroundings.
    pub(crate) fn lockkeeper(&self, args: &[&str]) -> Command {
        let mut command = self.bare(args);
        command.env("LOCKKEEPER_STORE", self.store());
        command
    }

    /// The same without a store.
    pub(crate) fn bare(&self, args: &[&str]) -> Command {
        let mut command = Command::new("env");
        command.args([testkit::DEFAULT_SIGNALS, env!("CARGO_BIN_EXE_lockkeeper")]);
        command.args(args).current_dir(self.dir.path()).env_clear();
        command
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.path())
            .env("LOCKKEEPER_TEST_ETC", self.dir.join("etc"))
            .env("LOCKKEEPER_TEST_SYSTEM_DIR", self.dir.join("absent/system"));
        command
    }

    pub(crate) fn start(&self, args: &[&str]) -> Proc {
        Proc::start(&mut self.lockkeeper(args))
    }

    pub(crate) fn ends(&self, args: &[&str]) -> Ended {
        self.start(args).wait()
    }

    /// A holder whose command runs until the file `go` exists; returns once it holds.
    pub(crate) fn holder(&self, name: &str, options: &[&str]) -> Proc {
        self.holder_of(&[options, &[name]].concat())
    }

    /// As `holder`, with everything that stands before the command's `--`.
    pub(crate) fn holder_of(&self, words: &[&str]) -> Proc {
        let script =
            "echo $LOCKKEEPER_TOKEN > token; echo $$ > pid; while [ ! -e go ]; do sleep 0.01; done; date +%s%N > end";
        let args = [&["run"], words, &["--", "sh", "-c", script]].concat();
        let holder = self.start(&args);
        self.text("pid");
        holder
    }

    /// How many lines a file has.
    pub(crate) fn lines(&self, file: &str) -> usize {
        self.dir.read(file).map_or(0, |text| text.lines().count())
    }

    /// The text of a file, once it is there.
    pub(crate) fn text(&self, file: &str) -> String {
        found(SOON, file, || self.dir.read(file))
    }

    pub(crate) fn number(&self, file: &str) -> i64 {
        self.text(file).parse().expect("a number")
    }

    /// Waits until so many wait for a lock.
    pub(crate) fn until_waiting(&self, name: &str, n: u64) {
        let end = Instant::now() + SOON;
        loop {
            let shown = self.ends(&["show", name, "--json"]);
            if shown.stdout.contains(&format!("\"waiting\":{n}")) {
                return;
            }
            assert!(Instant::now() < end, "{n} never waited: {} {}", shown.stdout, shown.stderr);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A wall clock that is off, for processes that are started with it.
pub(crate) struct SkewedClock {
    dir: TempDir,
}

impl SkewedClock {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../testkit/src/clock_shim.c");
        let mut compile = Command::new("cc");
        let made = compile.args(["-shared", "-fPIC", "-O1", "-o"]).arg(dir.join("shim.so")).arg(source).status();
        assert!(made.is_ok_and(|status| status.success()), "cc makes the clock's shim: apt-get install gcc libc6-dev");
        Self { dir }
    }

    /// Lets a command and all it starts see the time so many seconds from now.
    pub(crate) fn set<'a>(&self, command: &'a mut Command, seconds: i64) -> &'a mut Command {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // A file of its own: the processes have theirs mapped.
        let file = self.dir.join(&NEXT.fetch_add(1, Ordering::Relaxed).to_string());
        std::fs::write(&file, (seconds * 1_000_000).to_ne_bytes()).expect("the directory is ours");
        command.env("LD_PRELOAD", self.dir.join("shim.so")).env("CLOCK_OFFSET_FILE", file)
    }
}

/// One sentence on stderr, nothing on stdout.
#[track_caller]
pub(crate) fn one_sentence(ended: &Ended, code: i32, part: &str) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert_eq!(ended.stdout, "", "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    assert!(ended.stderr.starts_with("lockkeeper: ") && ended.stderr.contains(part), "{part:?} is not in {ended:?}");
}

/// On a busy machine a command may wait for so long that it says so; otherwise it says nothing.
pub(crate) fn says_no_more_than_that_it_waits(ended: &Ended) -> bool {
    ended.stderr.lines().all(|line| line.starts_with("lockkeeper: waiting "))
}
