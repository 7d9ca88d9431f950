//! The tests of the commands once more, with a gateway between them and the store.
#![allow(clippy::duplicate_mod, reason = "each of the files has its helpers")]

#[path = "background.rs"]
mod background;
#[path = "cron.rs"]
mod cron;
#[path = "elect.rs"]
mod elect;
#[path = "json.rs"]
mod json;
#[path = "metrics_file.rs"]
mod metrics_file;
#[path = "once.rs"]
mod once;
#[path = "operators.rs"]
mod operators;
#[path = "run.rs"]
mod run;
#[path = "several.rs"]
mod several;
#[path = "signals.rs"]
mod signals;
#[path = "stall.rs"]
mod stall;
#[path = "terminal.rs"]
mod terminal;
#[path = "top.rs"]
mod top;
#[path = "waiting.rs"]
mod waiting;
