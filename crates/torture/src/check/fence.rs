//! (a) on the register server: what it accepted, in its own order.

use super::read::History;
use super::slice::{self, who};
use super::{Finding, Property, Verdict};
use crate::history::{Op, Request, Served, Wanted};
use std::collections::HashMap;

/// The registers of one name as their lines so far say.
#[derive(Default)]
struct Registers<'a> {
    /// The accepted line with the highest token.
    top: Option<&'a Served>,
    /// Accepted writes: the version of the fenced register.
    fenced: u64,
    /// All writes: the version of the naked one.
    naked: u64,
    /// The last accepted write.
    written: Option<&'a Served>,
    ops: HashMap<Op, Section<'a>>,
}

/// What one operation did so far.
#[derive(Default)]
struct Section<'a> {
    entered: Option<&'a Served>,
    /// Its last read, if it had entered before.
    read: Option<&'a Served>,
}

/// Judges every line of the register server.
pub(super) fn check(history: &History, verdict: &mut Verdict) {
    let mut names: HashMap<&str, Registers<'_>> = HashMap::new();
    let mut seq = None;
    for line in &history.served {
        let registers = names.entry(&line.name).or_default();
        let mut found = |sentence: String, lines: &[Option<&Served>]| {
            let lines = lines.iter().flatten().copied().chain([line]).map(slice::served).collect();
            let slice = slice::slice(history, lines);
            verdict.findings.push(Finding { property: Property::Fence, sentence, slice, excused: false });
        };
        if seq.is_some_and(|seq| seq >= line.seq) {
            found(
                format!("the register server's line {} stands after line {}", line.seq, seq.unwrap_or_default()),
                &[],
            );
        }
        seq = Some(line.seq);
        match line.request {
            Request::Enter { accepted: true } => {
                registers.clears(line, &mut found);
                registers.ops.entry(line.op).or_default().entered.get_or_insert(line);
            }
            Request::Enter { accepted: false } => verdict.counts.enters_refused += 1,
            Request::Read { fenced, .. } => {
                if fenced != registers.fenced {
                    let sentence = format!("a read shows version {fenced} after {} accepted writes", registers.fenced);
                    found(sentence, &[registers.written]);
                }
                let section = registers.ops.entry(line.op).or_default();
                section.read = section.entered.map(|_| line);
            }
            Request::Write { accepted, fenced_base, fenced_was, naked_base, naked_was } => {
                if fenced_was != registers.fenced {
                    let sentence =
                        format!("a write finds version {fenced_was} after {} accepted writes", registers.fenced);
                    found(sentence, &[registers.written]);
                }
                if accepted {
                    registers.clears(line, &mut found);
                    registers.write(history, line, fenced_base, &mut found);
                    verdict.counts.writes_accepted += 1;
                    verdict.counts.lost_fenced += u64::from(fenced_base != fenced_was);
                    registers.fenced += 1;
                    registers.written = Some(line);
                } else {
                    verdict.counts.writes_refused += 1;
                }
                if naked_was != registers.naked {
                    let sentence = format!("a write finds naked version {naked_was} after {} writes", registers.naked);
                    found(sentence, &[]);
                }
                registers.naked += 1;
                verdict.counts.lost_naked += u64::from(naked_base != naked_was);
            }
        }
    }
}

impl<'a> Registers<'a> {
    /// The rule of all fences: tokens never fall, and an equal one is the same holder's.
    fn clears(&mut self, line: &'a Served, found: &mut impl FnMut(String, &[Option<&Served>])) {
        let Some(top) = self.top else {
            self.top = Some(line);
            return;
        };
        // A section run by a command does not know its holder.
        let same =
            if top.holder.is_empty() || line.holder.is_empty() { top.op == line.op } else { top.holder == line.holder };
        if line.token < top.token {
            found(format!("token {} is accepted after token {}", line.token, top.token), &[self.top]);
        } else if line.token == top.token && !same {
            let (one, other) = (who(top.op), who(line.op));
            found(format!("token {} is accepted from {one} and from {other}", line.token), &[self.top]);
        }
        if line.token > top.token {
            self.top = Some(line);
        }
    }

    /// What an accepted write must be besides.
    fn write(&self, history: &History, line: &Served, base: u64, found: &mut impl FnMut(String, &[Option<&Served>])) {
        let section = self.ops.get(&line.op);
        let entered = section.and_then(|section| section.entered);
        let read = section.and_then(|section| section.read);
        let writer = who(line.op);
        if entered.is_none() {
            found(format!("a write of {writer} is accepted, but the fence had not let it in"), &[]);
        } else if read.is_some() && base != self.fenced {
            let sentence = format!("{writer} writes over version {}, but had read version {base}", self.fenced);
            found(sentence, &[entered, read, self.written]);
        }
        if history.attempt(line.op).is_some_and(|attempt| attempt.wanted != Wanted::Exclusive) {
            found(format!("{writer} writes, but does not hold the lock alone"), &[entered]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, findings};
    use super::*;

    /// Enter, read and write of one section.
    fn section(s: &mut Sample, op: Op, at: u64, token: u64, version: u64) {
        s.enter(op, at, token, true);
        s.read(op, at + 1, token, version, version);
        s.write(op, at + 2, token, true, (version, version), (version, version));
    }

    fn two_sections() -> Sample {
        let mut s = Sample::new();
        s.held(1, "a", (0, 10, 50), 5);
        s.held(2, "a", (20, 60, 90), 6);
        section(&mut s, 1, 11, 5, 0);
        section(&mut s, 2, 61, 6, 1);
        s
    }

    #[test]
    fn sections_in_order_are_clean() {
        let verdict = two_sections().verdict();
        assert_eq!(verdict.findings, []);
        assert_eq!((verdict.counts.writes_accepted, verdict.counts.lost_fenced), (2, 0));
    }

    #[test]
    fn a_late_write_that_is_refused_is_clean_and_costs_the_naked_register_an_update() {
        let mut s = two_sections();
        s.write(1, 95, 5, false, (0, 2), (0, 2));
        s.enter(1, 96, 5, false);
        s.read(2, 97, 6, 2, 3);
        let verdict = s.verdict();
        assert_eq!(verdict.findings, []);
        let counts = verdict.counts;
        assert_eq!((counts.writes_refused, counts.enters_refused, counts.lost_naked, counts.lost_fenced), (1, 1, 1, 0));
    }

    #[test]
    fn a_falling_token_is_found_with_the_two_lines() {
        let mut s = two_sections();
        s.write(1, 95, 5, true, (2, 2), (2, 2));
        let found = findings(&s.verdict());
        assert_eq!(
            found,
            "(a) token 5 is accepted after token 6\n\
             | +0.061000s register 'a' #4: worker 0, op 2, token 6: enter accepted\n\
             | +0.095000s register 'a' #7: worker 0, op 1, token 5: write accepted: fenced 2 read, 2 found; naked 2 read, \
             2 found\n"
        );
    }

    #[test]
    fn one_token_of_two_holders_is_found() {
        let mut s = two_sections();
        s.held(3, "a", (91, 92, 99), 7);
        s.served_by("other").enter(3, 95, 6, true);
        let found = findings(&s.verdict());
        assert!(found.starts_with("(a) token 6 is accepted from worker 0, op 2 and from worker 0, op 3\n"), "{found}");
        assert_eq!(found.lines().count(), 3);
        // Without holders the operation decides.
        let mut s = Sample::new();
        s.served_by("").enter(1, 1, 6, true);
        s.served_by("").enter(1, 2, 6, true);
        assert_eq!(s.verdict().findings, []);
        s.served_by("").enter(2, 3, 6, true);
        assert_eq!(s.verdict().violations(Property::Fence), 1);
    }

    #[test]
    fn a_lost_update_on_the_fenced_register_is_found_with_its_reader_and_its_writer() {
        let mut s = two_sections();
        s.held(3, "a", (91, 92, 99), 7);
        s.enter(3, 93, 7, true);
        s.read(3, 94, 7, 2, 2);
        s.write(3, 95, 7, true, (2, 2), (2, 2));
        s.write(3, 96, 7, true, (2, 3), (2, 3));
        let verdict = s.verdict();
        let found = findings(&verdict);
        assert!(found.starts_with("(a) worker 0, op 3 writes over version 3, but had read version 2\n"), "{found}");
        assert_eq!(found.lines().count(), 5);
        assert_eq!((verdict.counts.lost_fenced, verdict.counts.lost_naked), (1, 1));
    }

    #[test]
    fn a_visible_refused_write_and_a_write_without_enter_are_found() {
        let mut s = two_sections();
        s.write(1, 95, 5, false, (2, 2), (2, 2));
        s.read(2, 97, 6, 3, 3);
        assert_eq!(findings(&s.verdict()).lines().next(), Some("(a) a read shows version 3 after 2 accepted writes"));
        let mut s = two_sections();
        s.held(3, "a", (91, 92, 99), 7);
        s.write(3, 95, 7, true, (2, 2), (2, 2));
        let sentence = "(a) a write of worker 0, op 3 is accepted, but the fence had not let it in";
        assert_eq!(findings(&s.verdict()).lines().next(), Some(sentence));
    }

    #[test]
    fn a_write_under_a_shared_lock_is_found() {
        let mut s = Sample::new();
        s.wants(1, "a", Wanted::Shared).held(1, "a", (0, 10, 50), 5);
        section(&mut s, 1, 11, 5, 0);
        let found = findings(&s.verdict());
        assert!(found.starts_with("(a) worker 0, op 1 writes, but does not hold the lock alone\n"), "{found}");
    }
}
