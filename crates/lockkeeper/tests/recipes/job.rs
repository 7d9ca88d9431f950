//! Run-once jobs.

use crate::Place;
use lockkeeper::recipes::job::{CatchUp, Ended, History, Report, Run, Skipped};
use lockkeeper::recipes::{Job, job::RunRecord};
use lockkeeper::{Error, Keeper};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use testkit::SOON;
use tokio::sync::{Barrier, oneshot};

const MINUTE: Duration = Duration::from_secs(60);

/// The window of this number, with windows of two minutes.
fn window(number: u32) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_800_000_000) + 2 * MINUTE * number
}

fn job(keeper: &Keeper, place: &Place) -> Job {
    keeper.job(&place.name).every(2 * MINUTE)
}

async fn fine(_: Run) -> Result<(), Error> {
    Ok(())
}

/// The windows that a start has run.
fn ran<T, E>(report: &Report<T, E>) -> Vec<SystemTime> {
    report.runs.iter().filter_map(|run| run.window).collect()
}

fn ends(history: &History) -> Vec<(Option<SystemTime>, Ended)> {
    history.runs.iter().map(|run| (run.window, run.ended.expect("it has ended"))).collect()
}

/// A start whose work has begun and goes on until the sender is used.
struct UnderWay {
    task: tokio::task::JoinHandle<Result<Report<&'static str, Error>, Error>>,
    finish: oneshot::Sender<()>,
    run: Run,
}

async fn under_way(job: Job, at: SystemTime) -> UnderWay {
    let (tell, told) = oneshot::channel();
    let (finish, finished) = oneshot::channel();
    let mut once = Some((tell, finished));
    let task = tokio::spawn(async move {
        job.run_at(at, |run| {
            let (tell, finished) = once.take().expect("one run");
            async move {
                tell.send(run).expect("the test waits");
                let _ = finished.await;
                Ok("finished")
            }
        })
        .await
    });
    let run = told.await.expect("the work begins");
    UnderWay { task, finish, run }
}

/// Dies in the middle of its work; returns once its lock is free.
async fn crash(job: Job, at: SystemTime) {
    let UnderWay { task, finish: _never, .. } = under_way(job.clone(), at).await;
    task.abort();
    assert!(task.await.expect_err("aborted").is_cancelled());
    eventually("the lock is free", async || job.history().await.expect("a history").running.is_none()).await;
}

async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(2 * SOON, wait).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

/// Twenty machines start in the same second, a hundred times, with clocks that are up to 30 s off.
pub(crate) async fn twenty_machines_run_each_window_once(place: Place) {
    const MACHINES: u32 = 20;
    const WINDOWS: u32 = 100;
    let runs: Arc<Mutex<BTreeMap<SystemTime, Vec<u32>>>> = Arc::default();
    let same_second = Arc::new(Barrier::new(MACHINES as usize));
    let mut machines = Vec::new();
    let watching = place.keeper().await;
    for machine in 0..MACHINES {
        let (runs, same_second) = (runs.clone(), same_second.clone());
        // No lease ends during the test, however busy the machine is.
        let keeper = place.keeper_with(MINUTE / 2).await;
        let job = job(&keeper, &place).label(format!("machine {machine}"));
        machines.push(tokio::spawn(async move {
            for number in 1..=WINDOWS {
                same_second.wait().await;
                // Another order of clocks at each window; from 30 s slow to 30 s fast.
                let skew = (machine * 7 + number * 3) % MACHINES * 60_000 / (MACHINES - 1);
                let clock = window(number) - MINUTE / 2 + Duration::from_millis(skew.into());
                let work = |run: Run| {
                    let at = run.window().expect("a window");
                    runs.lock().expect("no panic").entry(at).or_default().push(machine);
                    fine(run)
                };
                let report = job.run_at(clock, work).await.expect("the store answers");
                // All speak of the same window, those that skip it too.
                let meant = match &report.skipped {
                    None => ran(&report)[..] == [window(number)],
                    Some(Skipped::AlreadyRan { last_window }) => *last_window == window(number),
                    Some(Skipped::Running { by }) => by.window == Some(window(number)),
                    Some(_) => false,
                };
                assert!(meant, "{number}: {report:?}");
            }
        }));
    }
    for machine in machines {
        machine.await.expect("no panic");
    }
    let runs = std::mem::take(&mut *runs.lock().expect("no panic"));
    let expected: Vec<SystemTime> = (1..=WINDOWS).map(window).collect();
    assert_eq!(runs.keys().copied().collect::<Vec<_>>(), expected);
    assert!(runs.values().all(|machines| machines.len() == 1), "{runs:?}");
    let history = job(&watching, &place).history().await.expect("a history");
    assert_eq!((history.runs.len(), history.last_window), (20, Some(window(WINDOWS))), "bounded, newest first");
    assert!(history.runs.iter().all(|run| run.ended == Some(Ended::Done)), "{history:?}");
}

pub(crate) async fn the_report_and_the_history_tell_the_result(place: Place) {
    let keeper = place.keeper().await;
    let job = job(&keeper, &place).label("north").keep_history(2);
    assert_eq!(job.history().await.expect("empty"), History::default());
    let report = job.run_at(window(1), async |run| {
        run.note("42 rows\n");
        assert_eq!(run.pass().token, run.token());
        assert!(run.interrupted_before().is_none() && run.lease().check().is_ok());
        Ok::<_, String>(run.window())
    });
    let report = report.await.expect("the store answers");
    assert!(report.skipped.is_none() && report.runs[0].unrecorded.is_none());
    let token = report.runs[0].token;
    assert_eq!(report.into_result().expect("no error"), Some(Some(window(1))));

    let again = job.run_at(window(1) + MINUTE / 2, fine).await.expect("the store answers");
    assert!(
        matches!(again.skipped, Some(Skipped::AlreadyRan { last_window }) if last_window == window(1)),
        "{again:?}"
    );
    assert!(again.into_result().expect("no error").is_none());

    // The work's own error, with its own type; the window is used up.
    let failed = job.run_at(window(2), async |_| Err::<(), _>("no disk".to_owned())).await.expect("the store answers");
    assert_eq!(failed.into_result().expect_err("the work's error"), "no disk");
    assert!(job.run_at(window(2), fine).await.expect("the store answers").runs.is_empty());

    let RunRecord { who, text, ended, took, .. } = job.history().await.expect("a history").runs.remove(1);
    assert_eq!((&who.label[..], &text[..], ended), ("north", "42 rows ", Some(Ended::Done)));
    assert!(took.is_some() && who.pid == std::process::id());
    let history = job.history().await.expect("a history");
    assert_eq!(ends(&history), [(Some(window(2)), Ended::Failed), (Some(window(1)), Ended::Done)]);
    assert_eq!((&history.runs[0].text[..], history.runs[1].token), ("no disk", token));
    assert!(history.runs[0].token > token);
    let _ = job.run_at(window(3), fine).await.expect("the store answers");
    assert_eq!(job.history().await.expect("a history").runs.len(), 2, "bounded");
}

pub(crate) async fn a_run_under_way_is_told_apart_from_an_overlap(place: Place) {
    let (a, b) = (place.keeper().await, place.keeper().await);
    let first = under_way(job(&a, &place).label("first"), window(1)).await;
    let second = job(&b, &place);
    let same = second.run_at(window(1), fine).await.expect("the store answers").skipped;
    assert!(matches!(&same, Some(Skipped::Running { by }) if by.token == first.run.token()), "{same:?}");
    let later = second.run_at(window(2), fine).await.expect("the store answers").skipped;
    assert!(matches!(&later, Some(Skipped::Overlap { by }) if by.window == Some(window(1))), "{later:?}");
    let text = later.expect("skipped").to_string();
    assert!(text.contains("still under way") && text.contains("\"first\""), "{text}");
    let by_hand = b.job(&place.name).run(fine).await.expect("the store answers").skipped;
    assert!(matches!(by_hand, Some(Skipped::Running { .. })), "{by_hand:?}");
    assert!(second.forget_windows().await.is_err(), "not while it is being run");
    let history = second.history().await.expect("a history");
    assert_eq!(history.running.as_ref().map(|run| run.token), Some(first.run.token()));
    assert!(history.runs.is_empty());

    first.finish.send(()).expect("it waits");
    let report = first.task.await.expect("no panic").expect("the store answers");
    assert_eq!(report.into_result().expect("no error"), Some("finished"));
    // The window was not run meanwhile, so it still can be.
    assert_eq!(ran(&second.run_at(window(2), fine).await.expect("the store answers")), [window(2)]);
    let history = second.history().await.expect("a history");
    assert_eq!(ends(&history), [(Some(window(2)), Ended::Done), (Some(window(1)), Ended::Done)]);
}

pub(crate) async fn a_runner_that_dies_is_found_by_the_next_one(place: Place) {
    let keeper = place.keeper().await;
    let job = job(&keeper, &place);
    crash(job.clone().label("the one that dies"), window(1)).await;
    assert_eq!(ends(&job.history().await.expect("a history")), [(Some(window(1)), Ended::Interrupted)]);
    let same = job.run_at(window(1), fine).await.expect("the store answers");
    assert!(same.runs.is_empty() && same.skipped.is_some(), "at most once: {same:?}");
    let next = job.run_at(window(2), async |run| {
        let before = run.interrupted_before().expect("it died").clone();
        Ok::<_, Error>((before.window, before.who.label))
    });
    let found = next.await.expect("the store answers").into_result().expect("no error");
    assert_eq!(found, Some((Some(window(1)), "the one that dies".to_owned())));
    let history = job.history().await.expect("a history");
    assert_eq!(ends(&history), [(Some(window(2)), Ended::Done), (Some(window(1)), Ended::Interrupted)]);
}

pub(crate) async fn a_runner_that_lost_its_lock_cannot_write_the_history(place: Place) {
    let (a, b) = (place.keeper().await, place.keeper().await);
    let late = under_way(job(&a, &place), window(1)).await;
    let name = format!("job/{}", place.name);
    b.break_lock(&name, late.run.token()).await.expect("the store answers").expect("it was held");
    assert_eq!(ran(&job(&b, &place).run_at(window(2), fine).await.expect("the store answers")), [window(2)]);
    // It may have noticed by now or not. Its own last word is refused in both cases.
    let _ = late.finish.send(());
    match late.task.await.expect("no panic") {
        Ok(report) => assert!(report.runs[0].unrecorded.is_some(), "{report:?}"),
        Err(error) => assert_eq!(error.kind(), lockkeeper::ErrorKind::Lost, "{error}"),
    }
    let history = job(&b, &place).history().await.expect("a history");
    let [(second, Ended::Done), (first, ended)] = ends(&history)[..] else { panic!("{history:?}") };
    assert_eq!((second, first), (Some(window(2)), Some(window(1))));
    // A runner that noticed before the next one began has told the truth in time.
    assert!(matches!(ended, Ended::Interrupted | Ended::Lost), "{history:?}");
}

pub(crate) async fn missed_and_interrupted_windows_are_caught_up_with(place: Place) {
    let keeper = place.keeper().await;
    let job = job(&keeper, &place);
    let each = job.clone().catch_up(CatchUp::Each { most: 3 });
    let runs = async |job: &Job, number| ran(&job.run_at(window(number), fine).await.expect("the store answers"));
    assert_eq!(runs(&each, 1).await, [window(1)], "the first run ever has no past");
    assert_eq!(runs(&job, 3).await, [window(3)]);
    assert_eq!(runs(&each, 9).await, [6, 7, 8, 9].map(window));
    let latest = job.clone().catch_up(CatchUp::Latest);
    assert_eq!(runs(&latest, 12).await, [11, 12].map(window));

    crash(job.clone(), window(13)).await;
    crash(latest.clone(), window(14)).await; // in the second run of window 13
    assert_eq!(runs(&latest, 15).await, [14, 15].map(window), "a window is repeated once");
    let history = job.history().await.expect("a history");
    let expected = [(15, Ended::Done), (14, Ended::Done), (13, Ended::Interrupted), (13, Ended::Interrupted)];
    assert_eq!(ends(&history)[..4], expected.map(|(number, ended)| (Some(window(number)), ended)));

    // A window that fails is over; the ones after it wait for the next start.
    let failing = each.run_at(window(19), async |_| Err::<(), _>("no disk")).await.expect("the store answers");
    assert_eq!(ran(&failing), [window(16)]);
    assert_eq!(runs(&each, 19).await, [17, 18, 19].map(window));
}

pub(crate) async fn a_window_of_a_wrong_clock_can_be_forgotten(place: Place) {
    let keeper = place.keeper().await;
    let job = job(&keeper, &place);
    assert_eq!(ran(&job.run_at(window(5000), fine).await.expect("the store answers")), [window(5000)]);
    let skipped = job.run_at(window(1), fine).await.expect("the store answers").skipped;
    assert!(matches!(skipped, Some(Skipped::AlreadyRan { last_window }) if last_window == window(5000)), "{skipped:?}");
    job.forget_windows().await.expect("free");
    assert_eq!(ran(&job.run_at(window(1), fine).await.expect("the store answers")), [window(1)]);
    assert_eq!(job.history().await.expect("a history").runs.len(), 2, "the history stays");
}

pub(crate) async fn at_least_keeps_starts_apart_by_the_stores_clock(place: Place) {
    let (a, b) = (place.keeper().await, place.keeper().await);
    let hourly = |keeper: &Keeper| keeper.job(&place.name).at_least(60 * MINUTE);
    let first = hourly(&a).run(fine).await.expect("the store answers");
    assert_eq!((first.runs.len(), first.runs[0].window), (1, None));
    let second = hourly(&b).run(fine).await.expect("the store answers").skipped;
    assert!(matches!(second, Some(Skipped::Rest { at_least }) if at_least == 60 * MINUTE), "{second:?}");
    // Windows do not help: less than `at_least` has passed.
    let window = job(&b, &place).at_least(MINUTE).run_at(window(1), fine).await.expect("the store answers").skipped;
    assert!(matches!(window, Some(Skipped::Rest { .. })), "{window:?}");

    let brief = b.job(format!("{}/brief", place.name)).at_least(Duration::from_secs(1));
    assert_eq!(brief.run(fine).await.expect("the store answers").runs.len(), 1);
    eventually("the rest ends", async || !brief.run(fine).await.expect("the store answers").runs.is_empty()).await;
}

pub(crate) async fn the_blocking_face_does_the_same(place: Place) {
    let keeper = lockkeeper::blocking::Keeper::from(place.keeper().await);
    let work = move || {
        let job = keeper.job(&place.name).every(2 * MINUTE).label("north").keep_history(5);
        let report = job.run_at(window(1), |run| {
            run.note("7 rows");
            run.lease().check().map(|()| 7)
        });
        assert_eq!(report?.into_result()?, Some(7));
        assert!(job.run_at(window(1), |_| Ok::<_, Error>(7))?.skipped.is_some());
        let history = job.history()?;
        assert_eq!((&history.runs[0].text[..], history.last_window), ("7 rows", Some(window(1))));
        job.forget_windows()
    };
    tokio::task::spawn_blocking(work).await.expect("no panic").expect("the store answers");
}

/// The store cannot be reached when the run ends, and the runner's last word arrives too late.
#[cfg(feature = "redis")]
#[test]
fn a_last_word_that_arrives_late_is_refused() {
    let server = testkit::RedisServer::new();
    let gate = Arc::new(testkit::Gate::new(server.port()));
    let far = format!("redis://127.0.0.1:{}", gate.port());
    crate::locks(server.url(), "redis", |place| async move {
        let near = place.keeper().await;
        let away = Place { url: far, ..place.clone() }.keeper().await;
        let cut = gate.clone();
        let cut_off = job(&away, &place);
        let report = cut_off.run_at(window(1), async |_| {
            cut.hold();
            Ok::<_, Error>("done")
        });
        let report = report.await.expect("the work has ended in time");
        assert_eq!(report.runs[0].unrecorded.as_ref().map(Error::kind), Some(lockkeeper::ErrorKind::Unavailable));
        assert_eq!(report.into_result().expect("no error"), Some("done"));
        // The dead runner's lock ends by itself; until then its run seems to be under way.
        let next = job(&near, &place);
        eventually("the next run", async || {
            let report = next.run_at(window(2), fine).await.expect("the store answers");
            assert!(matches!(report.skipped, None | Some(Skipped::Overlap { .. })), "{report:?}");
            !report.runs.is_empty()
        })
        .await;
        let before = next.history().await.expect("a history");
        assert_eq!(ends(&before), [(Some(window(2)), Ended::Done), (Some(window(1)), Ended::Interrupted)]);
        assert!(gate.held() > 0);
        gate.deliver();
        drop((cut_off, away));
        assert_eq!(next.history().await.expect("a history"), before);
    });
}
