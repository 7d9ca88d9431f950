//! A simulation of events in order: keepers that renew and acquire, a server that serves in order of arrival.
//!
//! A keeper renews all its locks every third of the TTL, in calls of at most [`BATCH`] locks, and begins at a random
//! time. Its acquires come at random, independent of each other; each lock is released at once. Service times vary by
//! half around their mean. The same load gives the same outcome: the random numbers have a fixed seed.

use super::load::{BATCH, Load, Outcome, Service};
use crate::measure::quantile;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Acquire,
    Release,
    Renew(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A keeper begins to renew, or to acquire.
    RenewDue(usize),
    AcquireDue(usize),
    /// A call is at the client on its way out, at the server, back at the client, done.
    Out(Call),
    Served(Call),
    Back(Call),
    Done(Call),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    what: What,
    began: u64,
}

/// Cores that serve in order of arrival.
struct Station {
    free: BinaryHeap<Reverse<u64>>,
    busy: u64,
}

impl Station {
    fn new(cores: usize) -> Self {
        Self { free: (0..cores.max(1)).map(|_| Reverse(0)).collect(), busy: 0 }
    }

    /// When a call that arrives now is served.
    fn serve(&mut self, now: u64, time: u64) -> u64 {
        let Reverse(free) = self.free.pop().unwrap_or_default();
        let done = free.max(now) + time;
        self.free.push(Reverse(done));
        self.busy += time;
        done
    }
}

struct Simulation<'a> {
    load: &'a Load,
    service: &'a Service,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    next: u64,
    random: fastrand::Rng,
    server: Station,
    client: Option<Station>,
    took: Vec<f64>,
    missed: usize,
    renewals: usize,
    warm: u64,
}

fn nanoseconds(us: f64) -> u64 {
    (us * 1e3) as u64
}

/// Runs the load for so many seconds of simulated time.
pub(super) fn simulate(load: &Load, service: &Service, seconds: f64) -> Outcome {
    let warm = nanoseconds(seconds * 1e5);
    let mut simulation = Simulation {
        load,
        service,
        events: BinaryHeap::new(),
        next: 0,
        random: fastrand::Rng::with_seed(7),
        server: Station::new(service.cores),
        client: service.client_cores.map(Station::new),
        took: Vec::new(),
        missed: 0,
        renewals: 0,
        warm,
    };
    simulation.run(nanoseconds(seconds * 1e6))
}

impl Simulation<'_> {
    fn run(&mut self, end: u64) -> Outcome {
        let period = nanoseconds(self.load.ttl / 3.0 * 1e6);
        for keeper in 0..self.load.keepers {
            let begin = self.random.u64(0..period);
            self.at(begin, Event::RenewDue(keeper));
            self.acquire_later(0, keeper);
        }
        let mut busy_when_warm = None;
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            if now > end {
                break;
            }
            if now > self.warm {
                busy_when_warm.get_or_insert(self.server.busy);
            }
            match event {
                Event::RenewDue(keeper) => {
                    for first in (0..self.load.locks).step_by(BATCH) {
                        let what = What::Renew(BATCH.min(self.load.locks - first));
                        self.at(now, Event::Out(Call { what, began: now }));
                    }
                    self.at(now + period, Event::RenewDue(keeper));
                }
                Event::AcquireDue(keeper) => {
                    self.at(now, Event::Out(Call { what: What::Acquire, began: now }));
                    self.acquire_later(now, keeper);
                }
                Event::Out(call) => {
                    let sent = self.at_client(now, call) + nanoseconds(self.service.round_trip / 2.0);
                    self.at(sent, Event::Served(call));
                }
                Event::Served(call) => {
                    let time = self.vary(match call.what {
                        What::Acquire => self.service.acquire,
                        What::Release => self.service.release,
                        What::Renew(locks) => self.service.renew_call + self.service.renew_lock * locks as f64,
                    });
                    let back = self.server.serve(now, time) + nanoseconds(self.service.round_trip / 2.0);
                    self.at(back, Event::Back(call));
                }
                Event::Back(call) => {
                    let done = self.at_client(now, call);
                    self.at(done, Event::Done(call));
                }
                Event::Done(call) => self.done(now, call),
            }
        }
        let busy = self.server.busy - busy_when_warm.unwrap_or(0);
        Outcome {
            utilisation: busy as f64 / (end - self.warm) as f64 / self.service.cores as f64,
            p50: quantile(&self.took, 0.5),
            p99: quantile(&self.took, 0.99),
            missed: self.missed,
            renewals: self.renewals,
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.next += 1;
        self.events.push(Reverse((time, self.next, event)));
    }

    /// The next one of a keeper, after a time that does not depend on the last.
    fn acquire_later(&mut self, now: u64, keeper: usize) {
        if self.load.acquires > 0.0 {
            let pause = -(1.0 - self.random.f64()).ln() / self.load.acquires * 1e6;
            let tick = nanoseconds(self.service.tick).max(1);
            let due = (now + nanoseconds(pause)).div_ceil(tick) * tick;
            self.at(due, Event::AcquireDue(keeper));
        }
    }

    /// Half of a call's client CPU on the way out, half on the way back.
    fn at_client(&mut self, now: u64, call: Call) -> u64 {
        let time = self.vary(match call.what {
            What::Acquire | What::Release => self.service.client_call,
            What::Renew(locks) => self.service.client_renewal * locks as f64,
        }) / 2;
        match &mut self.client {
            Some(client) => client.serve(now, time),
            None => now + time,
        }
    }

    fn done(&mut self, now: u64, call: Call) {
        let counts = call.began > self.warm;
        match call.what {
            What::Acquire => {
                if counts {
                    self.took.push((now - call.began) as f64 / 1e3);
                }
                self.at(now, Event::Out(Call { what: What::Release, began: now }));
            }
            What::Release => {}
            What::Renew(locks) if counts => {
                self.renewals += locks;
                // A third of the TTL is over when it is sent.
                if (now - call.began) as f64 > self.load.ttl * 2.0 / 3.0 * 1e9 {
                    self.missed += locks;
                }
            }
            What::Renew(_) => {}
        }
    }

    /// Between half and one and a half times the mean.
    fn vary(&mut self, us: f64) -> u64 {
        nanoseconds(us * (0.5 + self.random.f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: Service = Service {
        acquire: 50.0,
        release: 50.0,
        renew_call: 20.0,
        renew_lock: 2.0,
        cores: 1,
        round_trip: 200.0,
        client_call: 10.0,
        client_renewal: 1.0,
        client_cores: None,
        tick: 0.0,
    };

    #[test]
    fn a_light_load_costs_what_its_calls_cost() {
        let load = Load { keepers: 100, locks: 10, ttl: 3.0, acquires: 5.0 };
        let seen = simulate(&load, &SERVICE, 20.0);
        assert!((seen.utilisation - SERVICE.utilisation(&load)).abs() < 0.01, "{seen:?}");
        // Round trip, service and client; now and then another call is before it.
        assert!((255.0..275.0).contains(&seen.p50), "{seen:?}");
        assert_eq!(seen.missed, 0);
    }

    #[test]
    fn waiting_at_a_busy_server_is_that_of_the_formula() {
        let load = Load { keepers: 1_000, locks: 0, ttl: 3.0, acquires: 7.0 };
        let seen = simulate(&load, &SERVICE, 60.0);
        // Releases follow their acquires, so that arrivals are not quite random: the formula for random ones is near.
        let (busy, vary) = (SERVICE.utilisation(&load), 1.0 / 12.0);
        let waits = busy / (1.0 - busy) * (1.0 + vary) / 2.0 * 50.0;
        let mean = 260.0 + waits;
        assert!((0.8..1.2).contains(&(seen.p50 / mean)), "{seen:?} {mean}");
    }

    #[test]
    fn too_much_load_misses_renewals() {
        let load = Load { keepers: 1_000, locks: 10, ttl: 3.0, acquires: 14.0 };
        let seen = simulate(&load, &SERVICE, 30.0);
        assert!(seen.missed > 0 && seen.utilisation > 0.99, "{seen:?}");
    }
}
