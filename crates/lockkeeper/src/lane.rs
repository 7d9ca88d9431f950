//! Which lane a thread belongs to: the keeper's own, which must never be held up, or a caller's.

use std::cell::Cell;

thread_local! {
    static UPKEEP: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as a keeper's own.
pub(crate) fn enter_upkeep() {
    UPKEEP.set(true);
}

/// Whether this is some keeper's own thread.
pub(crate) fn is_upkeep() -> bool {
    UPKEEP.get()
}
