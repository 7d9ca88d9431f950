//! The engine on stores whose clock and messages the tests control: time, messages, queues, and the end of keepers.

mod blocked_log;
mod close;
#[path = "../common/mod.rs"]
mod common;
mod drop;
mod election;
mod grants;
mod messages;
mod metrics;
mod queue;
mod settings;
mod several;
mod spans;
mod stall;
mod successor;
mod time;
