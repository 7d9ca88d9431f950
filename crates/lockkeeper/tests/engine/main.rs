//! The engine on stores whose clock and messages the tests control: time, messages, queues, and the end of keepers.

mod close;
#[path = "../common/mod.rs"]
mod common;
mod drop;
mod grants;
mod logs;
mod messages;
mod metrics;
mod queue;
mod settings;
mod time;
