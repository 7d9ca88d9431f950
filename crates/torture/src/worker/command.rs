//! `lockkeeper run`, whose command is this program again.

use super::{Spec, Worker};
use crate::history::{Ending, Event, Log, Op, Wanted, What, now};
use crate::register::{Client, Shown};
use std::io;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

type Outcome = Result<(), Box<dyn std::error::Error>>;

pub(super) fn work(worker: &Worker) -> Outcome {
    let mut rng = worker.rng(0);
    while worker.goes_on() {
        let name = rng.choice(&worker.spec.names).cloned().unwrap_or_default();
        let op = worker.next_op();
        worker.log(What::Asked { op, name: name.clone(), wanted: Wanted::Exclusive })?;
        let code = run(&worker.spec, op, &name, Duration::from_micros(rng.u64(..100_000)))?;
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

/// Runs a section under `lockkeeper run`; its exit code.
fn run(spec: &Spec, op: Op, name: &str, pause: Duration) -> io::Result<Option<i32>> {
    let seconds = |time: Duration| format!("{}ms", time.as_millis());
    let mut command = Command::new(&spec.program);
    command.env("LOCKKEEPER_STORE", &spec.url).stdin(Stdio::null());
    command.args(["run", "--ttl", &seconds(spec.ttl), "--wait", &seconds(spec.ttl * 5), name, "--"]);
    command.arg(std::env::current_exe()?).args(["section", "--op", &op.to_string()]);
    command.args(["--worker", &spec.worker.to_string(), "--pause-us", &pause.as_micros().to_string()]);
    command.arg("--socket").arg(&spec.socket).arg("--history").arg(&spec.history);
    Ok(command.status()?.code())
}

/// What `torture section` is told.
#[derive(Debug, clap::Args)]
pub(crate) struct SectionArgs {
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
    let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set: start it by `lockkeeper run`"));
    let (name, token, holder) =
        (variable("LOCKKEEPER_NAME")?, variable("LOCKKEEPER_TOKEN")?.parse()?, variable("LOCKKEEPER_HOLDER")?);
    says(What::Granted { op, token, holder: holder.clone(), valid_until: now() })?;
    let shown = Shown { op, name, token, holder };
    let mut registers = Client::connect(&args.socket)?;
    if registers.enter(&shown)? {
        let versions = registers.read(&shown)?;
        let end = Instant::now() + Duration::from_micros(args.pause_us);
        while let left @ 1.. = end.saturating_duration_since(Instant::now()).as_micros() {
            thread::sleep(Duration::from_micros(u64::try_from(left).unwrap_or(0).min(20_000)));
            let at = now();
            log.line(&Event { at, what: What::Kept { op, valid_until: at } })?;
        }
        registers.write(&shown, versions)?;
    }
    Ok(says(What::Ending { op, how: Ending::Release })?)
}
