//! The report: tables of what was run and found, and plots. Text and links around them are written by hand.

mod handovers;
mod runs;
mod soak;
mod svg;
mod timeline;

pub(crate) use handovers::handovers;
pub(crate) use soak::{Soak, soak, soaks};
pub(crate) use timeline::timeline;

use crate::check::{Counts, Finding, Property, of};
use crate::history::{Class, Meta};
use std::fmt::Write as _;

/// One run, with what the checkers said of it.
pub(crate) type Run = (Meta, Counts, Vec<Finding>);

/// All runs of one client in one mode.
struct Of<'a> {
    mode: &'a str,
    subject: &'a str,
    runs: Vec<&'a Run>,
    counts: Counts,
}

/// The runs by mode and client, in the order in which they first appear.
fn by_mode<'a>(runs: &[&'a Run]) -> Vec<Of<'a>> {
    let mut modes: Vec<Of<'_>> = Vec::new();
    for run in runs {
        let (mode, subject) = (run.0.mode.as_str(), run.0.subject.as_str());
        let place = modes.iter().position(|of| (of.mode, of.subject) == (mode, subject)).unwrap_or_else(|| {
            modes.push(Of { mode, subject, runs: Vec::new(), counts: Counts::default() });
            modes.len() - 1
        });
        modes[place].runs.push(run);
        modes[place].counts.add(&run.1);
    }
    modes
}

impl Of<'_> {
    fn minutes(&self) -> String {
        let nanos: u64 = self.runs.iter().map(|run| run.0.ended.saturating_sub(run.0.began)).sum();
        format!("{:.1}", nanos as f64 / 60e9)
    }

    fn findings(&self, property: Property, excused: bool) -> usize {
        self.runs.iter().map(|run| of(&run.2, property, excused)).sum()
    }
}

/// Tables in Markdown, one row for each mode, and a list of all violations. Other clients have a table of their own.
pub(crate) fn page(runs: &[Run]) -> String {
    let is_ours = |run: &&Run| matches!(run.0.subject.as_str(), "" | "lockkeeper");
    let (runs, others): (Vec<&Run>, Vec<&Run>) = runs.iter().partition(is_ours);
    let modes = by_mode(&runs);
    let mut all = Counts::default();
    runs.iter().for_each(|run| all.add(&run.1));
    let violations: usize = runs.iter().map(|run| run.2.iter().filter(|finding| !finding.excused).count()).sum();
    let mut page = format!(
        "{} violations in {} operations ({} acquisitions) under {} faults of {} classes that were injected, and {} acts \
         of the workers themselves; {} runs of {} modes.\n",
        thousands(violations as u64),
        thousands(all.operations),
        thousands(all.granted),
        thousands(all.injected()),
        all.classes_injected(),
        thousands(all.acts()),
        runs.len(),
        modes.len()
    );
    what_was_run(&mut page, &modes);
    found(&mut page, &modes);
    times(&mut page, &modes);
    faults(&mut page, &modes);
    other_clients(&mut page, &by_mode(&others));
    runs::list(&mut page, &runs, &modes);
    page
}

fn what_was_run(page: &mut String, modes: &[Of<'_>]) {
    page.push_str(
        "\n## What was run\n\nThe nemesis injects faults. Besides, workers drop calls half-way, forget guards and \
         abort: these are their acts.\nFenced writes are those to the harness' own register.\n\n",
    );
    let row = |of: &Of<'_>| {
        let counts = &of.counts;
        let mut cells = vec![of.mode.into(), of.runs.len().to_string(), of.minutes()];
        cells.extend([counts.operations, counts.granted, counts.busy, counts.ambiguous].map(thousands));
        let refused = counts.writes_refused + counts.enters_refused;
        cells.extend([counts.injected(), counts.acts(), counts.writes_accepted, refused].map(thousands));
        cells
    };
    let head = ["mode", "runs", "minutes", "operations", "granted", "busy", "ambiguous"];
    let more = ["faults injected", "acts of workers", "fenced writes", "refused"];
    table(page, &[&head[..], &more[..]].concat(), modes.iter().map(row));
    page.push_str(
        "\nWrites to the library's own register, a fence inside the store. `once` keeps its results there. Where all are 0 \
         the store has none.\n\n",
    );
    let row = |of: &Of<'_>| {
        let counts = &of.counts;
        let once = [counts.once_runs, counts.once_results];
        let figures = [counts.kv_accepted, counts.kv_refused, counts.kv_unknown].into_iter().chain(once).map(thousands);
        [of.mode.to_owned()].into_iter().chain(figures).collect()
    };
    let head = ["mode", "accepted", "refused", "without an answer", "runs of `once`", "results of `once`"];
    table(page, &head, modes.iter().map(row));
}

/// What the same faults do to clients without tokens: what they protect is the naked register.
fn other_clients(page: &mut String, others: &[Of<'_>]) {
    if others.is_empty() {
        return;
    }
    page.push_str("\n## Other clients under the same faults\n\n");
    let row = |of: &Of<'_>| {
        let counts = &of.counts;
        let mut cells = vec![format!("{}, {}", of.subject, of.mode)];
        cells.extend([counts.operations, counts.granted, counts.injected(), counts.overlaps].map(thousands));
        cells.extend([longest(counts), thousands(counts.lost_naked), time_of(counts, 0.5), time_of(counts, 0.99)]);
        cells
    };
    let head = ["client, mode", "operations", "granted", "faults", "believed overlaps", "longest"];
    let more = ["lost updates, naked", "hand-over p50", "p99"];
    table(page, &[&head[..], &more[..]].concat(), others.iter().map(row));
}

/// The longest overlap.
fn longest(counts: &Counts) -> String {
    if counts.overlaps == 0 { "–".to_owned() } else { time(counts.overlap_max_us) }
}

/// A quantile of hand-overs.
fn time_of(counts: &Counts, part: f64) -> String {
    counts.handover.quantile(part).map_or_else(|| "–".to_owned(), time)
}

/// Violations, and what a promise does not cover.
fn found(page: &mut String, modes: &[Of<'_>]) {
    page.push_str(
        "\n## What was found\n\nViolations of each property, then figures that no lock service can keep at 0.\n\n",
    );
    for property in Property::ALL {
        let _ = writeln!(page, "- ({}) {}", property.letter(), property.words());
    }
    page.push('\n');
    let letters = Property::ALL.map(|property| format!("({})", property.letter()));
    let mut head = vec!["mode"];
    head.extend(letters.iter().map(String::as_str));
    head.extend(["believed overlaps", "longest", "lost updates, naked", "lost updates, fenced"]);
    head.extend(["losses", "late", "false", "leaks", "not searched"]);
    let row = |of: &Of<'_>| {
        let counts = &of.counts;
        let mut cells = vec![of.mode.to_owned()];
        cells.extend(Property::ALL.map(|property| match of.findings(property, true) {
            0 => of.findings(property, false).to_string(),
            excused => format!("{} ({excused} excused)", of.findings(property, false)),
        }));
        cells.extend([thousands(counts.overlaps), longest(counts)]);
        let figures = [counts.lost_naked, counts.lost_fenced, counts.losses];
        cells.extend(figures.map(thousands));
        let figures = [counts.late_losses, counts.false_losses, counts.leaks, counts.not_searched];
        cells.extend(figures.map(thousands));
        cells
    };
    table(page, &head, modes.iter().map(row));
}

fn times(page: &mut String, modes: &[Of<'_>]) {
    page.push_str(
        "\n## Hand-over\n\nFrom the call of a release to the answer of the next caller in line, faults included.\n\n",
    );
    let row = |of: &Of<'_>| {
        let counts = &of.counts;
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|part| time_of(counts, part));
        vec![of.mode.to_owned(), thousands(counts.handover.count), p50, p99, max, thousands(counts.overtakings)]
    };
    table(page, &["mode", "hand-overs", "p50", "p99", "max", "overtakings without faults"], modes.iter().map(row));
}

fn faults(page: &mut String, modes: &[Of<'_>]) {
    page.push_str("\n## Faults by class\n\nThose of the class `client` are acts of the workers themselves.\n\n");
    let mut head = vec!["class"];
    head.extend(modes.iter().map(|of| of.mode));
    let row = |class: Class| {
        let count = |of: &Of<'_>| of.counts.faults.get(&class).map_or("–".to_owned(), |count| thousands(*count));
        [class.word().to_owned()].into_iter().chain(modes.iter().map(count)).collect()
    };
    table(page, &head, Class::ALL.into_iter().map(row));
}

fn table(page: &mut String, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let _ = writeln!(page, "| {} |", head.join(" | "));
    // Words on the left, figures on the right.
    let _ = writeln!(page, "|---|{}", "--:|".repeat(head.len() - 1));
    for cells in rows {
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
}

/// A figure with separators.
pub(super) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Microseconds in the unit that people would use.
pub(super) fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..10_000 => format!("{:.1} ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::sample_meta;

    pub(super) fn run(mode: &str, seed: u64) -> Run {
        let mut counts = Counts { operations: 1_200, granted: 1_000, busy: 150, ambiguous: 50, ..Counts::default() };
        counts.faults.insert(Class::KillNode, 3);
        counts.faults.insert(Class::Client, 20);
        (counts.kv_accepted, counts.kv_refused, counts.kv_unknown) = (70, 6, 1);
        counts.handover.record(500);
        counts.handover.record(2_500_000);
        counts.overlaps = 2;
        counts.overlap_max_us = 12_000;
        let finding = |excused| Finding {
            property: Property::Exclusion,
            sentence: "two held it".to_owned(),
            slice: Vec::new(),
            excused,
        };
        let (mode, commit) = (mode.to_owned(), "abc1234".to_owned());
        let ended = 90_000_000_000;
        (
            Meta { mode, seeds: vec![seed], commit, ended, ..sample_meta() },
            counts,
            vec![finding(true), finding(seed == 8)],
        )
    }

    #[test]
    fn runs_of_a_mode_add_up_to_one_row() {
        let page = page(&[run("redis1", 7), run("etcd3", 8), run("redis1", 8)]);
        assert!(
            page.starts_with(
                "1 violations in 3,600 operations (3,000 acquisitions) under 9 faults of 1 classes that were injected, \
                 and 60 acts of the workers themselves; 3 runs of 2 modes.\n"
            ),
            "{page}"
        );
        assert!(page.contains("| redis1 | 2 | 3.0 | 2,400 | 2,000 | 300 | 100 | 6 | 40 | 0 | 0 |\n"), "{page}");
        assert!(page.contains("| redis1 | 140 | 12 | 2 | 0 | 0 |\n"), "{page}");
        assert!(page.contains("| redis1 | 0 | 0 | 1 (3 excused) | 0 | 0 | 0 | 0 | 0 | 4 | 12 ms |"), "{page}");
        assert!(page.contains("| redis1 | 4 | 501 µs | 2.5 s | 2.5 s | 0 |\n"), "{page}");
        assert!(page.contains("| kill-node | 6 | 3 |\n") && page.contains("| disk | – | – |\n"), "{page}");
        assert!(page.contains("| client | 40 | 20 |\n"), "{page}");
    }

    #[test]
    fn other_clients_have_a_table_and_no_violations_of_ours() {
        let mut other = run("redis1", 7);
        other.0.subject = "redis-py".to_owned();
        let page = page(&[run("redis1", 8), other]);
        assert!(page.starts_with("0 violations in 1,200 operations"), "{page}");
        let row = "| redis-py, redis1 | 1,200 | 1,000 | 3 | 2 | 12 ms | 0 | 501 µs | 2.5 s |\n";
        assert!(page.contains(row) && !page.contains("two held it"), "{page}");
    }

    #[test]
    fn every_row_of_a_table_has_as_many_cells_as_its_head() {
        let page = page(&[run("redis1", 7), run("etcd3", 8)]);
        let mut cells = None;
        for line in page.lines() {
            let bars = line.matches('|').count();
            if bars == 0 {
                cells = None;
                continue;
            }
            assert_eq!(*cells.get_or_insert(bars), bars, "{line}");
        }
    }

    #[test]
    fn figures_are_for_people() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([7, 1_500, 15_400, 2_500_000].map(time), ["7 µs", "1.5 ms", "15 ms", "2.5 s"]);
    }
}
