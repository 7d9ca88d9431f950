//! What keepers ask of a server, what a call needs, and what came of it.

/// As many as a keeper sends in one call.
pub(super) const BATCH: usize = 1_000;

/// What the keepers do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) keepers: usize,
    /// Held by each.
    pub(super) locks: usize,
    /// In seconds.
    pub(super) ttl: f64,
    /// Of each, a second.
    pub(super) acquires: f64,
}

impl Load {
    /// Locks renewed a second.
    pub(super) fn renewals(&self) -> f64 {
        (self.keepers * self.locks) as f64 / (self.ttl / 3.0)
    }
}

/// What a call needs, in µs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    /// Of server CPU.
    pub(super) acquire: f64,
    pub(super) release: f64,
    pub(super) renew_call: f64,
    pub(super) renew_lock: f64,
    /// That serve at once.
    pub(super) cores: usize,
    /// On the network.
    pub(super) round_trip: f64,
    /// Of client CPU, for a call and for each renewal.
    pub(super) client_call: f64,
    pub(super) client_renewal: f64,
    /// That all keepers share; `None` when each has a machine of its own.
    pub(super) client_cores: Option<usize>,
    /// Timers of the clients ring at multiples of this, in µs.
    pub(super) tick: f64,
}

impl Service {
    /// µs of server CPU a second for the renewals.
    pub(super) fn renewing(&self, load: &Load) -> f64 {
        let calls = (load.keepers * load.locks.div_ceil(BATCH)) as f64 / (load.ttl / 3.0);
        calls * self.renew_call + load.renewals() * self.renew_lock
    }

    /// The share of the server's cores that the load needs.
    pub(super) fn utilisation(&self, load: &Load) -> f64 {
        let cycles = load.acquires * load.keepers as f64 * (self.acquire + self.release);
        (cycles + self.renewing(load)) / 1e6 / self.cores as f64
    }
}

/// What was seen after the first tenth of the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) utilisation: f64,
    /// Of an acquire, in µs.
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// Locks whose renewal was answered after their deadline.
    pub(super) missed: usize,
    pub(super) renewals: usize,
}
