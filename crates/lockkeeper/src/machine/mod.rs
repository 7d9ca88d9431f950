//! Pure state machines: `step(state, event) -> actions`, no clock, no I/O. The models check the code that ships.
//!
//! - `hold` one guard; `queue` the tasks of one name in one keeper: the engine runs both.
//! - `slot` one name in a store that keeps it as data: memory and SQLite. `quorum` what a majority of servers decides.
//!
//! The feature `internals` makes it public, so that the model checker checks what ships.

pub mod hold;
pub mod queue;
pub mod quorum;
pub mod slot;
