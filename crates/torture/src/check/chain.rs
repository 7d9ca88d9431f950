//! (a) in the store's own register: each accepted write replaces the value that its writer read, so the writes of a name
//! form one chain. Two writes over the same value are a lost update.

use super::read::{History, Kv};
use super::slice::{self, who};
use super::spells::Spells;
use super::{Finding, Property, Verdict};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Judges the writes of all names.
pub(super) fn check(history: &History, spells: &Spells<'_>, verdict: &mut Verdict) {
    let mut names: BTreeMap<&str, Vec<&Kv>> = BTreeMap::new();
    for kv in &history.kvs {
        names.entry(&kv.name).or_default().push(kv);
        match kv.accepted {
            Some(true) => verdict.counts.kv_accepted += 1,
            Some(false) => verdict.counts.kv_refused += 1,
            None => verdict.counts.kv_unknown += 1,
        }
    }
    for writes in names.values() {
        one(history, spells, writes, verdict);
    }
}

fn one(history: &History, spells: &Spells<'_>, writes: &[&Kv], verdict: &mut Verdict) {
    // A value that a later holder read was in the register, even if its writer had no answer.
    let read: HashSet<&str> = writes.iter().filter_map(|kv| kv.base.as_deref()).collect();
    let counts = |kv: &&Kv| kv.accepted.unwrap_or_else(|| read.contains(kv.value.as_str()));
    let counted: Vec<&Kv> = writes.iter().copied().filter(counts).collect();
    let mut found = |sentence: String, old: &Kv, new: &Kv| {
        let excuse = spells.taken_back(&counted, old, new);
        let lines = [old, new].map(slice::kv).into_iter();
        let lines = lines.chain(excuse.map(|spell| slice::fault(history, spell))).collect();
        let (slice, excused) = (slice::slice(history, lines), excuse.is_some());
        verdict.findings.push(Finding { property: Property::Fence, sentence, slice, excused });
    };
    let refused: HashMap<&str, &Kv> =
        writes.iter().filter(|kv| kv.accepted == Some(false)).map(|kv| (kv.value.as_str(), *kv)).collect();
    let mut replaced: HashMap<Option<&str>, &Kv> = HashMap::new();
    for kv in writes {
        if let Some(origin) = kv.base.as_deref().and_then(|base| refused.get(base)) {
            found(format!("{} reads '{}', whose write was refused", who(kv.op), origin.value), origin, kv);
        }
        if !counts(kv) {
            continue;
        }
        if let Some(other) = replaced.insert(kv.base.as_deref(), kv) {
            let value = kv.base.as_deref().unwrap_or("nothing");
            let sentence = format!("{} and {} both wrote over '{value}' in '{}'", who(other.op), who(kv.op), kv.name);
            found(sentence, other, kv);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, findings};

    fn chain() -> Sample {
        let mut s = Sample::new();
        s.kv(1, 10, None, "v1", Some(true));
        s.kv(2, 20, Some("v1"), "v2", None);
        s.kv(3, 30, Some("v1"), "v3", Some(true));
        s.kv(4, 40, Some("v1"), "v4", Some(false));
        s.kv(5, 50, Some("v3"), "v5", None);
        s.kv(6, 60, Some("v5"), "v6", Some(true));
        s
    }

    #[test]
    fn writes_without_an_answer_may_be_in_the_chain_or_not() {
        let verdict = chain().verdict();
        assert_eq!(verdict.findings, []);
        assert_eq!((verdict.counts.kv_accepted, verdict.counts.kv_refused, verdict.counts.kv_unknown), (3, 1, 2));
    }

    #[test]
    fn two_writes_over_one_value_are_found() {
        let mut s = chain();
        s.kv(7, 70, Some("v1"), "v7", Some(true));
        assert_eq!(
            findings(&s.verdict()),
            "(a) worker 0, op 3 and worker 0, op 7 both wrote over 'v1' in 'a'\n\
             | +0.030000s worker 0, op 3: writes 'v3' over 'v1' in 'a': accepted\n\
             | +0.070000s worker 0, op 7: writes 'v7' over 'v1' in 'a': accepted\n"
        );
        // The write of op 2 had no answer, but op 8 has read it.
        let mut s = chain();
        s.kv(8, 80, Some("v2"), "v8", Some(false));
        let found = findings(&s.verdict());
        assert!(found.starts_with("(a) worker 0, op 2 and worker 0, op 3 both wrote over 'v1'"), "{found}");
    }

    #[test]
    fn a_refused_write_that_is_read_is_found() {
        let mut s = chain();
        s.kv(7, 70, Some("v4"), "v7", Some(false));
        let found = findings(&s.verdict());
        assert!(found.starts_with("(a) worker 0, op 7 reads 'v4', whose write was refused\n"), "{found}");
    }
}
