//! Peers that are programs of their own: what `scripts/peers` installs for Python and JavaScript, and a Go program that
//! this file builds on request.
//!
//! Each is called with ports, tasks, cycles of each task, and cycles to warm up. It prints the seconds that its cycles
//! took, and those of its CPU.

use std::path::{Path, PathBuf};
use std::process::Command;

const PYTHON: &str = "
import sys, threading, time, redis
port, tasks, each, warm = map(int, sys.argv[1:])
client = redis.Redis(port=port)
def task(name, n):
    for _ in range(n):
        lock = client.lock(name, timeout=30)
        lock.acquire()
        lock.release()
def cycles(n):
    threads = [threading.Thread(target=task, args=(f'peers/{i}', n)) for i in range(1, tasks)]
    for thread in threads: thread.start()
    task('peers/0', n)
    for thread in threads: thread.join()
cycles(warm)
began, cpu = time.perf_counter(), time.process_time()
cycles(each)
print(time.perf_counter() - began, time.process_time() - cpu)
";

const NODE: &str = "
const { default: Redlock } = require('redlock');
const { Redis } = require('ioredis');
const [ports, tasks, each, warm] = process.argv.slice(1);
const clients = ports.split(',').map((port) => new Redis({ host: '127.0.0.1', port: Number(port) }));
const redlock = new Redlock(clients);
const task = async (name, n) => { for (let i = 0; i < n; i++) await (await redlock.acquire([name], 30000)).release(); };
const cycles = (n) => Promise.all(Array.from({ length: Number(tasks) }, (_, i) => task(`peers/${i}`, n)));
(async () => {
  await cycles(Number(warm));
  const [began, cpu] = [process.hrtime.bigint(), process.cpuUsage()];
  await cycles(Number(each));
  const used = process.cpuUsage(cpu);
  console.log(Number(process.hrtime.bigint() - began) / 1e9, (used.user + used.system) / 1e6);
  clients.forEach((client) => client.disconnect());
})();
";

/// A client in another language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    RedisPy,
    NodeRedlock,
    Redsync,
}

fn installed() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    cache.unwrap_or_else(home).join("lockkeeper/peers")
}

impl Program {
    /// How it comes onto a machine.
    pub(super) fn how(self) -> &'static str {
        match self {
            Self::Redsync => "`bench redis redsync` builds it",
            Self::RedisPy | Self::NodeRedlock => "scripts/peers installs it",
        }
    }

    fn command(self) -> Command {
        let peers = installed();
        match self {
            Self::RedisPy => {
                let mut command = Command::new(peers.join("python/bin/python"));
                command.args(["-c", PYTHON]);
                command
            }
            Self::NodeRedlock => {
                let mut command = Command::new("node");
                command.args(["-e", NODE]).current_dir(peers.join("node"));
                command
            }
            Self::Redsync => Command::new(peers.join("redsync-bench/peer")),
        }
    }

    /// Seconds on the clock and of CPU for all cycles; `None` where the program is not installed.
    pub(super) fn run(self, ports: &[u16], tasks: usize, each: usize, warm: usize) -> Option<(f64, f64)> {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        let output =
            self.command().arg(ports.join(",")).args([tasks, each, warm].map(|n| n.to_string())).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut numbers = text.split_whitespace().map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}

/// Builds the Go program in the place of the other peers; says why it is not there when that fails.
pub(super) fn build_redsync() {
    let place = installed().join("redsync-bench");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/redsync");
    let built = std::fs::create_dir_all(&place).and_then(|()| {
        for file in ["main.go", "go.mod", "go.sum"] {
            std::fs::copy(sources.join(file), place.join(file))?;
        }
        Command::new("go").args(["build", "-mod=readonly", "-o", "peer", "."]).current_dir(&place).status()
    });
    if !built.as_ref().is_ok_and(std::process::ExitStatus::success) {
        println!("redsync is left out: `go build` needs Go and the network ({built:?})");
    }
}
