//! Workers that take one lock again and again, and what they believed: for runs in which servers die.
#![allow(clippy::print_stdout, reason = "how much was done is for people")]

use lockkeeper::Keeper;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// One stretch of time in which a worker believed to hold.
#[derive(Clone, Copy, Debug)]
struct Belief {
    begin: Instant,
    end: Instant,
    token: u64,
}

/// What became of a worker's attempts.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    lost: u32,
    failed: u32,
    /// The longest from wanting the lock to having it, over all that failed in between.
    longest: Duration,
}

/// Workers that run until they are told to end.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    tasks: JoinSet<Tally>,
    stop: Arc<AtomicBool>,
    beliefs: Arc<Mutex<Vec<Belief>>>,
}

impl Workers {
    /// One more, that asks for `wait` at a time and holds for a few milliseconds.
    pub(crate) fn start(&mut self, keeper: &Keeper, name: &'static str, wait: Duration) {
        self.tasks.spawn(work(keeper.clone(), name, wait, self.stop.clone(), self.beliefs.clone()));
    }

    /// Ends them and judges: no two held at once, tokens rose, at least so many held, and nobody waited longer than `bound`.
    pub(crate) async fn judge(self, what: &str, least: usize, bound: Duration) {
        self.stop.store(true, Ordering::SeqCst);
        let mut all = Tally::default();
        for tally in self.tasks.join_all().await {
            (all.lost, all.failed) = (all.lost + tally.lost, all.failed + tally.failed);
            all.longest = all.longest.max(tally.longest);
        }
        let mut beliefs = std::mem::take(&mut *self.beliefs.lock().expect("no worker panics inside"));
        beliefs.sort_by_key(|belief| belief.begin);
        let overlaps = beliefs.windows(2).filter(|pair| pair[1].begin < pair[0].end).count();
        let falls = beliefs.windows(2).filter(|pair| pair[1].token <= pair[0].token).count();
        let (holds, Tally { lost, failed, longest }) = (beliefs.len(), all);
        println!(
            "{what}: {holds} holds, {lost} lost, {failed} errors; {overlaps} overlaps, {falls} tokens that fell; \
             served after {longest:.1?} at most, of {bound:.1?}"
        );
        assert_eq!((overlaps, falls), (0, 0));
        assert!(holds > least, "too little happened: {holds}");
        assert!(longest <= bound, "somebody waited for {longest:?}");
    }
}

async fn work(
    keeper: Keeper,
    name: &'static str,
    wait: Duration,
    stop: Arc<AtomicBool>,
    beliefs: Arc<Mutex<Vec<Belief>>>,
) -> Tally {
    let mut tally = Tally::default();
    let mut wanted = Instant::now();
    while !stop.load(Ordering::SeqCst) {
        let guard = match keeper.lock(name).wait(wait).acquire().await {
            Ok(guard) => guard,
            Err(_) => {
                tally.failed += 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let begin = Instant::now();
        tally.longest = tally.longest.max(begin - wanted);
        let mut end = None;
        for _ in 0..fastrand::u32(1..8) {
            // Believed at this moment, as seen before it was asked.
            let now = Instant::now();
            if guard.check().is_err() {
                tally.lost += 1;
                break;
            }
            end = Some(now);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if let Some(end) = end {
            let belief = Belief { begin, end, token: guard.token().get() };
            beliefs.lock().expect("no worker panics inside").push(belief);
        }
        // A release that fails is repeated by the keeper.
        let _ = guard.release().await;
        wanted = Instant::now();
    }
    tally
}
