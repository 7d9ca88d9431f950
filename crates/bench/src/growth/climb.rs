//! One part on one store: sizes in rising order, as long as time is left.

use super::data::{Left, Point};
use super::subject::{Kind, Subject};
use super::{Part, figures};
use std::time::{Duration, Instant};

/// The way up, and what was seen on it.
pub(super) struct Climb<'a> {
    pub(super) subject: &'a Subject,
    pub(super) quick: bool,
    part: Part,
}

/// Why a size could not be measured.
pub(super) type Refused = String;

impl<'a> Climb<'a> {
    pub(super) fn new(part: Part, subject: &'a Subject, quick: bool) -> Self {
        Self { subject, quick, part }
    }

    /// Runs `step` for each size. It answers with the time that grows with the size, from which the time of the next
    /// one is estimated. The first size that fails or does not fit is the end: larger ones are left out too.
    pub(super) async fn each(&self, mut step: impl AsyncFnMut(u64) -> Result<Duration, Refused>) {
        let limit = self.part.limit(self.quick);
        let end = Instant::now() + limit;
        let mut last: Option<(u64, Duration)> = None;
        let mut refused: Option<Refused> = None;
        for &size in self.part.sizes(self.quick) {
            let left = end.saturating_duration_since(Instant::now());
            let expected = last.map_or(Duration::ZERO, |(before, took)| took.mul_f64(size as f64 / before as f64));
            if refused.is_none() && expected > left {
                let (expected, limit) = (expected.as_secs_f64(), limit.as_secs());
                refused =
                    Some(format!("it would take about {expected:.0} s; the limit of this part is {limit} s in all"));
            }
            if refused.is_none() && self.subject.most(self.part).is_some_and(|most| size > most) {
                refused = Some("more connections than this server is set up for".to_owned());
            }
            if refused.is_none() {
                match tokio::time::timeout(left, step(size)).await {
                    Ok(Ok(took)) => last = Some((size, took)),
                    Ok(Err(why)) => refused = Some(why),
                    Err(_) => refused = Some(format!("it was not done within the limit of {} s", limit.as_secs())),
                }
            }
            if let Some(why) = &refused {
                let left = Left { part: self.part, store: self.kind().label().to_owned(), size, why: why.clone() };
                println!("{}", left.line());
            }
        }
    }

    pub(super) fn kind(&self) -> Kind {
        self.subject.kind
    }

    pub(super) fn saw(&self, figure: &str, size: u64, value: f64) {
        self.saw_of(self.kind().label(), figure, size, value);
    }

    /// The same work by hand.
    pub(super) fn saw_floor(&self, figure: &str, size: u64, value: f64) {
        self.saw_of(&figures::floor_of(self.kind().label()), figure, size, value);
    }

    fn saw_of(&self, store: &str, figure: &str, size: u64, value: f64) {
        let point = Point { figure: figure.to_owned(), store: store.to_owned(), size, value };
        println!("{}", point.line());
    }
}

/// Memory of this process that is backed by no file, in bytes: exact, where the resident size is an estimate.
pub(super) fn anonymous() -> f64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok()).unwrap_or(0.0) * 1024.0
}
