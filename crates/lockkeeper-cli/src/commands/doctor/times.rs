//! How long something took, many times.

use lockkeeper::duration::short;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Times(Vec<Duration>);

impl Times {
    pub(super) fn push(&mut self, time: Duration) {
        let at = self.0.partition_point(|earlier| *earlier <= time);
        self.0.insert(at, time);
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The time that `percent` of all did not exceed; zero without any.
    pub(super) fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }

    pub(super) fn shown(&self) -> String {
        let [half, most, all] = [50, 99, 100].map(|percent| short(self.percentile(percent)));
        format!("p50 {half}, p99 {most}, max {all} of {}", self.count())
    }

    /// For programs; `null` without any.
    pub(super) fn json(&self) -> Value {
        if self.is_empty() {
            return Value::Null;
        }
        let [half, most, all] =
            [50, 99, 100].map(|p| u64::try_from(self.percentile(p).as_micros()).unwrap_or(u64::MAX));
        json!({ "count": self.count(), "p50_us": half, "p99_us": most, "max_us": all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let mut times = Times::default();
        assert_eq!((times.percentile(99), times.json()), (Duration::ZERO, Value::Null));
        for ms in (1..=200).rev() {
            times.push(Duration::from_millis(ms));
        }
        assert_eq!([50, 99, 100].map(|p| times.percentile(p).as_millis()), [100, 198, 200]);
        assert_eq!(times.shown(), "p50 100ms, p99 198ms, max 200ms of 200");
    }
}
