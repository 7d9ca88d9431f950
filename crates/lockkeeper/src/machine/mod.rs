//! The engine's pure state machines: `step(state, event) -> actions`, no clock, no I/O.
//!
//! Public so that the model checker checks what ships; not part of the stable interface.

pub mod hold;
pub mod queue;
