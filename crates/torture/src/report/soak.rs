//! A soak: a small panel for each figure over time, with a mark for each fault, and a table of how far they grew.

use super::svg::{Anchor, COLOURS, Svg, WIDTH, step};
use super::{table, thousands};
use crate::check::{Counts, History, Level, Series, Spells, held, series};
use crate::history::{Meta, Nanos};
use std::fmt::Write as _;

/// Of one panel, with its title and the room around it.
const HEIGHT: f64 = 112.0;
const TOP: f64 = 48.0;
/// Left of the plane, for figures.
const FIGURES: f64 = 66.0;
const MARK: &str = "#7d8590";

/// What the page says of a soak.
pub(crate) struct Soak {
    meta: Meta,
    counts: Counts,
    levels: Vec<(String, Option<Level>)>,
}

impl Soak {
    pub(crate) fn of(history: &History, counts: &Counts) -> Self {
        let levels = series(history).iter().map(|series| (series.name.clone(), series.level())).collect();
        Self { meta: history.meta.clone(), counts: counts.clone(), levels }
    }
}

/// The section of the page; `file` names the picture of a soak.
pub(crate) fn soaks(all: &[Soak], file: impl Fn(&Soak) -> String) -> String {
    let mut page = String::new();
    if all.is_empty() {
        return page;
    }
    page.push_str(
        "\n## Soak\n\nVery many locks are held at once for a long time, under faults. A figure grew when its median over the last\n\
         quarter is above that of the second quarter by more than a tenth and a small constant. For the entries of a store, which rise for a\n\
         while after an outage, it is the lower quartile.\n",
    );
    for soak in all {
        let Soak { meta, counts, levels } = soak;
        let minutes = meta.ended.saturating_sub(meta.began) as f64 / 60e9;
        let figures = [counts.held, counts.granted, counts.injected(), counts.acts()];
        let [held, granted, faults, acts] = figures.map(thousands);
        let (mode, seed, workers) = (&meta.mode, meta.seeds_said(), meta.workers);
        let _ = writeln!(
            page,
            "\n{mode}, seed {seed}: {minutes:.0} minutes, {workers} workers, {held} locks held in the median, {granted} \
             acquisitions, {faults} faults injected, {acts} acts of workers.\n"
        );
        let cell = |value: f64| thousands(value.round() as u64);
        let row = |(name, level): &(String, Option<Level>)| {
            let figures = level.map(|level| [level.early, level.late, level.limit].map(cell));
            let [early, late, limit] = figures.unwrap_or(["–", "–", "–"].map(str::to_owned));
            vec![name.clone(), early, late, limit]
        };
        table(&mut page, &["figure", "second quarter", "last quarter", "at most"], levels.iter().map(row));
        let _ = writeln!(page, "\n![What {workers} workers on {mode} used over {minutes:.0} minutes]({})", file(soak));
    }
    page
}

impl Soak {
    pub(crate) fn mode(&self) -> &str {
        &self.meta.mode
    }
}

/// The picture: locks held first, then all that must not grow.
pub(crate) fn soak(title: &str, history: &History) -> String {
    let all: Vec<Series> = std::iter::once(held(history)).chain(series(history)).collect();
    let floor = TOP + HEIGHT * all.len().div_ceil(2) as f64;
    let mut svg = Svg::new(title, floor + 24.0);
    for (number, series) in all.iter().enumerate() {
        let left = 20.0 + (number % 2) as f64 * (WIDTH - 20.0) / 2.0;
        let place = (left, TOP + (number / 2) as f64 * HEIGHT);
        panel(&mut svg, history, series, place, COLOURS[number % COLOURS.len()]);
    }
    let words = "minutes; each grey mark is a fault";
    svg.text("soft", (WIDTH / 2.0, floor + 10.0), Anchor::Middle, words);
    svg.end()
}

fn panel(svg: &mut Svg, history: &History, series: &Series, (x, y): (f64, f64), colour: &str) {
    let (left, right) = (x + FIGURES, x + (WIDTH - 20.0) / 2.0 - 24.0);
    let (top, bottom) = (y + 20.0, y + HEIGHT - 26.0);
    svg.text("ink", (x, y + 10.0), Anchor::Start, &series.name);
    let (from, to) = (history.meta.calm_until, history.meta.healed.max(history.meta.calm_until + 1));
    let across = |at: Nanos| left + (at.clamp(from, to) - from) as f64 / (to - from) as f64 * (right - left);
    let highest = series.points.iter().map(|(_, value)| *value).fold(1.0, f64::max);
    let every = step(highest, 3.0);
    let whole = (highest / every).ceil() * every;
    let up = |value: f64| bottom - value / whole * (bottom - top);
    for mark in 0..=(whole / every).round() as u32 {
        let value = f64::from(mark) * every;
        svg.grid((left, up(value)), (right, up(value)));
        let text = if every < 1.0 { format!("{value:.1}") } else { thousands(value as u64) };
        svg.text("soft", (left - 6.0, up(value) + 4.0), Anchor::End, &text);
    }
    let minutes = (to - from) as f64 / 60e9;
    svg.text("soft", (left, bottom + 18.0), Anchor::Middle, "0");
    svg.text("soft", (right, bottom + 18.0), Anchor::Middle, &format!("{minutes:.0}"));
    let faults = Spells::of(history).all.iter().map(|spell| across(spell.fault.at)).collect::<Vec<f64>>();
    svg.ticks(&faults, bottom, 5.0, MARK);
    let points: Vec<(f64, f64)> = series.points.iter().map(|(at, value)| (across(*at), up(*value))).collect();
    svg.curve(&points, colour, false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::sample_history;
    use crate::history::{Group, Reading};

    fn history() -> History {
        let mut history = sample_history();
        let group = Group { processes: 2, memory_kb: 40_960, threads: 8, fds: 40, ..Group::default() };
        let at = |number: u64| history.meta.calm_until + number * 200_000_000;
        let reading = |number| Reading { at: at(number), workers: group, servers: Group::default(), entries: Some(7) };
        history.samples = (0..24).map(reading).collect();
        history
    }

    #[test]
    fn a_soak_has_a_panel_for_each_figure_that_is_there() {
        let plot = soak("A soak", &history());
        assert_eq!(plot, soak("A soak", &history()));
        assert_eq!(plot.matches("<polyline").count(), 5, "{plot}");
        assert!(plot.contains(">locks held</text>") && plot.contains(">store: entries</text>"), "{plot}");
        assert!(!plot.contains("servers") && !plot.contains("NaN") && !plot.contains("inf"), "{plot}");
        // One fault, in each panel.
        assert_eq!(plot.matches("<path").count(), 5);
    }

    #[test]
    fn the_page_has_a_table_only_with_a_soak() {
        assert_eq!(soaks(&[], |_| String::new()), "");
        let counts = Counts { granted: 1_200, held: 90, ..Counts::default() };
        let page = soaks(&[Soak::of(&history(), &counts)], |soak| format!("soak-{}.svg", soak.mode()));
        assert!(
            page.contains("sample, seed 1: 0 minutes, 1 workers, 90 locks held in the median, 1,200 acq"),
            "{page}"
        );
        assert!(page.contains("acquisitions, 0 faults injected, 0 acts of workers.\n"), "{page}");
        assert!(page.contains("| workers: memory, MiB | 40 | 40 | 76 |\n"), "{page}");
        assert!(page.ends_with("(soak-sample.svg)\n"), "{page}");
    }
}
