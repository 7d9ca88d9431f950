//! The time limits of stores, each with its reason, and the pause between attempts.
//!
//! The engine bounds every call by its lease. These limits end what has no lease: connections, questions of operators,
//! what is remembered after a claim is over.
#![cfg_attr(
    not(all(feature = "consul", feature = "etcd", feature = "mysql", feature = "postgres", feature = "redis")),
    allow(dead_code, unused_imports, reason = "a build without these stores uses part of the table")
)]

pub(in crate::stores) use crate::timing::back_off;

use std::time::Duration;

/// How long opening a connection may take: three packets that are lost and sent again.
pub(in crate::stores) const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long an operator's question may take: less than the ten seconds after which the engine gives it up, so that the
/// error says what the server did.
pub(in crate::stores) const ASK_LIMIT: Duration = Duration::from_secs(8);

/// How long a small question on a listening connection may take before the connection counts as dead.
pub(in crate::stores) const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// The longest pause before a lost listening connection is opened again.
pub(in crate::stores) const MAX_PAUSE: Duration = Duration::from_secs(1);

/// How much longer than its TTL a claim that is over is remembered: a call under way arrives within a minute or never.
pub(in crate::stores) const TOMBSTONE_EXTRA: Duration = Duration::from_secs(60);

/// How long a call may take when its lease is `ttl`: what the engine allows, less the time to say so.
pub(in crate::stores) fn call_limit(ttl: Duration) -> Duration {
    crate::timing::call_limit(ttl).mul_f64(0.95).min(Duration::from_secs(10))
}
