//! `lockkeeper run`, whose command is this program again.

use super::draws::Draws;
use super::{Sections, Spec, Subject, Worker};
use crate::history::{Ending, Event, Log, Op, Wanted, What, now};
use crate::register::{Client, Shown};
use crate::rig::SECRET;
use std::io;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

type Outcome = Result<(), Box<dyn std::error::Error>>;

pub(super) fn work(worker: &Worker) -> Outcome {
    let mut draws = Draws::new(worker, 0);
    while worker.goes_on() {
        let rng = draws.now(worker);
        let name = rng.choice(&worker.spec.names).cloned().unwrap_or_default();
        let op = worker.next_op();
        worker.asked(op, &name, Wanted::Exclusive, worker.spec.ttl)?;
        let pause = match worker.spec.sections {
            Sections::Long => worker.spec.ttl.mul_f64(rng.f64() * 3.0),
            _ => Duration::from_micros(rng.u64(..100_000)),
        };
        let code = run(&worker.spec, op, &name, pause)?;
        match code {
            Some(0) => worker.log(What::Ended { op, outcome: "released".into() })?,
            Some(75) => worker.log(What::Refused { op, kind: "busy".into(), said: "exit code 75".into() })?,
            other => {
                let said = format!("exit code {other:?}");
                worker.log(What::Ended { op, outcome: said })?;
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
    Ok(worker.log(What::Stopped { held: 0, releasing: 0 })?)
}

/// Runs a section under a command that locks; its exit code.
fn run(spec: &Spec, op: Op, name: &str, pause: Duration) -> io::Result<Option<i32>> {
    let seconds = |time: Duration| time.as_secs().max(1).to_string();
    let mut command = match spec.subject {
        Subject::Etcdctl => {
            let hosts: Vec<String> = spec.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
            let mut command = Command::new("etcdctl");
            command.env("ETCDCTL_API", "3").args(["--endpoints", &hosts.join(",")]);
            command.args(["lock", "--ttl", &seconds(spec.ttl), name, "--"]);
            command
        }
        Subject::Flock => {
            let file = format!("{}.{name}", spec.url.trim_start_matches("sqlite:"));
            let mut command = Command::new("flock");
            command.args(["-w", &seconds(spec.ttl * 5), "-E", "75", &file]);
            command
        }
        _ => {
            let millis = |time: Duration| format!("{}ms", time.as_millis());
            let mut command = Command::new(&spec.program);
            command.env("LOCKKEEPER_STORE", &spec.url).env("LOCKKEEPER_LOG", level(&spec.url));
            command.args(["run", "--ttl", &millis(spec.ttl), "--wait", &millis(spec.ttl * 5), name, "--"]);
            command
        }
    };
    command.stdin(Stdio::null());
    command.arg(std::env::current_exe()?).args(["section", "--name", name, "--op", &op.to_string()]);
    command.args(["--worker", &spec.worker.to_string(), "--pause-us", &pause.as_micros().to_string()]);
    command.arg("--socket").arg(&spec.socket).arg("--history").arg(&spec.history);
    Ok(command.status()?.code())
}

/// How much a `lockkeeper run` says on its standard error, where the checkers look for panics and secrets. Where there is
/// a secret it says all that it knows; elsewhere the libraries that talk to servers would say too much.
fn level(url: &str) -> &'static str {
    if url.contains(SECRET) { "debug" } else { "info" }
}

/// A command that was not run for so long, in nanoseconds, counts on its lock no more.
const PAUSED: u64 = 250_000_000;

/// What `torture section` is told.
#[derive(Debug, clap::Args)]
pub(crate) struct SectionArgs {
    #[arg(long)]
    name: String,
    #[arg(long)]
    op: Op,
    #[arg(long)]
    worker: u32,
    #[arg(long)]
    pause_us: u64,
    #[arg(long)]
    socket: std::path::PathBuf,
    #[arg(long)]
    history: std::path::PathBuf,
}

/// The command under the lock: `run` ends it when the lock is lost, so as long as it runs it counts on the lock.
pub(crate) fn section(args: &SectionArgs) -> Outcome {
    let log = Log::open(&args.history, &format!("worker-{}.jsonl", args.worker))?;
    let op = args.op;
    let says = |what: What| log.line(&Event { at: now(), what });
    // Other commands that lock give neither.
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let (token, holder) = (variable("LOCKKEEPER_TOKEN").parse().unwrap_or(0), variable("LOCKKEEPER_HOLDER"));
    says(What::Granted { op, token, holder: holder.clone(), valid_until: now() })?;
    let shown = Shown { op, name: args.name.clone(), token, holder };
    let registers = Client::connect(&args.socket)?;
    if token == 0 || registers.enter(&shown)? {
        let versions = registers.read(&shown)?;
        let end = Instant::now() + Duration::from_micros(args.pause_us);
        let mut last = now();
        while let left @ 1.. = end.saturating_duration_since(Instant::now()).as_micros() {
            thread::sleep(Duration::from_micros(u64::try_from(left).unwrap_or(0).min(20_000)));
            let at = now();
            // It may run for a moment after a pause, until it is ended: a careful command notices by itself.
            if at - last > PAUSED {
                return Ok(says(What::Lost { op, reason: "it has noticed a pause".into() })?);
            }
            last = at;
            log.line(&Event { at, what: What::Kept { op, valid_until: at } })?;
        }
        registers.write(&shown, versions)?;
    }
    Ok(says(What::Ending { op, how: Ending::Release })?)
}
