//! How many keepers one server carries: a simulation with the measured costs as input, and one point of it beside a
//! real run.
//!
//! `bench simulate [--keepers N] [--cores N] [--rtt µs]` for Redis, PostgreSQL and etcd; `bench simulate real` compares
//! 200 keepers with 50 locks each on a real Redis.

mod load;
mod model;
mod real;

use crate::growth::{Data, place};
use load::{Load, Outcome, Service};
use model::simulate;

/// What one store's server and client need, from the curves of `bench growth`.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// µs of server CPU: an acquire and its release, alone on their connection.
    cycle: f64,
    /// For a call that renews, and for each lock in it.
    renew_call: f64,
    renew_lock: f64,
    /// For a hand-over between keepers; its time; connections of a keeper.
    hand_over: f64,
    hand_over_time: f64,
    connections: f64,
    /// µs of client CPU for a cycle and for a renewal.
    client_cycle: f64,
    client_renewal: f64,
}

impl Measured {
    fn of(data: &Data, store: &str) -> Option<Self> {
        let at = |figure: &str, size: u64| {
            let curve = data.curve(figure, store);
            curve.iter().rev().find(|(at, _)| *at <= size).map(|(_, value)| *value)
        };
        let cycle = at("tasks-server", 1)?;
        Some(Self {
            cycle,
            // A call alone on its connection costs about the same, whatever it asks for: half of a cycle.
            renew_call: cycle / 2.0,
            renew_lock: at("held-server", 10_000)?,
            hand_over: at("crowd-server", 100)?,
            hand_over_time: at("crowd-wall", 100)?,
            connections: at("keepers-connections", 100)?,
            client_cycle: at("tasks-cpu", 1)?,
            client_renewal: at("held-cpu", 1_000)?,
        })
    }

    fn service(&self, cores: usize, round_trip: f64) -> Service {
        Service {
            acquire: self.cycle / 2.0,
            release: self.cycle / 2.0,
            renew_call: self.renew_call,
            renew_lock: self.renew_lock,
            cores,
            round_trip,
            client_call: self.client_cycle / 2.0,
            client_renewal: self.client_renewal,
            client_cores: None,
            tick: 0.0,
        }
    }
}

struct Options {
    keepers: usize,
    cores: usize,
    round_trip: f64,
}

pub(crate) fn run(args: &[&str]) {
    let mut options = Options { keepers: 10_000, cores: 1, round_trip: 200.0 };
    let mut rest = args.iter();
    while let Some(&arg) = rest.next() {
        if arg == "real" {
            return real::run();
        }
        match (arg, rest.next().and_then(|text| text.parse::<f64>().ok())) {
            ("--keepers", Some(n)) => options.keepers = n as usize,
            ("--cores", Some(n)) => options.cores = n as usize,
            ("--rtt", Some(n)) => options.round_trip = n,
            _ => return println!("usage: bench simulate [real] [--keepers N] [--cores N] [--rtt µs]"),
        }
    }
    let data = Data::load(&place());
    println!("{}", data.facts);
    let mut stores = Vec::new();
    for store in ["Redis", "PostgreSQL", "etcd"] {
        match Measured::of(&data, store) {
            Some(measured) => stores.push((store, measured)),
            None => println!("\n{store} is left out: `bench growth` has not measured it."),
        }
    }
    costs(&stores);
    carries(&stores);
    for (store, measured) in &stores {
        table(store, measured, &options);
    }
}

/// What was measured, as far as it counts here.
fn costs(stores: &[(&str, Measured)]) {
    println!("\n### Costs: µs of server CPU\n");
    println!(
        "| | a cycle | a call that renews | each lock in it | a hand-over | time of a hand-over, µs | connections of a keeper |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (store, m) in stores {
        println!(
            "| {store} | {:.0} | {:.0} | {:.1} | {:.0} | {:.0} | {:.0} |",
            m.cycle, m.renew_call, m.renew_lock, m.hand_over, m.hand_over_time, m.connections
        );
    }
}

/// The share of a core that may be planned with.
const PLANNED: f64 = 0.7;

/// What one core carries by the formula.
fn carries(stores: &[(&str, Measured)]) {
    println!("\n### What one core of the server carries at {:.0} %, TTL 30 s\n", PLANNED * 100.0);
    println!(
        "| | cycles/s, nothing held | locks held by 100 keepers, no cycles | cycles/s beside 10,000 locks of 100 keepers \
         | hand-overs/s of one name |\n|---|---|---|---|---|"
    );
    for (store, m) in stores {
        let service = m.service(1, 0.0);
        let free = PLANNED * 1e6;
        let load = Load { keepers: 100, locks: 100, ttl: 30.0, acquires: 0.0 };
        // Up to a thousand locks share a call.
        let held = free * load.ttl / 3.0 / (m.renew_lock + m.renew_call / 1e3);
        println!(
            "| {store} | {:.0} | {:.0} | {:.0} | {:.0} |",
            free / m.cycle,
            held,
            (free - service.renewing(&load)) / m.cycle,
            1e6 / m.hand_over_time
        );
    }
}

/// Loads from light to more than the server can do.
fn table(store: &str, measured: &Measured, options: &Options) {
    let Options { keepers, cores, round_trip } = *options;
    println!(
        "\n### {store}: {keepers} keepers, simulated; {cores} core(s) of the server, round trip {round_trip:.0} µs\n"
    );
    println!(
        "Server CPU: {:.1} µs for an acquire and its release, {:.1} µs + {:.2} µs for each lock in a call that renews, \
         {:.1} µs for a hand-over.\n",
        measured.cycle, measured.renew_call, measured.renew_lock, measured.hand_over
    );
    println!(
        "| locks each | TTL s | renewals/s | acquires/s | utilisation, computed | simulated | acquire p50 ms | p99 ms \
         | renewals missed |\n|---|---|---|---|---|---|---|---|---|"
    );
    for (locks, ttl) in [(1, 30.0), (10, 30.0), (50, 30.0)] {
        let calm = Load { keepers, locks, ttl, acquires: 0.0 };
        let service = measured.service(cores, round_trip);
        let renewing = service.renewing(&calm) / 1e6 / cores as f64;
        println!("| {locks} | {ttl:.0} | {:.0} | 0 | {renewing:.2} | – | – | – | – |", calm.renewals());
        // What the renewals leave is for acquires and releases.
        for busy in [0.3, 0.7, 0.9, 1.05].into_iter().filter(|busy| *busy > renewing) {
            let free = (busy - renewing) * 1e6 * cores as f64;
            let load = Load { acquires: free / measured.cycle / keepers as f64, ..calm };
            let seen = simulate(&load, &service, 20.0);
            row(&load, &service, &seen);
        }
    }
}

fn row(load: &Load, service: &Service, seen: &Outcome) {
    println!(
        "| {} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} | {:.2} | {:.2} | {} of {} |",
        load.locks,
        load.ttl,
        load.renewals(),
        load.acquires * load.keepers as f64,
        service.utilisation(load),
        seen.utilisation,
        seen.p50 / 1e3,
        seen.p99 / 1e3,
        seen.missed,
        seen.renewals,
    );
}
