//! What people build with a lock: a leader, a job that runs once, an effect that happens once, several names, any free one.
//!
//! A recipe knows [`Lock`](crate::Lock) and [`FencedRegister`](crate::FencedRegister) and no store, so every store has all
//! of them. Its lock and its register have the same name, which begins with the recipe's: `election/scheduler`,
//! `job/nightly-report`, `once/charge/42`.

pub mod election;
pub mod job;
mod kept;
mod lock_all;
mod lock_any;
pub mod once;
mod patience;
mod several;
#[doc(hidden)]
pub mod steps;
#[cfg(feature = "tower")]
pub mod tower;

pub use election::Election;
pub use job::Job;
pub use lock_all::{GuardAll, LockAll};
pub use lock_any::LockAny;
pub use once::Once;
