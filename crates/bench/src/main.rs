//! Benchmarks, each beside the raw floor in the same run: interleaved rounds, medians, ratios.
//!
//! `cargo run --release -p bench [-- memory|sqlite|handover|renew|redis|mysql|etcd|postgres|zookeeper|recipes|gateway]`; without a name, all of them.
//! `growth` draws how cost grows with work, `simulate` how many keepers a server carries, `gateway load [MINUTES]` keeps a
//! gateway busy: none of them runs by itself.
#![allow(clippy::print_stdout, reason = "a benchmark's output is its result")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set up has nothing to report")]

mod etcd;
mod gateway;
mod growth;
mod handover;
mod measure;
mod memory;
mod mysql;
mod postgres;
mod recipes;
mod redis;
mod renew;
mod simulate;
mod sqlite;
mod zookeeper;

fn main() {
    measure::come_first();
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // The other side of the hand-over between processes.
        ["peer", store] => handover::peer(store),
        ["renew", store] => renew::hold(store),
        ["leader", store] => recipes::lead(store),
        ["gateway-serve", store] => gateway::serve(store, None),
        ["gateway-serve", store, tokens] => gateway::serve(store, Some(tokens)),
        ["gateway-relay", redis] => gateway::relay(redis),
        ["gateway", "load", ref rest @ ..] => gateway::load(rest),
        ["gateway", part] => gateway::part(part),
        ["growth-child", store, parts] => growth::child(store, parts, false),
        ["growth-child", store, parts, "--quick"] => growth::child(store, parts, true),
        ["growth", ref rest @ ..] => growth::run(rest),
        ["simulate", ref rest @ ..] => simulate::run(rest),
        ["redis", part] => redis::part(part),
        ["mysql", part] => mysql::part(part),
        ["etcd", part] => etcd::part(part),
        ["postgres", part] => postgres::part(part),
        [] => {
            println!("{}", facts());
            for part in [
                memory::run,
                sqlite::run,
                handover::run,
                renew::run,
                redis::run,
                mysql::run,
                etcd::run,
                postgres::run,
                zookeeper::run,
                recipes::run,
                gateway::run,
            ] {
                part();
            }
        }
        ["memory"] => memory::run(),
        ["sqlite"] => sqlite::run(),
        ["handover"] => handover::run(),
        ["renew"] => renew::run(),
        ["redis"] => redis::run(),
        ["mysql"] => mysql::run(),
        ["etcd"] => etcd::run(),
        ["postgres"] => postgres::run(),
        ["zookeeper"] => zookeeper::run(),
        ["recipes"] => recipes::run(),
        ["gateway"] => gateway::run(),
        _ => println!(
            "usage: bench [memory|sqlite|handover|renew|redis|mysql|etcd|postgres|zookeeper|recipes|gateway|growth|simulate]"
        ),
    }
}

/// The facts printed with every figure: machine, kernel, compiler, commit.
fn facts() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or(": unknown")
        .trim_start_matches(['\t', ':', ' ']);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let said = |program: &str, args: &[&str]| {
        let out = std::process::Command::new(program).args(args).output();
        out.map_or_else(|_| "unknown".to_owned(), |out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    format!(
        "{cpu}, {cores} cores, Linux {}, {}, commit {}",
        kernel.trim(),
        said("rustc", &["--version"]),
        said("git", &["rev-parse", "--short", "HEAD"]),
    )
}
