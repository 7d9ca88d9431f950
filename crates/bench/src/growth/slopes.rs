//! How steep a curve is between its points, on logarithmic axes: 0 is flat, 1 grows as the size does.

use super::data::Data;
use super::figures::{self, FIGURES, Figure};

/// A cost of one item that grows faster than the size to this power is a defect to look for.
pub(super) const BEND: f64 = 0.2;

/// Between two neighbouring sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slope {
    pub(super) from: u64,
    pub(super) to: u64,
    /// The exponent; for a rate that of its cost, so that more is always worse.
    pub(super) exponent: f64,
}

impl Slope {
    pub(super) fn bends(self) -> bool {
        self.exponent > BEND
    }
}

/// Of one curve; steps from or to nothing have none.
pub(super) fn of(curve: &[(u64, f64)], rate: bool) -> Vec<Slope> {
    let step = |pair: &[(u64, f64)]| {
        let [(from, before), (to, after)] = [pair[0], pair[1]];
        let exponent = (after / before).ln() / (to as f64 / from as f64).ln();
        exponent.is_finite().then_some(Slope { from, to, exponent: if rate { -exponent } else { exponent } })
    };
    curve.windows(2).filter_map(step).collect()
}

/// Every curve of ours, with its slopes.
pub(super) fn all(data: &Data) -> Vec<(&'static Figure, String, Vec<Slope>)> {
    let of_figure = |figure: &'static Figure| {
        let stores = data.stores(figure.key).into_iter().filter(|store| !figures::is_floor(store));
        stores.map(move |store| {
            let slopes = of(&data.curve(figure.key, &store), figure.rate);
            (figure, store, slopes)
        })
    };
    FIGURES.iter().flat_map(of_figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_that_grows_bends_and_one_that_falls_does_not() {
        let slopes = of(&[(10, 1.0), (100, 1.0), (1_000, 10.0), (10_000, 1.0)], false);
        let exponents: Vec<f64> = slopes.iter().map(|slope| slope.exponent.round()).collect();
        assert_eq!(exponents, [0.0, 1.0, -1.0]);
        assert_eq!(slopes.iter().map(|slope| slope.bends()).collect::<Vec<_>>(), [false, true, false]);
        // A rate is the other way round.
        assert!(of(&[(1, 100.0), (10, 50.0)], true)[0].bends());
        assert!(of(&[(1, 0.0), (10, 50.0)], false).is_empty());
    }
}
