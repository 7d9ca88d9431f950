//! How long hand-overs take, mode by mode, out to the slowest: the time over the part of all that were faster.

use super::svg::{Anchor, COLOURS, Svg, apart};
use super::time;
use crate::check::Spread;

const HEIGHT: f64 = 460.0;
/// Left, right, top and bottom of the plane.
const PLANE: [f64; 4] = [92.0, 704.0, 58.0, 396.0];

/// A plot with a curve for each mode; `None` without a hand-over. Both axes are logarithmic: to the right, each step
/// is a tenth of the hand-overs before it.
pub(crate) fn handovers(title: &str, modes: &[(&str, &Spread)]) -> Option<String> {
    let curves: Vec<(&str, Vec<(f64, f64)>)> =
        modes.iter().filter(|(_, spread)| spread.count > 0).map(|(mode, spread)| (*mode, points(spread))).collect();
    let all = || curves.iter().flat_map(|(_, points)| points);
    let nines = all().map(|point| point.0).fold(f64::NAN, f64::max).ceil().max(2.0);
    let low = all().map(|point| point.1).fold(f64::NAN, f64::min).floor();
    let high = all().map(|point| point.1).fold(f64::NAN, f64::max).ceil().max(low + 1.0);
    if curves.is_empty() {
        return None;
    }
    let [left, right, top, bottom] = PLANE;
    let x = |nine: f64| left + nine / nines * (right - left);
    let y = |log: f64| bottom - (log - low) / (high - low) * (bottom - top);
    let mut svg = Svg::new(title, HEIGHT);
    for nine in 0..=nines as u32 {
        let at = x(f64::from(nine));
        svg.grid((at, top), (at, bottom));
        svg.text("soft", (at, bottom + 18.0), Anchor::Middle, &percent(nine));
    }
    for log in low as i32..=high as i32 {
        let at = y(f64::from(log));
        svg.grid((left, at), (right, at));
        svg.text("soft", (left - 8.0, at + 4.0), Anchor::End, &time(10u64.pow(log.unsigned_abs())));
    }
    svg.text(
        "ink",
        ((left + right) / 2.0, bottom + 44.0),
        Anchor::Middle,
        "part of all hand-overs that took at most so long",
    );
    svg.text("ink", (20.0, top - 10.0), Anchor::Start, "from the release to the next caller's answer");
    let ends: Vec<(f64, f64)> =
        curves.iter().filter_map(|(_, points)| points.last()).map(|(nine, log)| (x(*nine), y(*log))).collect();
    let beside: Vec<f64> = ends.iter().map(|end| end.1).collect();
    let places = apart(&beside, 15.0, top, bottom);
    for (number, (mode, points)) in curves.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let places_of: Vec<(f64, f64)> = points.iter().map(|(nine, log)| (x(*nine), y(*log))).collect();
        svg.curve(&places_of, colour, number >= COLOURS.len());
        svg.dot(ends[number], colour);
        svg.leader((ends[number].0 + 5.0, ends[number].1), (right + 10.0, places[number]), colour, "1 3");
        svg.label((right + 14.0, places[number] + 4.0), colour, mode);
    }
    Some(svg.end())
}

/// The curve in decades: how many nines, and the power of ten of microseconds. The slowest stands half a hand-over before
/// all of them, where it is finite.
fn points(spread: &Spread) -> Vec<(f64, f64)> {
    let last = 1.0 - 0.5 / spread.count as f64;
    let nines = |part: f64| -(1.0 - part.min(last)).log10();
    let mut points: Vec<(f64, f64)> = spread.curve().map(|(us, part)| (nines(part), us.max(1.0).log10())).collect();
    // From the fastest on: a single bucket is a line too.
    if let Some((_, fastest)) = points.first().copied() {
        points.insert(0, (0.0, fastest));
    }
    points
}

/// 0 %, 90 %, 99 %, …
fn percent(nines: u32) -> String {
    match nines {
        0 => "0 %".to_owned(),
        1 => "90 %".to_owned(),
        2 => "99 %".to_owned(),
        more => format!("99.{} %", "9".repeat(more as usize - 2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_has_a_curve_and_a_label() {
        let mut fast = Spread::default();
        (1..=1_000).for_each(|us| fast.record(us));
        let mut slow = Spread::default();
        slow.record(2_000_000);
        let plot =
            handovers("Hand-over", &[("redis1", &fast), ("etcd3", &slow), ("idle", &Spread::default())]).unwrap();
        assert_eq!(plot.matches("<polyline").count(), 2);
        assert!(plot.contains(">redis1</text>") && plot.contains(">etcd3</text>") && !plot.contains("idle"));
        assert!(plot.contains(">99.9 %</text>") && plot.contains(">10.0 s</text>") && !plot.contains("NaN"), "{plot}");
        assert!(handovers("Hand-over", &[("none", &Spread::default())]).is_none());
    }

    #[test]
    fn parts_are_in_nines() {
        assert_eq!([0, 1, 2, 3, 5].map(percent), ["0 %", "90 %", "99 %", "99.9 %", "99.999 %"]);
    }
}
