//! The steps of the recipes, without a keeper: for this repository's gateway, which carries them out for clients that have
//! only HTTP. It may change in any version.
//!
//! What stands in a register, and what a caller makes of it, is the same code that [`Once`](super::Once),
//! [`Election`](super::Election) and [`Job`](super::Job) run.

pub use super::kept::{decode, encode};

/// Of [`Once`](super::Once).
pub mod once {
    pub use crate::recipes::once::MAX_RESULT;
    pub use crate::recipes::once::record::{DEFAULT_KEEP, Record, Terms, Verdict, check_keep, judge, name};
}

/// Of [`Election`](super::Election).
pub mod election {
    pub use crate::recipes::election::proclaimed::{Proclaimed, check_value, holding, leader, name};
}

/// Of [`Job`](super::Job).
pub mod job {
    pub use crate::recipes::job::book::Book;
    pub use crate::recipes::job::history::history;
    pub use crate::recipes::job::settings::{Settings, name, rest_name};
    pub use crate::recipes::job::terms::{Begun, Entry, Terms, busy};
    pub use crate::recipes::job::window::{Millis, Target, millis};
}
