//! Writes the report of several histories: a page and its pictures.

use crate::check::{self, Counts, History};
use crate::report::{self, Soak};
use std::path::{Path, PathBuf};

/// What stands before the tables, and after them.
const HEAD: &str = include_str!("report/head.md");
const PICTURES: &str = include_str!("report/pictures.md");

/// Checks the histories again and writes `README.md` and the pictures into a directory.
///
/// # Errors
/// When a history cannot be read or a file not be written.
pub(crate) fn write(into: &Path, histories: &[PathBuf]) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::create_dir_all(into)?;
    let (mut runs, mut soaks, mut pictures) = (Vec::new(), Vec::new(), Vec::new());
    // Hand-overs of each mode; a soak has few, and they wait for long sections.
    let mut modes: Vec<(String, Counts)> = Vec::new();
    for place in histories {
        let history = History::read(place)?;
        let verdict = check::check(&history);
        let mode = history.meta.mode.clone();
        let title = format!("{mode}, seeds {}", history.meta.seeds_said());
        if !history.samples.is_empty() {
            soaks.push(Soak::of(&history, &verdict.counts));
            pictures.push(report::soak(&title, &history));
        } else if history.meta.subject == "lockkeeper" {
            // One timeline for each mode: that of its last history.
            std::fs::write(into.join(format!("timeline-{mode}.svg")), report::timeline(&title, &history))?;
            match modes.iter_mut().find(|(known, _)| *known == mode) {
                Some((_, counts)) => counts.add(&verdict.counts),
                None => modes.push((mode, verdict.counts.clone())),
            }
        }
        runs.push((history.meta, verdict.counts, verdict.findings));
    }
    let spreads: Vec<_> = modes.iter().map(|(mode, counts)| (mode.as_str(), &counts.handover)).collect();
    if let Some(picture) = report::handovers("Hand-over under faults", &spreads) {
        std::fs::write(into.join("handovers.svg"), picture)?;
    }
    let alone = soaks.len() == 1;
    let file = |soak: &Soak| if alone { "soak.svg".to_owned() } else { format!("soak-{}.svg", soak.mode()) };
    for (soak, picture) in soaks.iter().zip(pictures) {
        std::fs::write(into.join(file(soak)), picture)?;
    }
    let page = [HEAD, &report::page(&runs), &report::soaks(&soaks, file), PICTURES].concat();
    std::fs::write(into.join("README.md"), page)?;
    Ok(())
}
