//! From the release in one process to the grant in another, through one SQLite file; the floor is a byte through a pipe.

use crate::measure::quantile;
use lockkeeper::Keeper;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ROUNDS: usize = 300;

/// The other process: waits for the lock, says when it got it, gives it back, on each line it reads.
pub(crate) fn peer(url: &str) {
    let keeper = lockkeeper::blocking::Keeper::connect(url).unwrap();
    let mut out = std::io::stdout();
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "ping" => {}
            _ => {
                let guard = keeper.lock("baton").acquire().unwrap();
                writeln!(out, "{}", lockkeeper::clock::system_now().as_micros()).unwrap();
                out.flush().unwrap();
                guard.release().unwrap();
                continue;
            }
        }
        writeln!(out, "{}", lockkeeper::clock::system_now().as_micros()).unwrap();
        out.flush().unwrap();
    }
}

pub(crate) fn run() {
    let dir = crate::sqlite::scratch();
    let url = format!("sqlite:{}", dir.join("locks.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let keeper = runtime.block_on(Keeper::connect(&url)).unwrap();
    let mut peer = Peer::start(&url);
    let (mut pipes, mut locks) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let sent = lockkeeper::clock::system_now();
        peer.say("ping");
        pipes.push((peer.stamp() - sent.as_micros()) as f64);
        let guard = runtime.block_on(keeper.lock("baton").acquire()).unwrap();
        peer.say("lock");
        // In line for sure: the record says so.
        while runtime.block_on(keeper.inspect("baton")).unwrap().unwrap().waiting == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        let released = lockkeeper::clock::system_now();
        runtime.block_on(guard.release()).unwrap();
        locks.push((peer.stamp() - released.as_micros()) as f64);
    }
    println!("\n### Hand-over between two processes, {ROUNDS} rounds\n");
    println!("| | p50 µs | p99 µs | x floor (p50) |\n|---|---|---|---|");
    let floor = quantile(&pipes, 0.5);
    for (name, sample) in [("a byte through a pipe", &pipes), ("release() to acquire() through SQLite", &locks)] {
        let (p50, p99) = (quantile(sample, 0.5), quantile(sample, 0.99));
        println!("| {name} | {p50:.0} | {p99:.0} | {:.1} |", p50 / floor);
    }
    drop(peer);
    drop(keeper);
    let _ = std::fs::remove_dir_all(dir);
}

struct Peer {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Peer {
    fn start(url: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["peer", url]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn say(&mut self, word: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{word}").unwrap();
    }

    fn stamp(&mut self) -> u64 {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let mut rest = Vec::new();
        let _ = self.lines.read_to_end(&mut rest);
        let _ = self.child.wait();
    }
}
