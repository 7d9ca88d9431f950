//! The one clock that validity is judged by: it counts the time a machine spends suspended, and never jumps.
//!
//! `std::time::Instant` stands still during suspend on Linux, so a guard would believe in a lease that ended long ago.
//! Timers that fire late are harmless, because every decision reads this clock again.

#[cfg(feature = "testing")]
pub(crate) mod manual;

use std::fmt;
use std::time::Duration;

/// A point on the engine's clock, in microseconds since the machine booted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp(u64);

impl Stamp {
    /// From microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// As microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This much later.
    #[must_use]
    pub fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(micros(d)))
    }

    /// This much earlier; not before the clock's own start.
    #[must_use]
    pub fn before(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(micros(d)))
    }

    /// The time from `earlier` to here; zero when `earlier` is not earlier.
    pub fn since(self, earlier: Stamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}µs", self.0)
    }
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

/// The system's clock, or one that a test moves by hand.
#[derive(Clone, Debug, Default)]
pub(crate) enum Clock {
    #[default]
    System,
    #[cfg(feature = "testing")]
    Manual(std::sync::Arc<manual::ManualClock>),
}

impl Clock {
    pub(crate) fn now(&self) -> Stamp {
        match self {
            Self::System => system_now(),
            #[cfg(feature = "testing")]
            Self::Manual(clock) => clock.now(),
        }
    }

    /// Where a keeper without a thread puts its work: a test polls it.
    #[cfg(feature = "internals")]
    pub(crate) fn hands(&self) -> Option<&crate::testing::Hands> {
        match self {
            Self::System => None,
            Self::Manual(clock) => clock.hands(),
        }
    }

    /// Microseconds of the wall clock that belong to `now`; moves with a manual clock.
    pub(crate) fn wall_micros(&self) -> u64 {
        match self {
            Self::System => wall_micros(),
            #[cfg(feature = "testing")]
            Self::Manual(clock) => clock.wall_micros(),
        }
    }
}

/// Microseconds since 1970 by the wall clock: the floor of tokens, never used for validity.
pub(crate) fn wall_micros() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, micros)
}

/// A wall-clock time from [`wall_micros`].
pub(crate) fn wall_time(micros: u64) -> std::time::SystemTime {
    std::time::UNIX_EPOCH + Duration::from_micros(micros)
}

/// Now, by a clock that counts suspend: `CLOCK_BOOTTIME` on Linux, `CLOCK_MONOTONIC` elsewhere on Unix (on macOS and
/// the BSDs it goes on during sleep).
#[cfg(unix)]
pub fn system_now() -> Stamp {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let t = rustix::time::clock_gettime(CLOCK);
    // Neither part is ever negative for these clocks.
    Stamp(t.tv_sec.unsigned_abs() * 1_000_000 + t.tv_nsec.unsigned_abs() / 1_000)
}

/// Now, by the performance counter, which goes on during suspend.
#[cfg(not(unix))]
pub fn system_now() -> Stamp {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    Stamp(micros(START.elapsed()) + 1)
}

/// Sleeps on the clock: what the keeper's thread waits with.
///
/// On Linux a timer on `CLOCK_BOOTTIME`, so that a guard whose lease ended during suspend is told right after resume.
#[derive(Debug)]
pub(crate) struct Sleeper {
    #[cfg(target_os = "linux")]
    timer: Option<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>>,
}

impl Sleeper {
    /// For the system's clock it must be made inside a Tokio runtime with I/O and time.
    #[cfg_attr(not(target_os = "linux"), allow(unused_variables, reason = "only Linux has such a timer"))]
    pub(crate) fn new(clock: &Clock) -> Self {
        Self {
            #[cfg(target_os = "linux")]
            timer: matches!(clock, Clock::System).then(linux::timer).and_then(Result::ok),
        }
    }

    /// Waits until `clock` has reached `at`, or for ever; may return early.
    pub(crate) async fn until(&self, clock: &Clock, at: Option<Stamp>) {
        match clock {
            #[cfg(feature = "testing")]
            Clock::Manual(clock) => clock.reached(at.unwrap_or(Stamp(u64::MAX))).await,
            Clock::System => {
                let Some(at) = at else { return std::future::pending().await };
                #[cfg(target_os = "linux")]
                if let Some(timer) = &self.timer {
                    return linux::wait(timer, at).await;
                }
                // Without a suspend-aware timer, look at the clock at least once a second.
                let left = at.since(system_now());
                tokio::time::sleep(left.min(Duration::from_secs(1))).await;
            }
        }
    }
}

/// Lets Tokio wait on a descriptor; inside a runtime with I/O.
#[cfg(target_os = "linux")]
#[allow(deprecated, reason = "deprecated for types that may change their descriptor later; an OwnedFd cannot")]
pub(crate) fn pollable(fd: std::os::fd::OwnedFd) -> std::io::Result<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>> {
    tokio::io::unix::AsyncFd::new(fd)
}

#[cfg(target_os = "linux")]
mod linux {
    use super::Stamp;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };
    use std::os::fd::OwnedFd;
    use tokio::io::unix::AsyncFd;

    pub(super) fn timer() -> std::io::Result<AsyncFd<OwnedFd>> {
        let fd = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        super::pollable(fd)
    }

    pub(super) async fn wait(timer: &AsyncFd<OwnedFd>, at: Stamp) {
        // A zero value would disarm the timer; 1 µs after boot is in the past just as well.
        let micros = at.as_micros().max(1);
        let value = Timespec {
            tv_sec: i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX),
            tv_nsec: (micros % 1_000_000 * 1_000) as _,
        };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        if timerfd_settime(timer.get_ref(), TimerfdTimerFlags::ABSTIME, &spec).is_err() {
            return tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        if let Ok(mut ready) = timer.readable().await {
            let mut count = [0; 8];
            // Reading clears the readiness; the count itself does not matter.
            let _ = ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut count)?));
            ready.clear_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_forward() {
        let a = system_now();
        let b = system_now();
        assert!(b >= a && a > Stamp::default());
        assert_eq!(a.after(Duration::from_secs(2)).since(a), Duration::from_secs(2));
    }

    #[tokio::test]
    async fn the_sleeper_wakes_at_its_stamp() {
        let sleeper = Sleeper::new(&Clock::System);
        for ms in [5, 1, 3] {
            let at = system_now().after(Duration::from_millis(ms));
            while system_now() < at {
                sleeper.until(&Clock::System, Some(at)).await;
            }
        }
    }
}
