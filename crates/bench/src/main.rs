//! Benchmarks, each beside the raw floor in the same run: interleaved rounds, medians, ratios.
//!
//! `cargo run --release -p bench [-- memory|sqlite|handover|renew]`; without a name, all of them.
#![allow(clippy::print_stdout, reason = "a benchmark's output is its result")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set up has nothing to report")]

mod handover;
mod measure;
mod memory;
mod renew;
mod sqlite;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // The other side of the hand-over between processes.
        ["peer", store] => handover::peer(store),
        [] => {
            for part in [memory::run, sqlite::run, handover::run, renew::run] {
                part();
            }
        }
        ["memory"] => memory::run(),
        ["sqlite"] => sqlite::run(),
        ["handover"] => handover::run(),
        ["renew"] => renew::run(),
        _ => println!("usage: bench [memory|sqlite|handover|renew]"),
    }
}
