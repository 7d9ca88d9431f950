//! What a store says of itself.

use crate::error::{Error, ErrorKind};
use std::borrow::Cow;
use std::time::Duration;

/// How strong a store's mutual exclusion is, weakest first: what [`require`](crate::KeeperBuilder::require) compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Guarantee {
    /// Nothing: the store may drop a lock that is held, as a Redis that evicts keys when its memory is full.
    BestEffort,
    /// Within one process.
    Process,
    /// Within one machine, across processes, crashes and reboots.
    Machine,
    /// Across machines while one primary keeps its data and its clock: a failover may forget a grant.
    Primary,
    /// Across machines on a majority of independent nodes, with bounded clocks and no amnesia.
    Majority,
    /// Across machines, with every grant durable in one database before it is answered.
    Durable,
    /// Across machines by consensus: survives the loss of any minority.
    Consensus,
}

impl Guarantee {
    /// The word for machines.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BestEffort => "best-effort",
            Self::Process => "process",
            Self::Machine => "machine",
            Self::Primary => "primary",
            Self::Majority => "majority",
            Self::Durable => "durable",
            Self::Consensus => "consensus",
        }
    }

    /// Reads back [`as_str`](Self::as_str).
    #[cfg(feature = "remote")]
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        use Guarantee::{BestEffort, Consensus, Durable, Machine, Majority, Primary, Process};
        let all = [BestEffort, Process, Machine, Primary, Majority, Durable, Consensus];
        all.into_iter().find(|guarantee| guarantee.as_str() == word)
    }
}

/// How claims end when their holder disappears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expiry {
    /// Each claim has its own lease, ended by the store's clock.
    Lease,
    /// All claims of a keeper share a session.
    Session,
    /// The store has no clock: the engine watches a version for its whole lease.
    Observed,
}

/// Where calls of this store may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Runtime {
    /// Anywhere, with or without a Tokio runtime.
    Any,
    /// Inside a Tokio runtime with I/O and time enabled; each runtime gets a connection of its own. Callers without a
    /// runtime are served by the keeper's thread.
    Tokio,
    /// Only on the keeper's own thread: the session is the lock.
    Keeper,
}

/// What a store can do and promise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreInfo {
    /// The URL scheme; also the store's name in errors and metrics.
    pub scheme: &'static str,
    /// Where its servers are, as errors name them: `host:port`, several with commas between them, never a login. Default:
    /// empty, for a store without servers.
    pub servers: String,
    /// How strong its exclusion is.
    pub guarantee: Guarantee,
    /// How claims end by themselves.
    pub expiry: Expiry,
    /// Whether waiters queue in the store, first come first served. Default: no.
    pub queue: bool,
    /// Whether `Shared` works. Default: no.
    pub shared: bool,
    /// Whether `Permit` works. Default: no.
    pub permits: bool,
    /// Whether [`tend`](super::Store::tend) tells of hand-overs. Default: no.
    pub push: bool,
    /// Whether calls made in one runtime reach the store in the order they were made. Default: no. With `queue` too, the
    /// next task of a keeper asks while the release before it is still under way; a call that is overtaken all the same
    /// just waits in line.
    pub ordered: bool,
    /// Whether the store is this process's own memory: ids need not be random.
    pub local: bool,
    /// Whether of several claims that find a free lock at the same moment one is always granted. Default: yes; where
    /// votes can split, all may be refused and must ask again. There a release may also be answered before every server has
    /// carried it out.
    pub decisive: bool,
    /// Whether any instance, also on another machine, may renew and release a claim, and takes its stamp for a number that
    /// means nothing. Default: no. Only such a store can be served by a gateway.
    pub portable: bool,
    /// Whose numbers its tokens are: what [`Pass::store`](crate::Pass::store) of its guards shows at a fence. Default: the
    /// scheme; a gateway hands out the tokens of the store behind it.
    pub tokens: Cow<'static, str>,
    /// Where calls may run.
    pub runtime: Runtime,
    /// The shortest TTL.
    pub ttl_floor: Duration,
    /// The longest TTL.
    pub ttl_ceiling: Duration,
    /// For how many times the TTL the store may believe in a holder that has crashed. Default: 1.
    pub ttl_factor: u32,
    /// How much longer than that a crashed holder can keep others waiting, at worst.
    pub hand_over_slack: Duration,
}

impl StoreInfo {
    /// The plainest store: lease expiry, Exclusive only, no queue, TTL 1 s to 30 days, calls anywhere.
    pub fn new(scheme: &'static str, guarantee: Guarantee) -> Self {
        Self {
            scheme,
            servers: String::new(),
            guarantee,
            expiry: Expiry::Lease,
            queue: false,
            shared: false,
            permits: false,
            push: false,
            ordered: false,
            local: false,
            decisive: true,
            portable: false,
            tokens: Cow::Borrowed(scheme),
            runtime: Runtime::Any,
            ttl_floor: Duration::from_secs(1),
            ttl_ceiling: Duration::from_secs(30 * 24 * 3600),
            ttl_factor: 1,
            hand_over_slack: Duration::from_secs(1),
        }
    }

    /// Says where its servers are: `host:port`, several with commas between them, never a login.
    #[must_use]
    pub fn servers(mut self, servers: impl Into<String>) -> Self {
        self.servers = servers.into();
        self
    }

    /// Says how claims end by themselves.
    #[must_use]
    pub fn expiry(mut self, expiry: Expiry) -> Self {
        self.expiry = expiry;
        self
    }

    /// Waiters queue in the store, first come first served.
    #[must_use]
    pub fn queue(mut self) -> Self {
        self.queue = true;
        self
    }

    /// `Shared` works.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// `Permit` works.
    #[must_use]
    pub fn permits(mut self) -> Self {
        self.permits = true;
        self
    }

    /// [`tend`](super::Store::tend) tells of hand-overs.
    #[must_use]
    pub fn push(mut self) -> Self {
        self.push = true;
        self
    }

    /// Calls made in one runtime reach the store in the order they were made.
    #[must_use]
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// The store is this process's own memory.
    #[must_use]
    pub fn local(mut self) -> Self {
        self.local = true;
        self
    }

    /// Of several claims that find a free lock at the same moment, all may be refused.
    #[must_use]
    pub fn votes_can_split(mut self) -> Self {
        self.decisive = false;
        self
    }

    /// Any instance may renew and release a claim, and stamps mean nothing to it.
    #[must_use]
    pub fn portable(mut self) -> Self {
        self.portable = true;
        self
    }

    /// Says whose numbers its tokens are.
    #[must_use]
    pub fn tokens(mut self, tokens: impl Into<Cow<'static, str>>) -> Self {
        self.tokens = tokens.into();
        self
    }

    /// Says where calls may run.
    #[must_use]
    pub fn runtime(mut self, runtime: Runtime) -> Self {
        self.runtime = runtime;
        self
    }

    /// Says the shortest and the longest TTL.
    #[must_use]
    pub fn ttl(mut self, floor: Duration, ceiling: Duration) -> Self {
        (self.ttl_floor, self.ttl_ceiling) = (floor, ceiling);
        self
    }

    /// Says for how many times the TTL the store may believe in a holder that has crashed, and how much longer that can
    /// keep others waiting at worst.
    #[must_use]
    pub fn hand_over(mut self, ttl_factor: u32, slack: Duration) -> Self {
        (self.ttl_factor, self.hand_over_slack) = (ttl_factor, slack);
        self
    }

    /// Names the store in an error of one of its calls, and its servers where the error is about them.
    pub(crate) fn name_in(&self, error: Error) -> Error {
        let theirs = matches!(
            error.kind(),
            ErrorKind::Unavailable | ErrorKind::Denied | ErrorKind::Foreign | ErrorKind::Unexpected
        );
        error.in_store(self.scheme).at(if theirs { &self.servers } else { "" })
    }

    /// How long a crashed holder can keep others waiting, at worst, when `lease` is what it has left.
    pub fn worst_hand_over(&self, lease: Duration) -> Duration {
        lease.saturating_mul(self.ttl_factor).saturating_add(self.hand_over_slack)
    }
}
