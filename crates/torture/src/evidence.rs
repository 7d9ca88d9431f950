//! Writes the report of several histories: a page and its pictures.

use crate::check::{self, History};
use crate::report;
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
    let mut runs = Vec::new();
    for place in histories {
        let history = History::read(place)?;
        let verdict = check::check(&history);
        let ours = history.meta.subject == "lockkeeper";
        let title = format!("{}, seeds {}", history.meta.mode, history.meta.seeds_said());
        let file = format!("timeline-{}.svg", history.meta.mode);
        // One timeline for each mode: that of its last history.
        if ours {
            std::fs::write(into.join(file), report::timeline(&title, &history))?;
        }
        runs.push((history.meta, verdict.counts, verdict.findings));
    }
    let ours = runs.iter().filter(|(meta, _, _)| meta.subject == "lockkeeper");
    let spreads: Vec<_> = ours.map(|(meta, counts, _)| (meta.mode.as_str(), &counts.handover)).collect();
    if let Some(picture) = report::handovers("Hand-over under faults", &spreads) {
        std::fs::write(into.join("handovers.svg"), picture)?;
    }
    let page = [HEAD, &report::page(&runs), PICTURES].concat();
    std::fs::write(into.join("README.md"), page)?;
    Ok(())
}
