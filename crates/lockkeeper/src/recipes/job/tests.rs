//! Mistakes, and a schedule on a clock that the test moves.

#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use super::window::{Schedule, millis};
use super::*;
use crate::error::{Error, ErrorKind};
use crate::testing::{self, Clock};
use std::sync::Arc;
use tokio::sync::mpsc;

const MINUTE: Duration = Duration::from_secs(60);

async fn mistake(job: Job) -> String {
    job.run(async |_| Ok::<_, Error>(())).await.expect_err("a mistake").to_string()
}

#[tokio::test]
async fn a_mistake_is_one_clear_sentence() {
    let keeper = Keeper::connect("memory:").await.unwrap();
    let job = || keeper.job("x");
    for (wrong, says) in [
        (job().every(Duration::from_secs(29)), "the window of 29s is shorter than the ttl 30s"),
        (job().every(Duration::ZERO), "a whole number of milliseconds"),
        (job().every(Duration::new(60, 1)), "a whole number of milliseconds"),
        (job().every(Duration::MAX), "a whole number of milliseconds"),
        (job().every(MINUTE).at_least(MINUTE), "at_least 1m is too long; it must be shorter than the window of 1m"),
        (job().at_least(Duration::MAX), "is too long; at most 366d"),
        (job().keep_history(51), "keep_history 51 is too many; a register keeps at most 50"),
        (job().every(MINUTE).catch_up(CatchUp::Each { most: 2001 }), "too many; at most 2000"),
        (job().catch_up(CatchUp::Latest), "catch_up needs windows, which every or at sets"),
        (job().label("x".repeat(201)), "at most 200 are allowed"),
        (job().at_most(Duration::from_millis(1)), "max_hold 1ms is too short"),
        (job().ttl(Duration::ZERO), "ttl 0s is out of range"),
        (keeper.job(""), "it must have 1 to 512 bytes"),
        (keeper.job([b'x'; 509]), "it must have 1 to 512"),
    ] {
        let told = mistake(wrong).await;
        assert!(told.contains(says) && !told.contains('\n'), "{told}");
    }
    let told = job().run_missed(async |_| Ok::<_, Error>(())).await.unwrap_err().to_string();
    assert!(told.contains("the job has no schedule; every or at sets one"), "{told}");
    let told = job().every(MINUTE).run_at(SystemTime::UNIX_EPOCH - MINUTE, async |_| Ok::<_, Error>(())).await;
    assert!(told.unwrap_err().to_string().contains("before 1970"));
}

#[cfg(feature = "cron")]
#[tokio::test]
async fn a_mistake_with_a_cron_expression_is_one_clear_sentence() {
    let keeper = Keeper::connect("memory:").await.unwrap();
    let job = || keeper.job("x");
    for (wrong, says) in [
        (job().at("0 25 * * *"), "'0 25 * * *' is not a cron expression"),
        (job().at("0 3 * * *").every(MINUTE), "a job has two schedules; use every or at, not both"),
        (job().at("0 3 * * *").time_zone("Mars/Olympus"), "'Mars/Olympus' is not a time zone"),
        (job().every(MINUTE).time_zone("UTC"), "a time_zone belongs to a cron expression"),
        (job().at("0 9,10 * * *").at_least(90 * MINUTE), "it must be shorter than the window of 1h"),
        (job().at("* * * * *").ttl(2 * MINUTE), "the window of 1m is shorter than the ttl 2m"),
    ] {
        let told = mistake(wrong).await;
        assert!(told.contains(says), "{told}");
    }
}

/// A machine that keeps a schedule of ten minutes, on a clock of its own.
struct Machine {
    clock: Clock,
    job: Job,
    ran: mpsc::UnboundedReceiver<SystemTime>,
}

impl Machine {
    fn new(catch_up: CatchUp) -> Self {
        let clock = Clock::new();
        let keeper = Keeper::builder().clock(&clock).open(Arc::new(testing::memory(&clock))).unwrap();
        let job = keeper.job("x").every(10 * MINUTE).catch_up(catch_up);
        let (tell, ran) = mpsc::unbounded_channel();
        let scheduled = job.clone();
        // Ends with the test's runtime.
        tokio::spawn(async move {
            let work = |run: Run| std::future::ready(tell.send(run.window().expect("a window")));
            scheduled.run_schedule(work).await.map(|never| match never {})
        });
        Self { clock, job, ran }
    }

    fn now(&self) -> SystemTime {
        crate::clock::wall_time(self.job.keeper.inner.engine.clock.wall_micros())
    }

    /// The first window after now.
    fn next(&self) -> SystemTime {
        time(Schedule::Every(600_000).after(millis(self.now()).unwrap()).unwrap())
    }

    /// Waits until the machine waits for its next window.
    async fn sleeps(&self) {
        while testing::leftovers(&self.job.keeper).alarms == 0 {
            tokio::task::yield_now().await;
        }
    }

    /// Lets time pass until the next window, which is run.
    async fn runs_next(&mut self) {
        self.sleeps().await;
        let next = self.next();
        // The machine counts in whole milliseconds: it wakes up to one after the window.
        self.clock.advance(next.duration_since(self.now()).unwrap() + Duration::from_millis(1));
        assert_eq!(self.ran.recv().await, Some(next));
    }

    /// Passes three windows in a sleep of the whole machine, which ends nearer to a fourth one; the third.
    async fn misses_three(&mut self) -> SystemTime {
        self.sleeps().await;
        let third = self.next() + 20 * MINUTE;
        self.clock.suspend((third + 6 * MINUTE).duration_since(self.now()).unwrap());
        third
    }
}

#[tokio::test]
async fn a_schedule_is_kept_and_missed_windows_stay_out() {
    let mut machine = Machine::new(CatchUp::Skip);
    machine.runs_next().await;
    machine.runs_next().await;
    machine.misses_three().await;
    machine.runs_next().await;
    assert_eq!(machine.job.history().await.unwrap().runs.len(), 3);
}

#[tokio::test]
async fn a_schedule_catches_up_as_soon_as_the_machine_is_back() {
    let mut machine = Machine::new(CatchUp::Latest);
    machine.runs_next().await;
    let third = machine.misses_three().await;
    assert_eq!(machine.ran.recv().await, Some(third));
    machine.runs_next().await;
    let mut machine = Machine::new(CatchUp::Each { most: 2 });
    machine.runs_next().await;
    let third = machine.misses_three().await;
    assert_eq!([machine.ran.recv().await, machine.ran.recv().await], [Some(third - 10 * MINUTE), Some(third)]);
    machine.runs_next().await;
}

#[tokio::test]
async fn a_schedule_ends_with_its_keeper() {
    let keeper = Keeper::connect("memory:").await.unwrap();
    let job = keeper.job("x").every(24 * 60 * MINUTE);
    let kept = tokio::spawn(async move { job.run_schedule(async |_| Ok::<_, Error>(())).await });
    while testing::leftovers(&keeper).alarms == 0 {
        tokio::task::yield_now().await;
    }
    keeper.close(Duration::ZERO).await.unwrap();
    assert_eq!(kept.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn work_is_cancelled_when_at_most_is_reached_and_the_history_says_so() {
    let clock = Clock::new();
    let keeper = Keeper::builder().clock(&clock).open(Arc::new(testing::memory(&clock))).unwrap();
    let job = keeper.job("x").every(60 * MINUTE).at_most(10 * MINUTE);
    // Both starts belong to one window, whatever the time is.
    let at = SystemTime::UNIX_EPOCH + 60 * MINUTE;
    let endless = job.run_at(at, async |_| {
        clock.advance(10 * MINUTE);
        std::future::pending::<Result<(), Error>>().await
    });
    let error = endless.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    let history = job.history().await.unwrap();
    assert_eq!((history.runs.len(), history.runs[0].ended, history.running), (1, Some(Ended::Lost), None));
    assert!(job.run_at(at, async |_| Ok::<_, Error>(())).await.unwrap().runs.is_empty(), "the window is used up");
}

/// A holder that dies between its grant and its first word leaves no trace but its lock.
#[tokio::test]
async fn a_start_outwaits_a_holder_that_never_tells_its_window() {
    let clock = Clock::new();
    let machine = async || Keeper::builder().clock(&clock).connect("memory:outwaited").await.unwrap();
    let (dead, alive) = (machine().await, machine().await);
    let guard = dead.lock("job/x").acquire().await.unwrap();
    let job = alive.job("x").every(MINUTE);
    let start = tokio::spawn(async move { job.run(async |_| Ok::<_, Error>(())).await });
    while testing::leftovers(&alive).alarms == 0 {
        tokio::task::yield_now().await;
    }
    testing::lose(guard.lease(), crate::LossReason::Broken);
    while !start.is_finished() {
        clock.advance(Duration::from_millis(100));
        tokio::task::yield_now().await;
    }
    assert_eq!(start.await.unwrap().unwrap().runs.len(), 1);

    let guard = dead.lock("job/x").acquire().await.unwrap();
    let by_hand = alive.job("x").run(async |_| Ok::<_, Error>(())).await.unwrap();
    assert!(matches!(by_hand.skipped, Some(Skipped::Busy { .. })), "a job without windows does not wait");
    drop(guard);
}

#[tokio::test]
async fn a_value_of_another_program_is_not_overwritten() {
    let keeper = Keeper::connect("memory:").await.unwrap();
    let guard = keeper.lock("job/x").acquire().await.unwrap();
    keeper.register("job/x").write(&guard.pass().unwrap(), b"mine", None).await.unwrap();
    guard.release().await.unwrap();
    let job = keeper.job("x");
    assert_eq!(job.run(async |_| Ok::<_, Error>(())).await.unwrap_err().kind(), ErrorKind::Foreign);
    assert_eq!(job.history().await.unwrap_err().kind(), ErrorKind::Foreign);
    assert_eq!(keeper.register("job/x").read().await.unwrap(), Some(b"mine".to_vec()));
}

#[tokio::test]
async fn jobs_and_their_rests_do_not_get_into_each_others_way() {
    let keeper = Keeper::connect("memory:").await.unwrap();
    for name in ["x", "x/rest", "rest/x", "job.rest/x"] {
        let job = keeper.job(name).at_least(MINUTE);
        assert_eq!(job.run(async |_| Ok::<_, Error>(())).await.unwrap().runs.len(), 1, "{name}");
        assert!(job.run(async |_| Ok::<_, Error>(())).await.unwrap().runs.is_empty(), "{name}");
    }
}
