//! What one node does in one step. The lock's value is `lk1:HOLDER:TOKEN:TTL:SINCE:ATTEMPT:NOTE`.
//!
//! ATTEMPT is the number of the attempt that took the lock. With a `+` it is a newer attempt, which found the lock taken
//! by its own claim. The number never falls: a late message of an older attempt, its undo too, changes nothing.

use crate::stores::redis::driver::script::{Script, scripts};

scripts! { "scripts/";
    ACQUIRE = "acquire";
    CONFIRM = "confirm";
    RENEW = "renew";
    RELEASE = "release";
    LOOK = "look";
}

/// All scripts: each new connection loads them, so that no call has to be sent twice.
pub(super) fn all() -> [&'static Script; 5] {
    [&ACQUIRE, &CONFIRM, &RENEW, &RELEASE, &LOOK]
}
