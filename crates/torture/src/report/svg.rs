//! What all plots share: a background of their own, so that they can be read on a white page and on a dark one. The
//! same history gives the same bytes.

use std::fmt::Write as _;

pub(super) const WIDTH: f64 = 860.0;

/// To be seen on white and on black.
pub(super) const COLOURS: [&str; 8] =
    ["#d9483b", "#3b82d6", "#1a9a6c", "#b5760a", "#9b63d8", "#c8509b", "#2a9fb0", "#7d8590"];

const STYLE: &str = "text{font-family:system-ui,sans-serif;font-size:12px}.title{font-size:15px;font-weight:600}\
.panel{fill:#ffffff;stroke:#d0d7de}.ink{fill:#1f2328}.soft{fill:#59636e}.grid{stroke:#e3e6ea}\
@media(prefers-color-scheme:dark){.panel{fill:#0d1117;stroke:#30363d}.ink{fill:#f0f6fc}.soft{fill:#9198a1}.grid{stroke:#252b34}}";

/// A plot in the making.
pub(super) struct Svg(String);

/// Which end of a text is at its place.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    pub(super) fn new(title: &str, height: f64) -> Self {
        let title = escaped(title);
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" role=\"img\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
             <rect class=\"panel\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n\
             <text class=\"ink title\" x=\"20\" y=\"30\">{title}</text>\n",
            WIDTH - 1.0,
            height - 1.0,
        ))
    }

    pub(super) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let _ = writeln!(self.0, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\"{anchor}>{}</text>", escaped(text));
    }

    pub(super) fn label(&mut self, (x, y): (f64, f64), colour: &str, text: &str) {
        let _ = writeln!(self.0, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{}</text>", escaped(text));
    }

    pub(super) fn grid(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let _ = writeln!(self.0, "<line class=\"grid\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
    }

    /// A thin dotted line from a curve to its label, or a dashed one that marks a moment.
    pub(super) fn leader(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str, dashes: &str) {
        let _ = writeln!(
            self.0,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" \
             stroke-width=\"0.7\" stroke-dasharray=\"{dashes}\"/>"
        );
    }

    pub(super) fn curve(&mut self, points: &[(f64, f64)], colour: &str, dashed: bool) {
        let places: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let dashes = if dashed { " stroke-dasharray=\"5 4\"" } else { "" };
        let _ = writeln!(
            self.0,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes} points=\"{}\"/>",
            places.join(" ")
        );
    }

    pub(super) fn area(&mut self, points: &[(f64, f64)], colour: &str) {
        let places: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            self.0,
            "<polygon fill=\"{colour}\" fill-opacity=\"0.25\" stroke=\"{colour}\" stroke-width=\"1\" points=\"{}\"/>",
            places.join(" ")
        );
    }

    pub(super) fn bar(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), colour: &str) {
        let _ = writeln!(
            self.0,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\" \
             fill-opacity=\"0.75\"/>"
        );
    }

    /// Short lines that stand on a height, as one path: there may be many.
    pub(super) fn ticks(&mut self, places: &[f64], y: f64, height: f64, colour: &str) {
        // Those on the same place are one.
        let mut places: Vec<String> = places.iter().map(|x| format!("M{x:.0} {y:.1}v-{height}")).collect();
        places.dedup();
        let path = places.concat();
        let _ = writeln!(self.0, "<path d=\"{path}\" stroke=\"{colour}\" stroke-opacity=\"0.6\"/>");
    }

    pub(super) fn dot(&mut self, (x, y): (f64, f64), colour: &str) {
        let _ = writeln!(self.0, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>");
    }

    pub(super) fn end(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Places of labels beside a plane, as near as possible to where they belong, but not on each other.
pub(super) fn apart(wanted: &[f64], line: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut places = wanted.to_vec();
    let mut above = top - line;
    for at in &order {
        places[*at] = places[*at].max(above + line);
        above = places[*at];
    }
    // From below: none under the plane.
    let mut below = bottom + line;
    for at in order.iter().rev() {
        places[*at] = places[*at].min(below - line);
        below = places[*at];
    }
    places
}

/// A step of 1, 2 or 5 times a power of ten, so that at most `most` steps make up the whole.
pub(super) fn step(whole: f64, most: f64) -> f64 {
    let power = 10f64.powf((whole / most).max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| whole / step <= most).unwrap_or(power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_do_not_cover_each_other_and_stay_on_the_page() {
        assert_eq!(apart(&[10.0, 11.0, 50.0, 12.0], 15.0, 0.0, 60.0), [10.0, 25.0, 55.0, 40.0]);
        assert_eq!(apart(&[60.0, 60.0, 60.0], 15.0, 0.0, 60.0), [30.0, 45.0, 60.0]);
    }

    #[test]
    fn steps_are_round() {
        assert_eq!([10.0, 61.0, 600.0, 3.0].map(|whole| step(whole, 10.0)), [1.0, 10.0, 100.0, 0.5]);
    }

    #[test]
    fn texts_are_escaped() {
        let mut svg = Svg::new("a < b & c", 100.0);
        svg.text("ink", (1.0, 2.0), Anchor::Start, "x > y");
        let text = svg.end();
        assert!(text.contains("<title>a &lt; b &amp; c</title>") && text.contains(">x &gt; y</text>"), "{text}");
    }
}
