//! A log-log plot as SVG: its own background, so that it can be read on a white page and on a dark one; a label at the
//! end of each line instead of a legend. The same points give the same bytes.

use super::data::Data;
use super::figures::{self, Figure};
use super::page::thousands;
use std::fmt::Write as _;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
/// Left, right, top and bottom of the plane.
const PLANE: [f64; 4] = [92.0, 704.0, 58.0, 396.0];
/// Between two labels.
const LINE: f64 = 15.0;

const STYLE: &str = "text{font-family:system-ui,sans-serif;font-size:12px}.title{font-size:15px;font-weight:600}\
.panel{fill:#ffffff;stroke:#d0d7de}.ink{fill:#1f2328}.soft{fill:#59636e}.grid{stroke:#e3e6ea}\
@media(prefers-color-scheme:dark){.panel{fill:#0d1117;stroke:#30363d}.ink{fill:#f0f6fc}.soft{fill:#9198a1}.grid{stroke:#252b34}}";

/// One for each store, to be seen on white and on black.
const COLOURS: [&str; 8] = ["#7d8590", "#1a9a6c", "#d9483b", "#3b82d6", "#b5760a", "#9b63d8", "#c8509b", "#7d8590"];

/// A curve with its label.
struct Curve {
    label: String,
    points: Vec<(f64, f64)>,
}

/// From a value to a place on the page; both axes are logarithmic.
struct Scale {
    /// Decades.
    low: i32,
    high: i32,
    from: f64,
    to: f64,
}

impl Scale {
    /// Whole decades around all values.
    fn around(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let logs = values.filter(|value| *value > 0.0).map(f64::log10);
        let (low, high) = logs.fold((f64::MAX, f64::MIN), |(low, high), log| (low.min(log), high.max(log)));
        if low > high {
            return Self { low: 0, high: 1, from, to };
        }
        // A value that is a power of ten but for its last bit is one.
        let (low, high) = ((low + 1e-9).floor() as i32, (high - 1e-9).ceil() as i32);
        Self { low, high: high.max(low + 1), from, to }
    }

    /// What is too small for the plot stands at its edge.
    fn at(&self, value: f64) -> f64 {
        let log = if value > 0.0 { value.log10().max(f64::from(self.low)) } else { f64::from(self.low) };
        let part = (log - f64::from(self.low)) / f64::from(self.high - self.low);
        self.from + part * (self.to - self.from)
    }
}

/// 10^`exponent` in figures, with separators.
fn power(exponent: i32) -> String {
    if exponent < 0 {
        return format!("{:.*}", exponent.unsigned_abs() as usize, 10f64.powi(exponent));
    }
    thousands(10u64.pow(exponent.unsigned_abs()))
}

/// The plot of one figure; `None` without points.
pub(super) fn draw(figure: &Figure, data: &Data) -> Option<String> {
    let curve = |label: String| {
        let points = data.curve(figure.key, &label).into_iter().map(|(size, value)| (size as f64, value)).collect();
        Curve { label, points }
    };
    let curves: Vec<Curve> = data.stores(figure.key).into_iter().map(curve).collect();
    if curves.is_empty() {
        return None;
    }
    let [left, right, top, bottom] = PLANE;
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let x = Scale::around(all().map(|point| point.0), left, right);
    let y = Scale::around(all().map(|point| point.1), bottom, top);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         role=\"img\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"panel\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n\
         <text class=\"ink title\" x=\"20\" y=\"30\">{title}</text>\n",
        WIDTH - 1.0,
        HEIGHT - 1.0,
        title = figure.title,
    );
    axes(&mut svg, figure, &x, &y);
    for curve in &curves {
        line(&mut svg, curve, &x, &y);
    }
    labels(&mut svg, &curves, &x, &y);
    svg.push_str("</svg>\n");
    Some(svg)
}

fn axes(svg: &mut String, figure: &Figure, x: &Scale, y: &Scale) {
    let [left, right, top, bottom] = PLANE;
    for exponent in x.low..=x.high {
        let at = x.at(10f64.powi(exponent));
        let _ = writeln!(svg, "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{bottom}\"/>");
        let (below, text) = (bottom + 18.0, power(exponent));
        let _ = writeln!(svg, "<text class=\"soft\" x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{text}</text>");
    }
    for exponent in y.low..=y.high {
        let at = y.at(10f64.powi(exponent));
        let _ = writeln!(svg, "<line class=\"grid\" x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/>");
        let (beside, middle, text) = (left - 8.0, at + 4.0, power(exponent));
        let _ =
            writeln!(svg, "<text class=\"soft\" x=\"{beside}\" y=\"{middle:.1}\" text-anchor=\"end\">{text}</text>");
    }
    let (middle, below) = ((left + right) / 2.0, bottom + 44.0);
    let _ =
        writeln!(svg, "<text class=\"ink\" x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">{}</text>", figure.x);
    let _ = writeln!(svg, "<text class=\"ink\" x=\"20\" y=\"{}\">{}</text>", top - 10.0, figure.y);
}

fn colour(label: &str) -> &'static str {
    COLOURS[(figures::order(label) / 2).min(COLOURS.len() - 1)]
}

fn line(svg: &mut String, curve: &Curve, x: &Scale, y: &Scale) {
    let (colour, by_hand) = (colour(&curve.label), figures::is_floor(&curve.label));
    let places: Vec<String> =
        curve.points.iter().map(|(size, value)| format!("{:.1},{:.1}", x.at(*size), y.at(*value))).collect();
    let dashes = if by_hand { " stroke-dasharray=\"5 4\" stroke-width=\"1.2\"" } else { " stroke-width=\"2\"" };
    let _ = writeln!(svg, "<polyline fill=\"none\" stroke=\"{colour}\"{dashes} points=\"{}\"/>", places.join(" "));
    for place in places.iter().filter(|_| !by_hand) {
        let (cx, cy) = place.split_once(',').unwrap_or_default();
        let _ = writeln!(svg, "<circle cx=\"{cx}\" cy=\"{cy}\" r=\"3\" fill=\"{colour}\"/>");
    }
}

/// The name of each line at its end, moved apart where they would cover each other.
fn labels(svg: &mut String, curves: &[Curve], x: &Scale, y: &Scale) {
    let [_, right, top, bottom] = PLANE;
    let end = |curve: &Curve| curve.points.last().map(|(size, value)| (x.at(*size), y.at(*value)));
    let mut ends: Vec<(&Curve, f64, f64)> =
        curves.iter().filter_map(|curve| end(curve).map(|(cx, cy)| (curve, cx, cy))).collect();
    ends.sort_by(|a, b| a.2.total_cmp(&b.2));
    let mut places: Vec<f64> = Vec::new();
    for (_, _, cy) in &ends {
        places.push(places.last().map_or(*cy, |above| cy.max(above + LINE)));
    }
    // From below: none under the plane.
    let mut lowest = bottom + LINE;
    for place in places.iter_mut().rev() {
        *place = place.min(lowest - LINE).max(top - LINE);
        lowest = *place;
    }
    for ((curve, cx, cy), place) in ends.iter().zip(places) {
        let (colour, from, to) = (colour(&curve.label), cx + 5.0, right + 10.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{from:.1}\" y1=\"{cy:.1}\" x2=\"{to:.1}\" y2=\"{place:.1}\" stroke=\"{colour}\" \
             stroke-width=\"0.7\" stroke-dasharray=\"1 3\"/>"
        );
        let (beside, middle, label) = (right + 14.0, place + 4.0, &curve.label);
        let _ = writeln!(svg, "<text x=\"{beside}\" y=\"{middle:.1}\" fill=\"{colour}\">{label}</text>");
    }
}

#[cfg(test)]
mod tests {
    use super::super::data::Point;
    use super::*;

    fn data() -> Data {
        let point = |store: &str, size, value| Point { figure: "held-cpu".into(), store: store.into(), size, value };
        let points = vec![point("Redis", 10, 30.0), point("Redis", 1_000, 3.0), point("etcd", 10, 0.0)];
        Data { points, ..Data::default() }
    }

    #[test]
    fn the_same_points_give_the_same_plot() {
        let figure = figures::find("held-cpu").unwrap();
        let plot = draw(figure, &data()).unwrap();
        assert_eq!(plot, draw(figure, &data()).unwrap());
        assert!(plot.contains(">Redis</text>") && plot.contains(">etcd</text>"));
        assert!(draw(figure, &Data::default()).is_none());
    }

    #[test]
    fn decades_are_at_equal_distances_and_zero_is_at_the_edge() {
        let scale = Scale::around([1.0, 1_000.0].into_iter(), 0.0, 300.0);
        assert_eq!(
            [1.0, 10.0, 100.0, 1_000.0, 0.0].map(|value| scale.at(value).round()),
            [0.0, 100.0, 200.0, 300.0, 0.0]
        );
        assert_eq!([-2, 0, 3, 6].map(power), ["0.01", "1", "1,000", "1,000,000"]);
    }
}
