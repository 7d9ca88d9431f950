//! Keepers without threads: a test polls their work itself, in any order it likes, so a run can be repeated exactly.

use super::Clock;
use crate::clock::Stamp;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// The work of all keepers on one clock: a loop for each keeper, and the calls that it has sent.
#[derive(Default)]
pub(crate) struct Hands(Mutex<Jobs>);

#[derive(Default)]
struct Jobs {
    next: u64,
    jobs: Vec<Job>,
}

struct Job {
    number: u64,
    bell: Arc<Bell>,
    /// Absent while it is polled.
    work: Option<Work>,
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Whether a job was woken since it was last polled.
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Hands {
    pub(crate) fn add(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut jobs = self.lock();
        jobs.next += 1;
        let (number, bell) = (jobs.next, Arc::new(Bell(AtomicBool::new(true))));
        jobs.jobs.push(Job { number, bell, work: Some(Box::pin(work)) });
    }

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Hands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hands")
    }
}

#[doc(hidden)]
impl Clock {
    /// A clock whose keepers have no threads: nothing of their work happens but by [`poll_job`](Self::poll_job).
    /// [`move_on`](Self::move_on) moves it. Its keepers need stores whose calls run anywhere.
    pub fn by_hand() -> Self {
        Self::with_hands(Some(Hands::default()))
    }

    /// The numbers of the jobs that can go on, the oldest first.
    pub fn ready_jobs(&self) -> Vec<u64> {
        let Some(hands) = self.hands() else { return Vec::new() };
        hands.lock().jobs.iter().filter(|job| job.bell.0.load(Ordering::Acquire)).map(|job| job.number).collect()
    }

    /// The oldest job that can go on.
    pub fn ready_job(&self) -> Option<u64> {
        let jobs = self.hands()?.lock();
        jobs.jobs.iter().find(|job| job.bell.0.load(Ordering::Acquire)).map(|job| job.number)
    }

    /// How many jobs there are, ready or not; none once all keepers have ended.
    pub fn jobs(&self) -> usize {
        self.hands().map_or(0, |hands| hands.lock().jobs.len())
    }

    /// Polls a job once; without effect when it has ended.
    pub fn poll_job(&self, number: u64) {
        let Some(hands) = self.hands() else { return };
        let taken = hands.lock().jobs.iter_mut().find(|job| job.number == number).and_then(|job| {
            job.bell.0.store(false, Ordering::Release);
            Some((job.work.take()?, job.bell.clone()))
        });
        let Some((mut work, bell)) = taken else { return };
        // Not under the lock: the job may add others.
        let polled = work.as_mut().poll(&mut Context::from_waker(&Waker::from(bell)));
        let mut jobs = hands.lock();
        match polled {
            Poll::Ready(()) => jobs.jobs.retain(|job| job.number != number),
            Poll::Pending => {
                if let Some(job) = jobs.jobs.iter_mut().find(|job| job.number == number) {
                    job.work = Some(work);
                }
            }
        }
    }

    /// Lets `by` pass; what is due then is ready.
    pub fn move_on(&self, by: Duration) {
        self.jump(by);
    }

    /// When the first timer of its keepers is due.
    pub fn next_timer(&self) -> Option<Stamp> {
        self.first_sleep()
    }

    /// The time it shows.
    pub fn stamp(&self) -> Stamp {
        self.as_clock().now()
    }
}
