//! Which lane a thread belongs to: a keeper's own or its store's, which must never be held up, or a caller's.

use std::cell::Cell;

thread_local! {
    static UPKEEP: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as one that renewals depend on.
pub(crate) fn enter_upkeep() {
    UPKEEP.set(true);
}

/// Whether this is a thread that renewals depend on: some keeper's own, or its store's.
pub(crate) fn is_upkeep() -> bool {
    UPKEEP.get()
}
