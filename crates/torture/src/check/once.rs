//! (a) of `once`: a key has one result. No caller is given another one, and no run is let in after the one whose result was
//! given: the register where results are kept would refuse its older token, and shows the result to a newer one.

use super::read::{Did, History, Once};
use super::slice::{self, who};
use super::spells::Spells;
use super::{Finding, Property, Verdict};
use crate::history::Op;
use std::collections::{BTreeMap, HashMap};

/// What is known of one key.
#[derive(Default)]
struct Key<'a> {
    /// By caller.
    runs: HashMap<Op, &'a Once>,
    /// The first answer with each result.
    results: BTreeMap<Op, &'a Once>,
}

/// Judges all keys.
pub(super) fn check(history: &History, spells: &Spells<'_>, verdict: &mut Verdict) {
    let mut keys: BTreeMap<&str, Key<'_>> = BTreeMap::new();
    for once in &history.onces {
        let key = keys.entry(&once.key).or_default();
        match once.did {
            Did::Runs(_) => {
                key.runs.insert(once.op, once);
                verdict.counts.once_runs += 1;
            }
            Did::Gave(result) => {
                key.results.entry(result).or_insert(once);
                verdict.counts.once_results += 1;
            }
        }
    }
    for key in keys.values() {
        for (result, given) in &key.results {
            let others = key.results.iter().filter(|(other, _)| *other > result);
            for (other, second) in others {
                let (one, two) = (who(*result), who(*other));
                let sentence = format!("'{}' has the result of {one} and that of {two}", given.key);
                key.found(history, spells, verdict, sentence, *result, second);
            }
            for run in key.runs.values().filter(|run| token(run) > key.runs.get(result).map_or(u64::MAX, token)) {
                let sentence = format!("{} is let in after {}, whose result was given", who(run.op), who(*result));
                key.found(history, spells, verdict, sentence, *result, run);
            }
        }
    }
}

fn token(run: &&Once) -> u64 {
    if let Did::Runs(token) = run.did { token } else { 0 }
}

impl Key<'_> {
    /// What came `after` a run whose result was given. A fault excuses it that can have taken this result away.
    fn found(
        &self,
        history: &History,
        spells: &Spells<'_>,
        verdict: &mut Verdict,
        sentence: String,
        result: Op,
        after: &Once,
    ) {
        let (run, given) = (self.runs.get(&result), self.results.get(&result));
        let began = run.or(given).map_or(0, |once| once.at);
        let excuse = spells.lost_between(began, after.at.max(given.map_or(0, |once| once.at)));
        let lines = run.into_iter().chain(given).copied().chain([after]).map(slice::once);
        let lines = lines.chain(excuse.map(|spell| slice::fault(history, spell))).collect();
        let (slice, excused) = (slice::slice(history, lines), excuse.is_some());
        verdict.findings.push(Finding { property: Property::Fence, sentence, slice, excused });
    }
}

#[cfg(test)]
mod tests {
    use super::super::Property;
    use super::super::sample::{Sample, findings};
    use crate::history::{Class, Forgets};

    /// A run that was cut off, one whose result is given twice, and a late line of the first one.
    fn sample() -> Sample {
        let mut s = Sample::new();
        s.once_runs(1, 10, 5);
        s.once_runs(2, 20, 6);
        s.once_gave(2, 30, 2);
        s.once_gave(3, 40, 2);
        s.once_runs(4, 50, 4);
        s
    }

    #[test]
    fn runs_before_the_result_and_one_result_are_clean() {
        let verdict = sample().verdict();
        assert_eq!(verdict.findings, []);
        assert_eq!((verdict.counts.once_runs, verdict.counts.once_results), (3, 2));
    }

    #[test]
    fn two_results_of_one_key_are_found() {
        let mut s = sample();
        s.once_gave(4, 60, 4);
        let found = findings(&s.verdict());
        assert!(found.starts_with("(a) 'k' has the result of worker 0, op 2 and that of worker 0, op 4\n"), "{found}");
        assert!(found.contains("worker 0, op 4: has the result of 'k': that of worker 0, op 4\n"), "{found}");
    }

    #[test]
    fn a_run_that_is_let_in_after_the_result_is_found_and_a_loss_between_them_excuses_it() {
        let found = |wiped: (u64, u64)| {
            let mut s = sample();
            s.meta.forgets = Forgets::By(vec![Class::WipeNode]);
            s.fault(1, Class::WipeNode, "node 0", "wiped", wiped);
            s.once_runs(5, 60, 7);
            let verdict = s.verdict();
            (verdict.findings.len(), verdict.violations(Property::Fence))
        };
        assert_eq!(found((70, 80)), (1, 1), "after it");
        assert_eq!(found((12, 15)), (1, 1), "before the run whose result was given");
        assert_eq!(found((45, 50)), (1, 0));
    }
}
