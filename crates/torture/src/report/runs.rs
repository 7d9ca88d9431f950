//! Each run by itself: what repeats it, the versions, and the violations in words.

use super::{Of, Run, table, thousands, time};
use std::fmt::Write as _;

/// Each run with what repeats it, versions, and violations in words.
pub(super) fn list(page: &mut String, runs: &[&Run], modes: &[Of<'_>]) {
    page.push_str(
        "\n## Runs\n\nThe command of a row draws the same faults again, on the commit of the row. What they meet depends \
         on time.\n\n",
    );
    let row = |(meta, counts, findings): &&Run| {
        let violations = findings.iter().filter(|finding| !finding.excused).count();
        let mut cells = vec![meta.mode.clone(), meta.seeds_said(), meta.commit.clone(), meta.workers.to_string()];
        cells.extend([time(meta.ttl_ms * 1_000), thousands(counts.operations)]);
        cells.extend([thousands(counts.injected()), thousands(counts.acts()), violations.to_string()]);
        // Histories of earlier harnesses do not say.
        cells.push(meta.command().map_or_else(|| "–".to_owned(), |command| format!("`{command}`")));
        cells
    };
    let head = ["mode", "seed", "commit", "workers", "TTL", "operations", "faults injected", "acts of workers"];
    table(page, &[&head[..], &["violations", "command"]].concat(), runs.iter().map(row));
    page.push_str("\n## Versions\n\n");
    for of in modes {
        let mut versions: Vec<&str> = of.runs.iter().flat_map(|run| &run.0.versions).map(String::as_str).collect();
        versions.sort_unstable();
        versions.dedup();
        let _ = writeln!(page, "- {}: {}", of.mode, versions.join("; "));
    }
    let all = runs.iter().flat_map(|run| run.2.iter().map(move |finding| (&run.0, finding)));
    let violations: Vec<_> = all.filter(|(_, finding)| !finding.excused).collect();
    if violations.is_empty() {
        return;
    }
    page.push_str("\n## Violations\n\n");
    for (meta, finding) in violations {
        let letter = finding.property.letter();
        let _ = writeln!(page, "- ({letter}) {}, seed {}: {}", meta.mode, meta.seeds_said(), finding.sentence);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::super::{by_mode, page};
    use super::*;
    use crate::args::{Cli, Command};
    use crate::check::sample_meta;
    use crate::history::{Class, Meta};
    use crate::run::Plan;
    use clap::Parser;

    #[test]
    fn a_row_has_its_figures_and_the_command_that_repeats_it() {
        let mut known = run("redis1", 7);
        known.0.setup = Some(plan("run redis1 --seed 7").setup());
        let unknown = run("etcd3", 8);
        let runs = [&known, &unknown];
        let mut page = String::new();
        list(&mut page, &runs, &by_mode(&runs));
        let row = "| redis1 | 7 | abc1234 | 1 | 1.0 s | 1,200 | 3 | 20 | 1 | \
                   `torture run redis1 --seed 7 --seconds 60 --workers 1 --tasks 4 --names 4 --gap-ms 800` |\n";
        assert!(page.contains(row), "{page}");
        assert!(page.contains("| etcd3 | 8 | abc1234 | 1 | 1.0 s | 1,200 | 3 | 20 | 0 | – |\n"), "{page}");
        assert!(page.ends_with("- (c) redis1, seed 7: two held it\n"), "{page}");
    }

    #[test]
    fn violations_stand_at_the_end_of_the_page() {
        let page = page(&[run("redis1", 7), run("redis1", 8)]);
        assert!(page.ends_with("\n## Violations\n\n- (c) redis1, seed 7: two held it\n"), "{page}");
    }

    fn plan(words: &str) -> Plan {
        match Cli::try_parse_from(std::iter::once("torture").chain(words.split(' '))).unwrap().command {
            Command::Run(args) => Plan::of(&args),
            Command::Soak(args) => Plan::of_a_soak(&args).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// As a run of the plan writes it down.
    fn meta(plan: &Plan) -> Meta {
        Meta {
            mode: plan.mode.name(),
            subject: serde_json::to_value(plan.subject).unwrap().as_str().unwrap().to_owned(),
            seeds: plan.seeds.clone(),
            workers: u32::try_from(plan.workers).unwrap(),
            ttl_ms: u64::try_from(plan.ttl.unwrap_or(plan.mode.traits().ttl).as_millis()).unwrap(),
            setup: Some(plan.setup()),
            ..sample_meta()
        }
    }

    #[test]
    fn the_command_of_a_run_makes_the_same_plan_again() {
        for words in [
            "run redis1 --seed 7",
            "run etcd3 --seed 8 --seconds 90 --workers 2 --tasks 24 --names 6 --ttls 1,3 --kinds async,recipe --drops 2",
            "run redlock5 --seed 9 --classes delay,kill-node --variants held,SIGSTOP --sections long --gap-ms 150",
            "run redis1 --seed 10 --subject redis-py",
            "soak redis1 --seed 11 --minutes 30 --locks 9999 --workers 7 --ttl-seconds 20 --gap-ms 300 --classes clock",
            "soak postgres --seed 12",
        ] {
            let command = meta(&plan(words)).command().unwrap();
            let again = plan(command.strip_prefix("torture ").unwrap());
            assert_eq!(meta(&again), meta(&plan(words)), "{command}");
        }
    }

    #[test]
    fn a_smoke_run_is_repeated_with_its_second_seed() {
        let mut plan = plan("run redis1 --seconds 8");
        (plan.command, plan.seeds) = (crate::history::Subcommand::Smoke, vec![1, 77]);
        assert_eq!(meta(&plan).command().unwrap(), "torture smoke --modes redis1 --seed 77 --seconds 8");
    }

    #[test]
    fn words_with_spaces_are_quoted_for_the_shell() {
        let mut plan = plan("run redis1 --seed 7");
        plan.variants = vec!["log's last".to_owned()];
        plan.classes = vec![Class::Disk];
        let command = meta(&plan).command().unwrap();
        assert!(command.ends_with(" --gap-ms 800 --classes disk --variants 'log'\\''s last'"), "{command}");
    }

    #[test]
    fn a_meta_of_an_earlier_harness_is_read() {
        let mut value = serde_json::to_value(sample_meta()).unwrap();
        value.as_object_mut().unwrap().remove("setup");
        value["forgets"] = serde_json::Value::Bool(true);
        let meta: Meta = serde_json::from_value(value).unwrap();
        assert_eq!((meta.command(), meta.takes_back(Class::WipeNode)), (None, false), "it excuses nothing");
    }
}
