//! Locks across machines, on a majority of independent Redis or Valkey primaries (6.2 or newer).
//!
//! **Algorithm.** All nodes are asked at once. A claim holds when ⌊N/2⌋+1 of the *configured* N have given it the key;
//! nodes that do not answer count as a no. The token is proposed by the claim and confirmed where it holds ([`quorum`](crate::machine::quorum)):
//! one round trip, or two when clocks and counters differ. A failed attempt is undone everywhere at once; a release goes
//! to all nodes and is answered when a majority has answered; a renewal needs a majority where the key is still the
//! claim's own, and never makes one. A node that restarted within `max_ttl` counts for nothing, unless it runs with
//! `appendonly yes` and `appendfsync always`: it may have forgotten a lease that is still running.
//!
//! **Layout**, the same on every node, to be read with `redis-cli`; `K` is the lock's name, byte for byte.
//! - `K`: `lk1:HOLDER:TOKEN:TTL:SINCE:ATTEMPT:HOST:PID:LABEL`, a plain string with a TTL, so that node-redlock, redsync,
//!   rslock and every other client that does `SET K … NX PX …` on the same nodes excludes us and is excluded.
//! - `lk:f:{K}` the last number drawn · `lk:x:{K}:HOLDER` tombstones. Both end by themselves. Names that begin with `lk:`
//!   are refused.
//!
//! **Guarantee**: `Majority`, as long as clocks run at about the same speed and no majority of the nodes forgets or jumps
//! in time. Tokens rise while the clocks of nodes and callers differ by less than `max_ttl`.
//!
//! **Not offered**: a queue, Shared, Permits and registers; `docs/stores/redlock.md` says why.

#[cfg(feature = "redlock")]
mod attempts;
#[cfg(feature = "redlock")]
mod health;
#[cfg(feature = "redlock")]
mod node;
#[cfg(feature = "redlock")]
mod people;
#[doc(hidden)]
#[cfg(feature = "redlock")]
mod race;
#[cfg(feature = "redlock")]
mod scripts;
#[cfg(feature = "redlock")]
mod settings;
#[cfg(feature = "redlock")]
mod store;

#[cfg(feature = "redlock")]
pub use store::RedlockStore;
