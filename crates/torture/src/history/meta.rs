//! What was run: the mode and what it promises, and what repeats the run.

use super::{Class, Nanos};
use crate::worker::{Kind, Sections};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// What was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Meta {
    pub(crate) mode: String,
    /// Which client took the locks; `lockkeeper` is ours.
    #[serde(default)]
    pub(crate) subject: String,
    /// What the faults were drawn from, one after the other.
    pub(crate) seeds: Vec<u64>,
    pub(crate) commit: String,
    /// Of the servers, the kernel and the compiler.
    pub(crate) versions: Vec<String>,
    pub(crate) workers: u32,
    /// What else repeats it; earlier harnesses did not write it down.
    #[serde(default)]
    pub(crate) setup: Option<Setup>,
    pub(crate) ttl_ms: u64,
    /// A waiter gets in within the TTL and this, once all faults are healed.
    pub(crate) bound_ms: u64,
    /// The `max_hold` of every lock that is taken: a forgotten guard ends by then. 0 without one.
    #[serde(default)]
    pub(crate) max_hold_ms: u64,
    /// Which faults may cost exclusion (c) on this mode, by what the store promises.
    pub(crate) excuses: Vec<Class>,
    /// Whether waiters are served in order.
    pub(crate) fifo: bool,
    /// Which faults take tokens and registers of the store back: then the chain of its own register may break.
    pub(crate) forgets: Forgets,
    pub(crate) began: Nanos,
    /// Before this moment there was no fault: a loss before it is a false one.
    pub(crate) calm_until: Nanos,
    /// All faults were healed by then.
    pub(crate) healed: Nanos,
    pub(crate) ended: Nanos,
    /// What the store still had of locks at the end, once every lease was over.
    pub(crate) leftovers: Vec<String>,
    /// Servers that ended by themselves, and what they said.
    pub(crate) crashed: Vec<String>,
}

impl Meta {
    /// The seeds, with commas between them.
    pub(crate) fn seeds_said(&self) -> String {
        let seeds: Vec<String> = self.seeds.iter().map(u64::to_string).collect();
        seeds.join(", ")
    }

    /// Whether faults of that class may take the store's data back to an earlier state, or all of it away.
    pub(crate) fn takes_back(&self, class: Class) -> bool {
        match &self.forgets {
            Forgets::By(classes) => classes.contains(&class),
            // A clock takes nothing back, whatever else it costs.
            Forgets::Ever(ever) => *ever && class != Class::Clock && self.excuses.contains(&class),
        }
    }
}

/// Which faults take a store's data back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Forgets {
    /// Faults of these classes; of an operator's acts, those whose words say so.
    By(Vec<Class>),
    /// As earlier harnesses wrote: whether there are such faults among those that may cost exclusion.
    Ever(bool),
}

/// What repeats a run besides its mode, its seeds and the number of its workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) command: Subcommand,
    /// How long faults happened.
    pub(crate) seconds: u64,
    /// Tasks or threads of each worker.
    pub(crate) tasks: u32,
    /// How many Exclusive locks.
    pub(crate) names: usize,
    /// The mean time between two faults.
    pub(crate) gap_ms: u64,
    pub(crate) sections: Sections,
    /// Only these; all when empty, and so the next two.
    pub(crate) classes: Vec<Class>,
    pub(crate) variants: Vec<String>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) ttls: Vec<u32>,
    pub(crate) drops: u32,
}

/// Which subcommand of this program ran it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Subcommand {
    Run,
    Soak,
    Smoke,
}

impl Meta {
    /// The command that repeats it; `None` when that was not written down.
    pub(crate) fn command(&self) -> Option<String> {
        let (mode, setup) = (&self.mode, self.setup.as_ref()?);
        let seed = self.seeds.last()?;
        Some(match setup.command {
            Subcommand::Run => format!("torture run {mode} --seed {seed}{}", self.of_a_run(setup)),
            Subcommand::Soak => format!("torture soak {mode} --seed {seed}{}", self.of_a_soak(setup)),
            // The first of its two seeds is the same at all times.
            Subcommand::Smoke => format!("torture smoke --modes {mode} --seed {seed} --seconds {}", setup.seconds),
        })
    }

    /// The arguments of `torture run`; those that are mostly left out only where they say something else.
    fn of_a_run(&self, setup: &Setup) -> String {
        let Setup { seconds, tasks, names, gap_ms, .. } = setup;
        let workers = self.workers;
        let mut text =
            format!(" --seconds {seconds} --workers {workers} --tasks {tasks} --names {names} --gap-ms {gap_ms}");
        let mut add = |flag: &str, value: String, usual: &str| {
            if value != usual {
                let _ = write!(text, " --{flag} {value}");
            }
        };
        add("sections", word(&setup.sections), "mixed");
        add("subject", self.subject.clone(), "lockkeeper");
        add("classes", words(&setup.classes), "");
        add("variants", words(&setup.variants), "");
        add("kinds", words(&setup.kinds), "");
        add("ttls", words(&setup.ttls), "1");
        add("drops", setup.drops.to_string(), &crate::DROPS.to_string());
        text
    }

    /// The arguments of `torture soak`, which has half as many names more than locks.
    fn of_a_soak(&self, setup: &Setup) -> String {
        let (minutes, locks, workers) = (setup.seconds / 60, setup.names * 2 / 3, self.workers);
        let (ttl, gap_ms) = (self.ttl_ms / 1_000, setup.gap_ms);
        let classes = words(&setup.classes);
        let classes = if classes.is_empty() { classes } else { format!(" --classes {classes}") };
        format!(
            " --minutes {minutes} --locks {locks} --workers {workers} --ttl-seconds {ttl} --gap-ms {gap_ms}{classes}"
        )
    }
}

/// A value as it is spelt on the command line, which is as it stands in a history.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

/// A list, with commas. A word with spaces is quoted for the shell.
fn words(values: &[impl Serialize]) -> String {
    let all = values.iter().map(word).collect::<Vec<_>>().join(",");
    if all.contains([' ', '\'']) { format!("'{}'", all.replace('\'', "'\\''")) } else { all }
}
