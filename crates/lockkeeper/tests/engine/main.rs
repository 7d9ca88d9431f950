//! The engine on stores that tests can bend: time, messages, queues, and how everything ends.

mod close;
#[path = "../common/mod.rs"]
mod common;
mod drop;
mod grants;
mod logs;
mod messages;
mod metrics;
mod queue;
mod time;
