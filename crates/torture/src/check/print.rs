//! A verdict for people.

use super::{Property, Verdict, of};
use std::io::{self, Write};

/// So many findings of a property are printed in full: they tend to be the same one again.
const SHOWN: usize = 5;

/// Writes one line a property, then the findings with their slices.
pub(crate) fn print(verdict: &Verdict, out: &mut impl Write) -> io::Result<()> {
    let counts = &verdict.counts;
    writeln!(
        out,
        "{} operations: {} granted, {} busy, {} ambiguous; {} faults, {} acts of workers",
        counts.operations,
        counts.granted,
        counts.busy,
        counts.ambiguous,
        counts.injected(),
        counts.acts()
    )?;
    for property in Property::ALL {
        let (violations, excused) = (verdict.violations(property), of(&verdict.findings, property, true));
        write!(out, "({}) {}: {violations} violations", property.letter(), property.words())?;
        if excused > 0 {
            write!(out, ", {excused} excused")?;
        }
        writeln!(out, "{}", judged(verdict, property))?;
    }
    for property in Property::ALL {
        for excused in [false, true] {
            show(verdict, property, excused, out)?;
        }
    }
    Ok(())
}

/// On what the line of a property rests.
fn judged(verdict: &Verdict, property: Property) -> String {
    let counts = &verdict.counts;
    match property {
        Property::Fence => format!(
            " in {} accepted and {} refused writes; lost updates: {} fenced, {} naked; {} results of {} runs of `once`",
            counts.writes_accepted,
            counts.writes_refused,
            counts.lost_fenced,
            counts.lost_naked,
            counts.once_results,
            counts.once_runs
        ),
        Property::Progress => {
            let part = |part| counts.handover.quantile(part).unwrap_or_default();
            let (p50, p99, max) = (part(0.5), part(0.99), counts.handover.max_us);
            format!(
                " in {} names with waiters; {} hand-overs: p50 {p50} µs, p99 {p99} µs, max {max} µs; {} overtakings",
                counts.waits_judged, counts.handover.count, counts.overtakings
            )
        }
        Property::Losses => {
            let (late, groundless) = (counts.late_losses, counts.false_losses);
            format!(" in {} losses: {late} late, {groundless} false", counts.losses)
        }
        Property::Leaks if counts.samples > 0 => {
            format!(" in {} samples; {} locks held in the median", counts.samples, counts.held)
        }
        Property::Linear => {
            format!(" in {} acquisitions; {} not searched", counts.searched, counts.not_searched)
        }
        _ => String::new(),
    }
}

fn show(verdict: &Verdict, property: Property, excused: bool, out: &mut impl Write) -> io::Result<()> {
    let all = of(&verdict.findings, property, excused);
    // An excused one is no defect: one example is enough.
    let shown = if excused { 1 } else { SHOWN };
    let findings = verdict.findings.iter().filter(|one| one.property == property && one.excused == excused);
    for finding in findings.take(shown) {
        let word = if excused { "excused" } else { "violation" };
        writeln!(out, "\n{word} of ({}): {}", property.letter(), finding.sentence)?;
        for line in &finding.slice {
            writeln!(out, "    {line}")?;
        }
    }
    if all > shown {
        writeln!(out, "    … and {} more", all - shown)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::*;

    #[test]
    fn a_verdict_is_printed_with_a_limit_for_each_property() {
        let mut s = Sample::new();
        s.held(1, "a", (0, 10, 20), 1);
        for number in 0..8 {
            s.log(&format!("worker-{number}.err"), "panicked at x\n");
        }
        let mut text = Vec::new();
        print(&s.verdict(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.starts_with("1 operations: 1 granted, 0 busy, 0 ambiguous; 0 faults, 0 acts of workers\n(a) "),
            "{text}"
        );
        assert!(text.contains("\n(h) no panic, no secret, no crash: 8 violations\n"), "{text}");
        assert_eq!(text.matches("violation of (h): ").count(), SHOWN);
        assert!(text.contains("    worker-0.err:1: panicked at x\n") && text.ends_with("… and 3 more\n"), "{text}");
    }
}
