//! Pauses between attempts: one formula for the engine, the stores and optimistic retries.

use std::time::Duration;

/// The pause before attempt number `times` (0 = the first repeat): doubled each time, at most `most`, and with jitter on
/// its upper half, so that repeats of many processes do not meet.
pub(crate) fn back_off(first: Duration, times: u32, most: Duration) -> Duration {
    let step = first.saturating_mul(1 << times.min(16)).min(most.max(first));
    step / 2 + jitter(step / 2)
}

/// How long one call may take when its lease is `ttl`: a third of it, so that there is time for another.
pub(crate) fn call_limit(ttl: Duration) -> Duration {
    (ttl / 3).max(Duration::from_millis(50))
}

/// A random time of at most `most`.
pub(crate) fn jitter(most: Duration) -> Duration {
    most.mul_f64(fastrand::f64())
}
