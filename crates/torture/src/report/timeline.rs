//! One run over time: grants a second, losses, and faults as bars, a lane for each class.

use super::svg::{Anchor, COLOURS, Svg, step};
use super::thousands;
use crate::check::{History, Spells};
use crate::history::{Class, Nanos};

/// Left, right, top and bottom of the plane of grants.
const PLANE: [f64; 4] = [92.0, 840.0, 58.0, 238.0];
const LANE: f64 = 18.0;
/// A column of grants is at least so wide, in pixels.
const COLUMN: f64 = 3.0;
/// What lasts shorter is still seen.
const THIN: f64 = 1.5;

const GRANTS: &str = "#3b82d6";
const LOSS: &str = "#d9483b";
const MARK: &str = "#7d8590";

/// A plot of one run.
pub(crate) fn timeline(title: &str, history: &History) -> String {
    let meta = &history.meta;
    let [left, right, top, bottom] = PLANE;
    let seconds = (meta.ended.saturating_sub(meta.began) as f64 / 1e9).max(1e-3);
    let second = |at: Nanos| (at.saturating_sub(meta.began) as f64 / 1e9).min(seconds);
    let x = |second: f64| left + second / seconds * (right - left);

    let spells = Spells::of(history);
    let happened = |class: &Class| {
        spells.all.iter().any(|spell| spell.fault.class == *class)
            || *class == Class::Client && !history.chaos.is_empty()
    };
    let classes: Vec<Class> = Class::ALL.into_iter().filter(happened).collect();
    let lane = |number: usize| bottom + 14.0 + LANE * number as f64;
    // One for losses above those of faults.
    let floor = lane(classes.len() + 1);
    let mut svg = Svg::new(title, floor + 50.0);

    let every = step(seconds, 12.0);
    for mark in 0..=(seconds / every) as u32 {
        let at = f64::from(mark) * every;
        svg.grid((x(at), top), (x(at), floor));
        svg.text("soft", (x(at), floor + 16.0), Anchor::Middle, &format!("{at}"));
    }
    svg.text("ink", ((left + right) / 2.0, floor + 38.0), Anchor::Middle, "seconds");
    svg.text("ink", (20.0, top - 10.0), Anchor::Start, "grants a second");
    grants(&mut svg, history, seconds, &second);
    for (moment, word) in [(meta.calm_until, "first fault"), (meta.healed, "all healed")] {
        if moment > meta.began && moment < meta.ended {
            let at = x(second(moment));
            svg.leader((at, top), (at, floor), MARK, "4 3");
            // The last one would run over the edge.
            let (at, anchor) = if at > right - 80.0 { (at - 4.0, Anchor::End) } else { (at + 4.0, Anchor::Start) };
            svg.text("soft", (at, top + 10.0), anchor, word);
        }
    }

    svg.text("soft", (left - 8.0, lane(0) + 12.0), Anchor::End, "losses");
    for attempt in &history.attempts {
        if let Some((at, _)) = &attempt.lost {
            svg.dot((x(second(*at)), lane(0) + 8.0), LOSS);
        }
    }
    for (number, class) in classes.into_iter().enumerate() {
        let (y, colour) = (lane(number + 1), COLOURS[number % COLOURS.len()]);
        svg.text("soft", (left - 8.0, y + 12.0), Anchor::End, class.word());
        for spell in spells.all.iter().filter(|spell| spell.fault.class == class) {
            let (from, to) = (x(second(spell.fault.at)), x(second(spell.until)));
            svg.bar((from, y + 3.0), ((to - from).max(THIN), LANE - 6.0), colour);
        }
        if class == Class::Client {
            let acts = history.chaos.iter().map(|at| x(second(*at)));
            acts.for_each(|at| svg.bar((at, y + 3.0), (THIN, LANE - 6.0), colour));
        }
    }
    svg.end()
}

/// Columns of grants, as an area.
fn grants(svg: &mut Svg, history: &History, seconds: f64, second: &impl Fn(Nanos) -> f64) {
    let [left, right, top, bottom] = PLANE;
    let most = ((right - left) / COLUMN).floor();
    // Whole tenths of a second, so that a column says a rate.
    let width = ((seconds / most) * 10.0).ceil().max(1.0) / 10.0;
    let mut columns = vec![0u64; (seconds / width).ceil() as usize];
    for grant in history.attempts.iter().filter_map(|attempt| attempt.grant.as_ref()) {
        let last = columns.len() - 1;
        columns[((second(grant.at) / width) as usize).min(last)] += 1;
    }
    let highest = columns.iter().copied().max().unwrap_or(0).max(1) as f64 / width;
    let every = step(highest, 4.0);
    let whole = (highest / every).ceil() * every;
    for mark in 0..=(whole / every).round() as u32 {
        let rate = f64::from(mark) * every;
        let y = bottom - rate / whole * (bottom - top);
        svg.grid((left, y), (right, y));
        let text = if every < 1.0 { format!("{rate:.1}") } else { thousands(rate as u64) };
        svg.text("soft", (left - 8.0, y + 4.0), Anchor::End, &text);
    }
    let mut points = vec![(left, bottom)];
    for (number, count) in columns.iter().enumerate() {
        let y = bottom - *count as f64 / width / whole * (bottom - top);
        let at = |number: usize| left + (number as f64 * width / seconds).min(1.0) * (right - left);
        points.extend([(at(number), y), (at(number + 1), y)]);
    }
    points.push((right, bottom));
    svg.area(&points, GRANTS);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::sample_history;

    #[test]
    fn a_run_has_lanes_for_its_faults_and_dots_for_its_losses() {
        let plot = timeline("A run", &sample_history());
        assert_eq!(plot, timeline("A run", &sample_history()));
        assert!(plot.contains(">pause-node</text>") && plot.contains(">client</text>") && !plot.contains("partition"));
        assert_eq!((plot.matches("<circle").count(), plot.matches("<polygon").count()), (1, 1));
        assert!(plot.contains(">all healed</text>") && !plot.contains("NaN") && !plot.contains("inf"), "{plot}");
    }
}
