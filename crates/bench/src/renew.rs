//! Ten thousand held locks: what keeping them costs.

use crate::measure::{cpu_time, resident};
use lockkeeper::stores::memory::MemoryStore;
use lockkeeper::stores::sqlite::{SqliteOptions, SqliteStore};
use lockkeeper::testing::{Faults, Op};
use lockkeeper::{Guard, Keeper, Store};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LOCKS: u32 = 10_000;
const TTL: Duration = Duration::from_secs(6);
const WATCH: Duration = Duration::from_secs(8);

pub(crate) fn run() {
    println!("\n### {LOCKS} locks held, TTL {TTL:?}, renewed every {:?}\n", TTL / 3);
    println!("| store | CPU µs per renewal | calls per round | client bytes per held lock | renewals | still held |");
    println!("|---|---|---|---|---|---|");
    // Each in a process of its own: memory that one has freed would hide what the next one needs.
    for store in ["memory", "sqlite"] {
        let child = std::process::Command::new(std::env::current_exe().unwrap()).args(["renew", store]).status();
        assert!(child.unwrap().success());
    }
}

/// One store's row.
pub(crate) fn hold(name: &str) {
    let dir = crate::sqlite::scratch();
    let store: Arc<dyn Store> = match name {
        "memory" => Arc::new(MemoryStore::new()),
        _ => Arc::new(SqliteStore::open(dir.join("locks.db"), SqliteOptions::default()).unwrap()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (faults, store) = Faults::wrap(store);
    let renewals = || faults.done(Op::Renew);
    runtime.block_on(async {
        let keeper = Keeper::builder().ttl(TTL).open(store).unwrap();
        let before = resident();
        let mut guards: Vec<Guard> = Vec::with_capacity(LOCKS as usize);
        for i in 0..LOCKS {
            guards.push(keeper.lock(format!("orders/{i:06}")).acquire().await.unwrap());
        }
        let bytes = resident().saturating_sub(before) / u64::from(LOCKS);
        let (cpu, calls, start) = (cpu_time(), renewals(), Instant::now());
        tokio::time::sleep(WATCH).await;
        let rounds = start.elapsed().as_secs_f64() / (TTL / 3).as_secs_f64();
        let (cpu, calls) = (cpu_time() - cpu, renewals() - calls);
        let renewed = rounds * f64::from(LOCKS);
        let alive = guards.iter().filter(|g| g.check().is_ok()).count();
        println!(
            "| {name} | {:.2} | {:.0} | {bytes} | {renewed:.0} | {alive} of {LOCKS} |",
            cpu.as_secs_f64() * 1e6 / renewed,
            calls as f64 / rounds,
        );
        for guard in guards {
            guard.release().await.unwrap();
        }
    });
    let _ = std::fs::remove_dir_all(dir);
}
