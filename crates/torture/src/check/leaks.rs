//! (e) At the end nothing is left: in the store, in keepers, in processes.

use super::read::{History, Worker};
use super::slice;
use super::{Finding, Property, Verdict};

/// File descriptors above the early level. A keeper talks to at most five servers, and each connection may be opened
/// anew while the old one is still being closed. Three more are the pipes of a command that is running.
const FDS: u32 = 8;
/// Threads above the early level. The runtime keeps idle threads for ten seconds after name look-ups and file reads.
const THREADS: u32 = 4;
/// How many samples make a level. More than one, because a single one may fall into a moment of reconnection.
const SAMPLES: usize = 3;

/// Judges what is left in the store and in workers that ended by themselves.
pub(super) fn check(history: &History, verdict: &mut Verdict) {
    let mut found = |sentence: String, lines| {
        verdict.counts.leaks += 1;
        let slice = slice::slice(history, lines);
        verdict.findings.push(Finding { property: Property::Leaks, sentence, slice, excused: false });
    };
    for left in &history.meta.leftovers {
        let lines = vec![slice::note(history.meta.ended, left)];
        found(format!("the store still has {left}, after every lease was over"), lines);
    }
    for (number, worker) in &history.workers {
        let Some((at, held, releasing)) = worker.stopped else { continue };
        if held != 0 || releasing != 0 {
            let text = format!("worker {number} stopped with {held} locks held and {releasing} being released");
            found(text.clone(), vec![slice::note(at, &text)]);
        }
        let levels = [("file descriptors", FDS, 0), ("threads", THREADS, 1)];
        for (what, slack, which) in levels {
            let Some((early, late)) = level(history, worker, which) else { continue };
            if late.1 > early.1 + slack {
                let line = |level: (u64, u32)| slice::note(level.0, &format!("worker {number}: {} {what}", level.1));
                let sentence = format!("worker {number} used {} {what} early and {} at its end", early.1, late.1);
                found(sentence, vec![line(early), line(late)]);
            }
        }
    }
}

/// The most of the early samples and the least of the last ones, each with its moment. Early are those of the calm part,
/// when every connection is open and no fault has been; for workers that began later, the first ones.
fn level(history: &History, worker: &Worker, which: usize) -> Option<((u64, u32), (u64, u32))> {
    let samples: Vec<(u64, u32)> =
        worker.uses.iter().map(|(at, fds, threads, _)| (*at, [*fds, *threads][which])).collect();
    let calm = samples.iter().filter(|sample| sample.0 < history.meta.calm_until).count();
    let early = calm.max(SAMPLES).min(samples.len());
    let late = samples.len().saturating_sub(SAMPLES).max(early);
    let most = samples[..early].iter().max_by_key(|sample| sample.1)?;
    let least = samples[late..].iter().min_by_key(|sample| sample.1)?;
    Some((*most, *least))
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, findings};

    fn worker(fds: [u32; 8]) -> Sample {
        let mut s = Sample::new();
        for (at, fds) in (0..).zip(fds) {
            s.uses(at * 100, fds, 7);
        }
        s.stopped(900, 0, 0);
        s
    }

    #[test]
    fn a_worker_that_ends_as_it_began_is_clean() {
        // Connections opened after the first sample, a spike, a reconnection at the end.
        assert_eq!(worker([10, 15, 15, 90, 20, 23, 23, 60]).verdict().findings, []);
    }

    #[test]
    fn descriptors_that_stay_are_found() {
        assert_eq!(
            findings(&worker([10, 15, 15, 20, 22, 25, 24, 60]).verdict()),
            "(e) worker 0 used 15 file descriptors early and 24 at its end\n\
             | +0.200000s worker 0: 15 file descriptors\n\
             | +0.600000s worker 0: 24 file descriptors\n"
        );
    }

    #[test]
    fn leftovers_and_held_locks_are_found() {
        let mut s = worker([10; 8]);
        s.meta.leftovers = vec!["key lk:a".to_owned()];
        s.stopped(900, 0, 2);
        let verdict = s.verdict();
        assert_eq!(
            findings(&verdict),
            "(e) the store still has key lk:a, after every lease was over\n\
             | +1000.000000s key lk:a\n\
             (e) worker 0 stopped with 0 locks held and 2 being released\n\
             | +0.900000s worker 0 stopped with 0 locks held and 2 being released\n"
        );
        assert_eq!(verdict.counts.leaks, 2);
    }
}
