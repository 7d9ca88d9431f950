//! The engine on stores that tests can bend: time, messages, queues, and how everything ends.

mod blocked_log;
mod close;
#[path = "../common/mod.rs"]
mod common;
mod drop;
mod grants;
mod messages;
mod metrics;
mod queue;
mod time;
