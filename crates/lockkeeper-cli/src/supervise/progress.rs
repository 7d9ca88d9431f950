//! Signs of progress of a command with a stall limit: its output, or a file that it touches.

use super::{Echo, Hold};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How often a file is looked at, as a part of the limit: late signs of progress must not matter.
const LOOKS: u32 = 20;
/// The shortest and the longest pause between two looks.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// A stall limit, and when the command last showed progress.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    pub(crate) limit: Duration,
    /// The file that counts, in place of the output.
    file: Option<PathBuf>,
    hold: Hold,
    last: Arc<Mutex<Instant>>,
}

impl Progress {
    pub(crate) fn new(limit: Duration, file: Option<&Path>, hold: &Hold) -> Self {
        let file = file.map(Path::to_owned);
        Self { limit, file, hold: hold.clone(), last: Arc::new(Mutex::new(Instant::now())) }
    }

    /// How the output must go, for it to count; `None` when it does not.
    pub(crate) fn echo(&self) -> Option<Echo> {
        let progress = self.clone();
        self.file.is_none().then(|| Echo::new(move |_, _| progress.made()))
    }

    /// Looks at the file again and again; never ends.
    pub(super) async fn follow(&self) -> Infallible {
        let Some(file) = &self.file else { return std::future::pending().await };
        let pause = (self.limit / LOOKS).clamp(PAUSES.0, PAUSES.1);
        let mut seen = touched(file);
        loop {
            tokio::time::sleep(pause).await;
            let now = touched(file);
            if now != seen && now.is_some() {
                self.made();
            }
            seen = now;
        }
    }

    /// Whether the limit is the reason why a lease ends within `margin`.
    pub(super) fn ends_within(&self, margin: Duration) -> bool {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.elapsed() + margin >= self.limit
    }

    fn made(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.hold.all().for_each(|held| held.lease.progress());
    }
}

/// What changes when a file is touched or written.
fn touched(file: &Path) -> Option<(SystemTime, u64)> {
    let found = std::fs::metadata(file).ok()?;
    Some((found.modified().ok()?, found.len()))
}
