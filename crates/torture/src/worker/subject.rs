//! Other lock clients under the same faults, on the same naked register. They have no token, so no fence protects them.

use super::Worker;
use super::draws::Draws;
use super::section::{Plan, work_without_a_token};
use crate::history::{Ending, Wanted, What, now};
use crate::register::{Client, Shown};
use crate::rig::{Mode, SECRET};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Which client takes the locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Subject {
    /// Ours.
    #[default]
    Lockkeeper,
    /// redis-py's `Lock`, on redis1.
    RedisPy,
    /// node-redlock, on redlock5.
    NodeRedlock,
    /// rslock, on redlock5.
    Rslock,
    /// `etcdctl lock`, on etcd3.
    Etcdctl,
    /// `flock`, on a file beside that of sqlite.
    Flock,
}

impl Subject {
    /// Whether it knows the servers of a mode.
    pub(crate) fn knows(self, mode: Mode) -> bool {
        match self {
            Self::Lockkeeper => true,
            Self::RedisPy => mode == Mode::Redis1,
            Self::NodeRedlock | Self::Rslock => mode == Mode::Redlock5,
            Self::Etcdctl => mode == Mode::Etcd3,
            Self::Flock => mode == Mode::Sqlite,
        }
    }
}

/// A client in a process of its own that takes orders.
struct Peer {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Peer {
    fn start(command: &mut Command) -> io::Result<Self> {
        command.env("REDIS_PASSWORD", SECRET).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let (orders, answers) = (process.stdin.take(), process.stdout.take());
        let (Some(orders), Some(answers)) = (orders, answers) else { return Err(io::Error::other("no pipes")) };
        Ok(Self { process, orders, answers: BufReader::new(answers) })
    }

    fn ask(&mut self, order: &str) -> io::Result<String> {
        writeln!(self.orders, "{order}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

/// Takes locks with a client that obeys orders.
pub(super) fn work(worker: &Worker) -> Result<(), Box<dyn std::error::Error>> {
    let mut draws = Draws::new(worker, 0);
    let mut peer = Peer::start(&mut command(worker)?)?;
    let registers = Client::connect(&worker.spec.socket)?;
    let clock = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let (ttl, wait) = (worker.spec.ttl.as_millis(), worker.wait().as_millis());
    while worker.goes_on() {
        let rng = draws.now(worker);
        let name = rng.choice(&worker.spec.names).cloned().unwrap_or_default();
        let op = worker.next_op();
        worker.asked(op, &name, Wanted::Exclusive, worker.spec.ttl)?;
        let answer = peer.ask(&format!("lock {name} {ttl} {wait}"))?;
        if answer != "yes" {
            let kind = if answer == "no" { "busy" } else { "unavailable" };
            worker.log(What::Refused { op, kind: kind.into(), said: answer })?;
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        // What its caller may believe. When the last try began is not known, so the TTL counts from the answer.
        let valid_until = now() + u64::try_from(worker.spec.ttl.as_nanos())?;
        worker.log(What::Granted { op, token: 0, holder: String::new(), valid_until })?;
        let plan = Plan::draw(rng, &worker.spec, false);
        let shown = Shown { op, name, token: 0, holder: String::new() };
        clock.block_on(work_without_a_token(&registers, &shown, plan.pause))?;
        worker.log(What::Ending { op, how: Ending::Release })?;
        let outcome = if peer.ask("unlock")? == "yes" { "released" } else { "not held" };
        worker.log(What::Ended { op, outcome: outcome.into() })?;
    }
    Ok(worker.log(What::Stopped { held: 0, releasing: 0 })?)
}

/// Where `scripts/peers` has put the clients of other languages.
fn peers() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    cache.unwrap_or_else(home).join("lockkeeper/peers")
}

fn command(worker: &Worker) -> Result<Command, Box<dyn std::error::Error>> {
    let ports = worker.spec.ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    let script = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name);
    let mut command = match worker.spec.subject {
        Subject::RedisPy => {
            let mut command = Command::new(peers().join("python/bin/python"));
            command.arg(script("redis_py.py"));
            command
        }
        Subject::NodeRedlock => {
            let mut command = Command::new("node");
            command.arg(script("node_redlock.mjs")).env("PEERS", peers().join("node"));
            command
        }
        Subject::Rslock => {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("rslock");
            command
        }
        other => return Err(format!("{other:?} takes no orders").into()),
    };
    command.arg(ports);
    Ok(command)
}

/// `torture rslock PORTS`: obeys orders with rslock.
pub(crate) fn rslock(ports: &str) -> Result<(), Box<dyn std::error::Error>> {
    let urls = ports.split(',').map(|port| format!("redis://:{SECRET}@127.0.0.1:{port}")).collect::<Vec<_>>();
    let mut manager = rslock::LockManager::new(urls);
    // One try at a time: how long to wait is ours to say.
    manager.set_retry(1, Duration::from_millis(5));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut held: Option<rslock::Lock> = None;
    for line in io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let answer = if let ["lock", name, ttl, wait] = words[..] {
            let ttl = Duration::from_millis(ttl.parse()?);
            let end = std::time::Instant::now() + Duration::from_millis(wait.parse()?);
            held = runtime.block_on(async {
                loop {
                    match manager.lock(name.as_bytes(), ttl).await {
                        Ok(lock) => break Some(lock),
                        Err(_) if std::time::Instant::now() > end => break None,
                        Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                    }
                }
            });
            if held.is_some() { "yes" } else { "no" }
        } else {
            if let Some(lock) = held.take() {
                runtime.block_on(manager.unlock(&lock));
            }
            "yes"
        };
        writeln!(io::stdout(), "{answer}")?;
    }
    Ok(())
}
