//! Model checks of the engine's machines and of the store's semantics: every order of steps, messages and pauses within
//! small bounds. Each model drives the code that ships, and each has broken twins that the checker must catch.

pub mod deadline;
pub mod election;
pub mod fenced;
pub mod handover;
pub mod once;
pub mod redlock;
pub mod session;
pub mod sharing;

use lockkeeper::clock::Stamp;
use lockkeeper::store::Claim;
use lockkeeper::{HolderId, LockName, Note};
use stateright::{Checker, HasDiscoveries, Model};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

static NAME: LazyLock<LockName> = LazyLock::new(|| LockName::new("model").expect("a valid name"));
static NOTE: LazyLock<Arc<Note>> = LazyLock::new(Arc::default);

/// What one check found.
#[derive(Debug)]
pub struct Outcome {
    /// How many different states were visited.
    pub states: usize,
    /// The longest path.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// The broken property and the steps that break it.
    pub broken: Option<(&'static str, Vec<String>)>,
    /// Properties of the kind "this can happen" that never did.
    pub unreached: Vec<&'static str>,
    /// Whether every reachable state was visited, unless a property broke before.
    pub done: bool,
}

/// Visits every state, or stops at the first broken property.
pub fn check<M>(model: M) -> Outcome
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    explore(model, None)
}

/// Like [`check`], and then searches for shorter and shorter paths that break the property.
pub fn shortest<M>(model: M) -> Outcome
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let mut best = explore(model.clone(), None);
    while let Some((name, steps)) = &best.broken {
        let mut next = explore(model.clone(), Some(steps.len()));
        if next.broken.as_ref().is_none_or(|(shorter, _)| shorter != name) {
            break;
        }
        next.states = next.states.max(best.states);
        next.took += best.took;
        best = next;
    }
    best
}

/// `below`: only paths of fewer steps.
fn explore<M>(model: M, below: Option<usize>) -> Outcome
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let began = Instant::now();
    let mut builder = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    if let Some(steps) = below {
        // The checker counts states on the path, not the steps between them.
        builder = builder.target_max_depth(steps + 1);
    }
    let checker = builder.spawn_bfs().join();
    let found = checker.discoveries();
    let properties = checker.model().properties();
    let failed = properties.iter().find(|p| p.expectation.discovery_is_failure() && found.contains_key(p.name));
    let broken = failed.and_then(|p| found.get(p.name).map(|path| (p.name, path.clone()))).map(|(name, path)| {
        let steps = path.into_actions().iter().map(|action| format!("{action:?}")).collect();
        (name, steps)
    });
    let unreached = properties
        .iter()
        .filter(|p| !p.expectation.discovery_is_failure() && !found.contains_key(p.name))
        .map(|p| p.name)
        .collect();
    Outcome {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        took: began.elapsed(),
        broken,
        unreached,
        done: checker.is_done(),
    }
}

impl Outcome {
    /// The model held in every state, and was not empty.
    ///
    /// # Panics
    /// When a property broke, something that should be possible never happened, or there were suspiciously few states.
    pub fn assert_holds(&self, at_least: usize) {
        assert!(self.broken.is_none(), "{:#?}", self.broken);
        assert!(self.done, "the check ended early");
        assert!(self.unreached.is_empty(), "never happened: {:?}", self.unreached);
        assert!(self.states >= at_least, "only {} states", self.states);
    }

    /// The broken property and how, to print.
    pub fn found(&self) -> String {
        self.broken.as_ref().map_or_else(String::new, |(name, steps)| {
            format!("\n  '{name}' breaks in {} steps:\n    {}", steps.len(), steps.join("\n    "))
        })
    }

    /// Checks that the checker broke `property`; returns the number of steps.
    ///
    /// # Panics
    /// When it found none, or another.
    pub fn assert_breaks(&self, property: &str) -> usize {
        match &self.broken {
            Some((name, steps)) => {
                assert_eq!(*name, property, "{steps:#?}");
                steps.len()
            }
            None => panic!("'{property}' was not broken in {} states: the model would not notice", self.states),
        }
    }
}

/// A queueing Exclusive claim.
fn claim(id: HolderId, ttl: Duration, stamp: Stamp) -> Claim {
    let mut claim = Claim::new(NAME.clone(), id, ttl, stamp, NOTE.clone());
    claim.queue = true;
    claim
}
