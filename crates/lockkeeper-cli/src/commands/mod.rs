//! One file per command.

pub(crate) mod break_lock;
pub(crate) mod completions;
pub(crate) mod cron;
pub(crate) mod doctor;
pub(crate) mod elect;
pub(crate) mod fence;
pub(crate) mod history;
pub(crate) mod leader;
mod loan;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod once;
mod ready;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod show;
pub(crate) mod store;
pub(crate) mod top;
pub(crate) mod ui;
