//! Spans for `tracing`: how long a caller waited for a lock, and how long it held it. Debug level. Without a subscriber
//! that wants them, each costs one look at a static.

use crate::engine::{Acquired, Spec};
use crate::error::Result;
use crate::guard::{Lease, Phase};
use crate::store::LossReason;
use tracing::Span;
use tracing::field::Empty;

/// From the call of an acquire to its answer.
pub(crate) fn acquire(spec: &Spec, store: &'static str) -> Span {
    tracing::debug_span!("acquire", lock = %spec.name, mode = %spec.mode, store, outcome = Empty)
}

/// Says how an acquire ended.
pub(crate) fn acquired(span: &Span, answer: &Result<Acquired>) {
    let outcome = match answer {
        Ok(Ok(_)) => "acquired",
        Ok(Err(_)) => "busy",
        Err(error) => error.kind().as_str(),
    };
    span.record("outcome", outcome);
}

/// From a grant to the end of its guard.
pub(crate) fn hold(lease: &Lease) -> Span {
    tracing::debug_span!("hold", lock = %lease.name(), token = lease.token().get(), outcome = Empty)
}

/// Says how a hold ended.
pub(crate) fn ended(span: &Span, lease: &Lease) {
    if span.is_disabled() {
        return;
    }
    let outcome = match lease.phase() {
        Phase::Lost(reason) => reason.as_str(),
        _ => LossReason::Released.as_str(),
    };
    span.record("outcome", outcome);
}
