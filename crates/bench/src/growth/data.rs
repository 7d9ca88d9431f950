//! What was measured: points of curves, sizes that were left out, and their CSV files.

use super::{Part, figures};
use std::fmt::Write as _;
use std::path::Path;

/// A value at a size.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) figure: String,
    /// The store's label, or that of the same work by hand.
    pub(crate) store: String,
    pub(crate) size: u64,
    pub(crate) value: f64,
}

/// A size that a store or this machine could not carry in the time there was.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Left {
    pub(crate) part: Part,
    pub(crate) store: String,
    pub(crate) size: u64,
    pub(crate) why: String,
}

impl Point {
    pub(crate) fn line(&self) -> String {
        format!("{},{},{},{:.4}", self.figure, self.store, self.size, self.value)
    }

    pub(crate) fn of_line(line: &str) -> Option<Self> {
        let [figure, store, size, value] = line.split(',').collect::<Vec<_>>().try_into().ok()?;
        let (size, value) = (size.parse().ok()?, value.parse().ok()?);
        Some(Self { figure: figure.to_owned(), store: store.to_owned(), size, value })
    }
}

impl Left {
    pub(crate) fn line(&self) -> String {
        format!("left out,{},{},{},{}", self.part.name(), self.store, self.size, self.why)
    }

    pub(crate) fn of_line(line: &str) -> Option<Self> {
        let mut fields = line.strip_prefix("left out,")?.splitn(4, ',');
        let (part, store) = (Part::named(fields.next()?)?, fields.next()?.to_owned());
        Some(Self { part, store, size: fields.next()?.parse().ok()?, why: fields.next()?.to_owned() })
    }
}

/// Everything, of all parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Data {
    pub(crate) points: Vec<Point>,
    pub(crate) left: Vec<Left>,
    /// The machine and the commit of the last run.
    pub(crate) facts: String,
}

const LEFT_OUT: &str = "left-out.csv";

impl Data {
    /// What earlier runs have written to `dir`.
    pub(crate) fn load(dir: &Path) -> Self {
        let read = |file: &str| std::fs::read_to_string(dir.join(file)).unwrap_or_default();
        let mut data = Self::default();
        for part in Part::ALL {
            data.points.extend(read(&format!("{}.csv", part.name())).lines().filter_map(Point::of_line));
        }
        let left = read(LEFT_OUT);
        data.left.extend(left.lines().filter_map(Left::of_line));
        data.facts = left.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or_default().to_owned();
        data
    }

    /// Drops what an earlier run has found: it is measured again.
    pub(crate) fn forget(&mut self, part: Part, label: &str) {
        let floor = figures::floor_of(label);
        let is_of = |point: &Point| figures::find(&point.figure).is_some_and(|figure| figure.part == part);
        self.points.retain(|point| !(is_of(point) && (point.store == label || point.store == floor)));
        self.left.retain(|left| !(left.part == part && left.store == label));
    }

    /// One file for each part, in the same order for the same points.
    pub(crate) fn save(&mut self, dir: &Path) {
        self.points.sort_by_key(|p| (figures::rank(&p.figure), figures::order(&p.store), p.size));
        self.left.sort_by_key(|left| (left.part, figures::order(&left.store), left.size));
        for part in Part::ALL {
            let mut text = String::from("figure,store,size,value\n");
            let is_of = |figure: &str| figures::find(figure).is_some_and(|figure| figure.part == part);
            for point in self.points.iter().filter(|point| is_of(&point.figure)) {
                let _ = writeln!(text, "{}", point.line());
            }
            std::fs::write(dir.join(format!("{}.csv", part.name())), text).unwrap();
        }
        let mut text = format!("# {}\n", self.facts);
        for left in &self.left {
            let _ = writeln!(text, "{}", left.line());
        }
        std::fs::write(dir.join(LEFT_OUT), text).unwrap();
    }

    /// The curve of one store: sizes and values, in rising order.
    pub(crate) fn curve(&self, figure: &str, store: &str) -> Vec<(u64, f64)> {
        let is_of = |p: &&Point| p.figure == figure && p.store == store;
        let mut curve: Vec<(u64, f64)> = self.points.iter().filter(is_of).map(|p| (p.size, p.value)).collect();
        curve.sort_by_key(|(size, _)| *size);
        curve
    }

    /// The stores that have a curve of this figure, in the order of all plots.
    pub(crate) fn stores(&self, figure: &str) -> Vec<String> {
        let mut stores: Vec<String> =
            self.points.iter().filter(|p| p.figure == figure).map(|p| p.store.clone()).collect();
        stores.sort_by_key(|store| figures::order(store));
        stores.dedup();
        stores
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_printed_is_read_back() {
        let point = Point { figure: "held-cpu".into(), store: "Redis by hand".into(), size: 10, value: 1.25 };
        assert_eq!(Point::of_line(&point.line()), Some(point));
        let left = Left { part: Part::Held, store: "etcd".into(), size: 10, why: "too slow, by far".into() };
        assert_eq!(Left::of_line(&left.line()), Some(left));
    }

    #[test]
    fn a_part_that_is_measured_again_replaces_its_curves_and_no_others() {
        let point =
            |figure: &str, store: &str| Point { figure: figure.into(), store: store.into(), size: 1, value: 1.0 };
        let kept = [point("held-cpu", "Redis"), point("tasks-rate", "etcd")];
        let mut data = Data { points: kept.to_vec(), ..Data::default() };
        data.points.extend([point("tasks-rate", "Redis"), point("tasks-rate", "Redis by hand")]);
        data.forget(Part::Tasks, "Redis");
        assert_eq!(data.points, kept);
    }
}
