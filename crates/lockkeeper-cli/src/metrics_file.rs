//! `--metrics-file`: how the last runs went, for the textfile collector of Prometheus's node exporter.
//!
//! A command that has ended cannot be scraped, so its numbers stay in a file. The file is replaced by a rename, so that
//! the collector never reads half of it. Totals go on from the file before. A lock on `PATH.lock` keeps two runs of one
//! job from losing each other's counts.

use crate::exit::Failure;
use crate::output;
use lockkeeper::LockName;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long another run may keep `PATH.lock`: it does so for the moment of one write.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// How a run can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The command has ended with code 0.
    Ran,
    /// Another client had the lock, or has run the job.
    Busy,
    /// The command was stopped for the lock's sake.
    Lost,
    /// Everything else.
    Failed,
}

impl Outcome {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Ran, "ran"), (Self::Busy, "busy"), (Self::Lost, "lost"), (Self::Failed, "failed")];

    /// Of a command that was started, or could not be.
    pub(crate) fn of(ended: &Result<crate::supervise::Outcome, Failure>) -> Self {
        match ended {
            Ok(outcome) if outcome.stopped.is_some() => Self::Lost,
            Ok(outcome) if outcome.code() == 0 => Self::Ran,
            Err(failure) if failure.code == crate::exit::LOST => Self::Lost,
            _ => Self::Failed,
        }
    }
}

/// The gauges, in the order of the file; each is absent until it is known.
const GAUGES: [(&str, &str); 6] = [
    ("lockkeeper_run_started_timestamp_seconds", "When the command was started last"),
    ("lockkeeper_run_ended_timestamp_seconds", "When the last run ended, also one that found the lock busy"),
    ("lockkeeper_run_succeeded_timestamp_seconds", "When the command last ended with code 0"),
    ("lockkeeper_run_wait_seconds", "How long the last run waited for its lock"),
    ("lockkeeper_run_hold_seconds", "How long the last command ran"),
    ("lockkeeper_run_exit_code", "The exit code of the last run"),
];
const TOTAL: (&str, &str) = ("lockkeeper_run_total", "Runs that have ended, by outcome");
/// Where each gauge stands in `GAUGES`.
const STARTED: usize = 0;
const ENDED: usize = 1;
const SUCCEEDED: usize = 2;
const WAIT: usize = 3;
const HOLD: usize = 4;
const CODE: usize = 5;

/// What is in a file.
#[derive(Clone, Debug, Default, PartialEq)]
struct Numbers {
    gauges: [Option<f64>; GAUGES.len()],
    totals: [u64; Outcome::ALL.len()],
}

/// The file of one job; without a path it does nothing.
#[derive(Debug)]
pub(crate) struct MetricsFile {
    path: Option<PathBuf>,
    /// The label of every series.
    name: String,
    /// When the command that runs now was started.
    running: Option<Instant>,
    /// Whether an end was counted since the last start.
    counted: bool,
}

impl MetricsFile {
    /// # Errors
    /// When the collector would not read the file.
    pub(crate) fn at(path: Option<&Path>, name: &LockName) -> Result<Self, Failure> {
        if let Some(path) = path.filter(|path| path.extension().is_none_or(|end| end != "prom")) {
            let text = format!("--metrics-file {} must end with .prom: collectors read no other files", path.display());
            return Err(Failure::usage(text));
        }
        let name = name.to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        Ok(Self { path: path.map(Path::to_owned), name, running: None, counted: false })
    }

    /// The command is about to be started, after this long a wait for the lock.
    pub(crate) fn started(&mut self, waited: Option<Duration>) {
        (self.running, self.counted) = (Some(Instant::now()), false);
        self.write(|numbers| {
            numbers.gauges[STARTED] = Some(now());
            numbers.gauges[WAIT] = waited.map(|waited| waited.as_secs_f64());
        });
    }

    /// A run has ended.
    pub(crate) fn ended(&mut self, outcome: Outcome, code: u8) {
        let held = self.running.take().map(|began| began.elapsed());
        self.counted = true;
        self.write(|numbers| {
            numbers.gauges[ENDED] = Some(now());
            numbers.gauges[CODE] = Some(code.into());
            if let Some(held) = held {
                numbers.gauges[HOLD] = Some(held.as_secs_f64());
            }
            if outcome == Outcome::Ran {
                numbers.gauges[SUCCEEDED] = numbers.gauges[ENDED];
            }
            for ((known, _), total) in Outcome::ALL.iter().zip(&mut numbers.totals) {
                *total += u64::from(*known == outcome);
            }
        });
    }

    /// The program ends. What has kept a command from being started counts as failed, if it was not counted yet.
    pub(crate) fn finish(mut self, result: Result<u8, Failure>) -> Result<u8, Failure> {
        if let Err(failure) = &result
            && !self.counted
        {
            self.ended(Outcome::Failed, failure.code);
        }
        result
    }

    /// A run is worth more than its numbers: what goes wrong is said, and the run goes on.
    fn write(&self, change: impl FnOnce(&mut Numbers)) {
        let Some(path) = &self.path else { return };
        if let Err(error) = self.replace(path, change) {
            output::say(&format!("the metrics file {} was not written: {error}", path.display()));
        }
    }

    fn replace(&self, path: &Path, change: impl FnOnce(&mut Numbers)) -> io::Result<()> {
        let _locked = locked(&beside(path, ".lock"))?;
        let mut numbers = match std::fs::read(path) {
            Ok(bytes) => self.parse(&bytes).unwrap_or_else(|| {
                let text = "holds something else than the metrics of this lock: it is replaced, and totals begin anew";
                output::say(&format!("the metrics file {} {text}", path.display()));
                Numbers::default()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Numbers::default(),
            Err(error) => return Err(error),
        };
        change(&mut numbers);
        let fresh = beside(path, &format!(".{}", std::process::id()));
        // The collector is another user.
        let file = File::options().create(true).truncate(true).write(true).mode(0o644).open(&fresh);
        let written = file.and_then(|mut file| file.write_all(self.text(&numbers).as_bytes()));
        written.and_then(|()| std::fs::rename(&fresh, path)).inspect_err(|_| drop(std::fs::remove_file(&fresh)))
    }

    fn text(&self, numbers: &Numbers) -> String {
        let mut text = String::new();
        let head = |(metric, help): (&str, &str), kind| format!("# HELP {metric} {help}.\n# TYPE {metric} {kind}\n");
        for (gauge, value) in GAUGES.into_iter().zip(numbers.gauges) {
            if let Some(value) = value {
                text += &format!("{}{}{{name=\"{}\"}} {value}\n", head(gauge, "gauge"), gauge.0, self.name);
            }
        }
        text += &head(TOTAL, "counter");
        for ((_, word), total) in Outcome::ALL.iter().zip(numbers.totals) {
            text += &format!("{}{{name=\"{}\",outcome=\"{word}\"}} {total}\n", TOTAL.0, self.name);
        }
        text
    }

    /// Reads back [`text`](Self::text); `None` for anything else.
    fn parse(&self, bytes: &[u8]) -> Option<Numbers> {
        let (mut numbers, mut totals) = (Numbers::default(), 0);
        let text = std::str::from_utf8(bytes).ok()?;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ')?;
            let labels = series.split_once('{').map(|(metric, labels)| (metric, labels.strip_suffix('}')));
            let (metric, Some(labels)) = labels? else { return None };
            let more = labels.strip_prefix(&format!("name=\"{}\"", self.name))?;
            if metric == TOTAL.0 {
                let word = more.strip_prefix(",outcome=\"")?.strip_suffix('"')?;
                let at = Outcome::ALL.iter().position(|(_, known)| *known == word)?;
                (numbers.totals[at], totals) = (value.parse().ok()?, totals + 1);
            } else {
                let at = GAUGES.iter().position(|(known, _)| *known == metric).filter(|_| more.is_empty())?;
                numbers.gauges[at] = Some(value.parse().ok()?);
            }
        }
        (totals == Outcome::ALL.len()).then_some(numbers)
    }
}

/// A path in the same directory that no collector reads.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn locked(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).mode(0o644).open(path)?;
    let end = Instant::now() + PATIENCE;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(PAUSE),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(io::Error::other(format!("another process keeps {}", path.display())));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The wall clock, which is what an alert compares with.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_millis() as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_nothing_else_is() {
        let name = LockName::new("a \"b\"\\\n} 7").expect("a name");
        let file = MetricsFile::at(Some(Path::new("x.prom")), &name).expect("a path");
        let mut numbers = Numbers { totals: [1, 0, 3, u64::MAX], ..Numbers::default() };
        assert_eq!(file.parse(file.text(&numbers).as_bytes()).as_ref(), Some(&numbers));
        numbers.gauges = [Some(1_794_781_441.304), Some(0.0), Some(1.5), None, Some(1e-9), Some(76.0)];
        let text = file.text(&numbers);
        assert_eq!(file.parse(text.as_bytes()).as_ref(), Some(&numbers));
        for end in 0..text.len() - 1 {
            let part = file.parse(&text.as_bytes()[..end]);
            assert_ne!(part.as_ref(), Some(&numbers), "{end}");
        }
        let other = MetricsFile::at(None, &LockName::new("other").expect("a name")).expect("no path");
        assert_eq!(other.parse(text.as_bytes()), None);
        assert_eq!(file.parse(b""), None);
        assert_eq!(file.parse(b"\xff"), None);
    }
}
