//! Leader election by a clock that the tests move: leases that run short, pauses, and candidates that are refused.

use crate::common::{Bench, Probe, TTL, empty, ms, now, secs};
use lockkeeper::recipes::election::{After, Election, Term};
use lockkeeper::testing::{self, Op};
use lockkeeper::{ErrorKind, HolderId, Keeper, LockName, LossReason, Pass, Register, Token};
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

const LOCK: &str = "election/x";

/// What happened in the bodies, in order.
#[derive(Clone, Default)]
struct Story(Arc<Mutex<Vec<String>>>);

impl Story {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().expect("no panic inside").push(line.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("no panic inside"))
    }
}

/// A body's own value: tells when the body is dropped, and whether the term still held the lock then.
struct Inside<'a> {
    term: Term,
    bench: &'a Bench,
    story: Story,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let holder = self.bench.record(LOCK).and_then(|record| record.holders.first()?.token);
        let held = self.term.check().is_ok() && holder == Some(self.term.number());
        self.story.add(format!("ended, held: {held}"));
    }
}

/// Leads with bodies that never end by themselves.
fn lead_for_ever<'a>(election: &'a Election, bench: &'a Bench, story: &Story) -> Probe<'a, lockkeeper::Result<()>> {
    let story = story.clone();
    Probe::new(async move {
        let body = |term: Term| {
            let inside = Inside { term, bench, story: story.clone() };
            async move {
                inside.story.add("leads");
                std::future::pending::<()>().await;
                drop(inside);
                After::Stop
            }
        };
        election.lead(body).await
    })
}

/// Lets time pass until it is done; how long that took.
#[track_caller]
fn pass_time<T>(bench: &Bench, step: Duration, probe: &mut Probe<'_, T>) -> (T, Duration) {
    let mut passed = Duration::ZERO;
    while passed < TTL * 10 {
        if let Poll::Ready(done) = probe.poll() {
            return (done, passed);
        }
        bench.clock.advance(step);
        passed += step;
    }
    panic!("never done");
}

fn election(keeper: &Keeper) -> Election {
    keeper.election("x").value("here")
}

fn leader(keeper: &Keeper) -> Option<Token> {
    now(election(keeper).leader()).expect("answered").map(|leader| leader.term)
}

#[test]
fn a_leader_that_cannot_renew_ends_its_work_before_its_lease_and_only_then_releases() {
    let bench = Bench::new();
    let ((faults, a), (_, b)) = (bench.keeper(), bench.keeper());
    let (election, story) = (election(&a), Story::default());
    let mut leading = lead_for_ever(&election, &bench, &story);
    leading.pend();
    assert_eq!(story.take(), ["leads"]);
    bench.clock.advance(TTL * 10);
    leading.pend();
    assert_eq!(story.take(), [""; 0], "renewed all the while");

    faults.cut(Op::Renew, u32::MAX);
    faults.hold_request(Op::Release);
    // The last renewal was at most a third of a TTL ago.
    for _ in 0..100 {
        bench.clock.advance(TTL / 100);
        leading.pend();
        let told = story.take();
        if !told.is_empty() {
            assert_eq!(told, ["ended, held: true"]);
            assert!(leader(&b).is_some(), "not released yet");
            faults.heal();
            return;
        }
        assert!(now(b.lock(LOCK).try_acquire()).unwrap().is_none(), "its lease ended before its work");
    }
    panic!("the work went on without a lease");
}

#[test]
fn a_body_can_end_by_itself_before_it_is_cancelled() {
    let bench = Bench::new();
    let (faults, a) = bench.keeper();
    let election = election(&a);
    let mut leading = Probe::new(election.lead(|term| async move {
        term.ending().await;
        assert!(term.lease().remaining() > TTL / 6 && term.lease().remaining() <= TTL / 3);
        After::Stop
    }));
    leading.pend();
    faults.cut(Op::Renew, u32::MAX);
    pass_time(&bench, TTL / 100, &mut leading).0.unwrap();
}

#[test]
fn after_a_suspend_the_old_body_is_dropped_and_its_values_are_refused() {
    let bench = Bench::new();
    let ((_, a), (_, b)) = (bench.keeper(), bench.keeper());
    let old = now(election(&a).campaign("old")).unwrap();
    bench.clock.suspend(TTL * 2);
    assert_eq!(leader(&b), None, "its lease is over");
    let new = now(election(&b).campaign("new")).unwrap();
    assert!(new.term() > old.term());
    assert_eq!(now(old.proclaim("late")).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(now(old.run(std::future::pending::<()>())).unwrap_err().kind(), ErrorKind::Lost);
    // A process that was stopped right behind its last look at the clock.
    let key = LockName::new(LOCK).unwrap();
    let written = now(bench.store.write(&key, old.pass(), b"late", None)).unwrap();
    assert_eq!(written, lockkeeper::register::Written::Stale { seen: new.term() });
    assert_eq!(leader(&a), Some(new.term()));
}

#[test]
fn after_a_suspend_a_body_takes_no_step_more() {
    let bench = Bench::new();
    let (_, a) = bench.keeper();
    let (election, story) = (election(&a), Story::default());
    let step = || {
        story.add("step");
        Poll::<After>::Pending
    };
    let mut leading = Probe::new(election.lead(|_| poll_fn(|_| step())));
    leading.pend();
    leading.pend();
    assert_eq!(story.take(), ["step", "step"]);
    bench.clock.suspend(TTL);
    leading.pend();
    assert_eq!(story.take(), [""; 0]);
    bench.clock.advance(secs(2));
    leading.pend();
    assert_eq!(story.take(), ["step"], "it leads again");
}

#[test]
fn a_leader_that_lost_its_term_campaigns_again_with_a_higher_one() {
    let bench = Bench::new();
    let (_, a) = bench.keeper();
    let (election, terms) = (election(&a), Mutex::new(Vec::new()));
    let mut leading = Probe::new(election.lead(|term| {
        terms.lock().unwrap().push(term.number());
        let count = terms.lock().unwrap().len();
        async move {
            if count < 4 {
                testing::lose(term.lease(), LossReason::Broken);
                std::future::pending::<()>().await;
            }
            After::Stop
        }
    }));
    pass_time(&bench, ms(10), &mut leading).0.unwrap();
    drop(leading);
    let terms = terms.into_inner().unwrap();
    assert!(terms.len() == 4 && terms.is_sorted_by(|a, b| a < b), "{terms:?}");
    empty(&a);
}

#[test]
fn what_a_body_said_counts_even_when_its_lease_had_ended() {
    let bench = Bench::new();
    let (_, a) = bench.keeper();
    let election = election(&a);
    let lead = election.lead(|term| async move {
        testing::lose(term.lease(), LossReason::Broken);
        After::Stop
    });
    now(lead).unwrap();
}

#[test]
fn dropping_a_candidate_drops_its_body_and_then_gives_the_lock_back() {
    let bench = Bench::new();
    let (_, a) = bench.keeper();
    let (election, story) = (election(&a), Story::default());
    let mut leading = lead_for_ever(&election, &bench, &story);
    leading.pend();
    drop(leading);
    assert_eq!(story.take(), ["leads", "ended, held: true"]);
    empty(&a);
    assert!(bench.record(LOCK).is_none());
}

#[test]
fn a_term_that_cannot_be_proclaimed_never_reaches_a_body() {
    let bench = Bench::new();
    let (_, a) = bench.keeper();
    // A fence that has seen more than any term to come.
    let key = LockName::new(LOCK).unwrap();
    let later = Pass::new(key.clone(), Token::MAX, HolderId::from_u128(1));
    now(bench.store.write(&key, &later, b"{}", None)).unwrap();
    let election = election(&a);
    assert_eq!(now(election.campaign("v")).unwrap_err().kind(), ErrorKind::Stale);
    empty(&a);
    assert!(bench.record(LOCK).is_none(), "the lock was given back");

    let mut leading = Probe::new(election.lead(|_| async { panic!("a body without a term") }));
    for _ in 0..100 {
        leading.pend();
        bench.clock.advance(ms(100));
    }
    assert_eq!(now(election.leader()).unwrap(), None);
    let guard = now(a.lock(LOCK).acquire()).unwrap();
    assert_eq!(now(election.leader()).unwrap_err().kind(), ErrorKind::Foreign, "no leader wrote that");
    drop(guard);
}

#[test]
fn an_outage_while_campaigning_is_ridden_out() {
    let bench = Bench::new();
    let (faults, a) = bench.keeper();
    faults.cut(Op::Acquire, 12);
    let election = election(&a);
    let mut leading = Probe::new(election.lead(|_| async { After::Stop }));
    pass_time(&bench, ms(100), &mut leading).0.unwrap();
    assert_eq!(faults.done(Op::Acquire), 1);
}

#[test]
fn a_lone_candidate_that_steps_down_leads_again_after_about_a_ttl() {
    let bench = Bench::new();
    let (_, a) = bench.keeper();
    let election = election(&a);
    let mut terms = 0;
    let mut leading = Probe::new(election.lead(|_| {
        terms += 1;
        let after = if terms == 1 { After::StepDown } else { After::Stop };
        async move { after }
    }));
    leading.pend();
    assert!(bench.record(LOCK).is_none(), "it makes room");
    let passed = pass_time(&bench, ms(500), &mut leading).1;
    assert!(passed >= TTL && passed <= TTL + secs(2), "{passed:?}");
    drop(leading);
    assert_eq!(terms, 2);
}

#[test]
fn a_candidate_that_steps_down_comes_back_behind_the_next_leader() {
    let bench = Bench::new();
    let ((_, a), (_, b)) = (bench.keeper(), bench.keeper());
    let (election, story) = (election(&a), Story::default());
    let first = Mutex::new(true);
    let mut leading = Probe::new(election.lead(|_| {
        let first = std::mem::take(&mut *first.lock().unwrap());
        story.add("leads");
        async move {
            if !first {
                return After::Stop;
            }
            After::StepDown
        }
    }));
    leading.pend();
    assert_eq!(story.take(), ["leads"]);
    let other = now(b.election("x").campaign("there")).unwrap();
    for _ in 0..10 {
        bench.clock.advance(TTL);
        leading.pend();
    }
    assert_eq!(story.take(), [""; 0], "the other leads for as long as it likes");
    assert_eq!(bench.waiting(LOCK), 1, "it campaigns again");
    now(other.resign()).unwrap();
    leading.finish().unwrap();
    assert_eq!(story.take(), ["leads"]);
}

#[test]
fn an_observer_keeps_its_look_when_a_caller_gives_up() {
    let bench = Bench::new();
    let (_, a) = bench.keeper();
    let mut observer = election(&a).look_every(secs(5)).observe();
    Probe::new(observer.next()).pend();
    let leadership = now(election(&a).campaign("here")).unwrap();
    Probe::new(observer.next()).pend();
    bench.clock.advance(secs(5));
    let seen = Probe::new(observer.next()).ready().unwrap().unwrap();
    assert_eq!((seen.term, seen.sequence), (leadership.term(), 1));
    now(leadership.proclaim("there")).unwrap();
    // The last look was when the clock stood where it stands.
    Probe::new(observer.next()).pend();
    bench.clock.advance(secs(5));
    assert_eq!(Probe::new(observer.next()).ready().unwrap().unwrap().value, "there");
    bench.clock.advance(secs(60));
    Probe::new(observer.next()).pend();
}

#[test]
fn an_observer_never_goes_back() {
    let bench = Bench::new();
    let (_, a) = bench.keeper();
    let mut observer = election(&a).observe();
    let leadership = now(election(&a).campaign("first")).unwrap();
    let key = LockName::new(LOCK).unwrap();
    let first = now(bench.store.read(&key)).unwrap().unwrap();
    now(leadership.proclaim("second")).unwrap();
    assert_eq!(now(observer.next()).unwrap().unwrap().value, "second");
    // A write that was given up arrives late, from the same leader: no fence refuses it.
    now(bench.store.write(&key, leadership.pass(), &first, None)).unwrap();
    bench.clock.advance(secs(3));
    Probe::new(observer.next()).pend();
    now(leadership.proclaim("third")).unwrap();
    bench.clock.advance(secs(3));
    assert_eq!(now(observer.next()).unwrap().unwrap().value, "third");
}

#[test]
fn a_closed_keeper_ends_observers_and_candidates() {
    let bench = Bench::new();
    let (_, a) = bench.keeper();
    let election = election(&a);
    let mut observer = election.observe();
    Probe::new(observer.next()).pend();
    let story = Story::default();
    let mut leading = lead_for_ever(&election, &bench, &story);
    leading.pend();
    let mut closing = Probe::new(a.close(Duration::ZERO));
    pass_time(&bench, ms(100), &mut closing).0.unwrap();
    drop(closing);
    assert_eq!(leading.finish().unwrap_err().kind(), ErrorKind::Closed);
    // The leader's own values may come first.
    let error = loop {
        if let Err(error) = now(observer.next()).expect("an error comes first") {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(now(observer.next()).is_none(), "it is over");
}

#[test]
fn bad_input_is_refused_in_one_sentence() {
    let bench = Bench::new();
    let (_, a) = bench.keeper();
    let told = |error: lockkeeper::Error, kind: ErrorKind, text: &str| {
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(text), "{error}");
    };
    let empty_name = "a lock name is empty";
    told(now(a.election("").campaign("v")).unwrap_err(), ErrorKind::InvalidName, empty_name);
    told(now(a.election("").leader()).unwrap_err(), ErrorKind::InvalidName, empty_name);
    told(now(a.election("").lead(|_| async { After::Stop })).unwrap_err(), ErrorKind::InvalidName, empty_name);
    told(now(a.election("").observe().next()).unwrap().unwrap_err(), ErrorKind::InvalidName, empty_name);
    told(now(a.election("x".repeat(512)).leader()).unwrap_err(), ErrorKind::InvalidName, "521 bytes");

    let long = "v".repeat(4097);
    let text = "the leader's value has 4097 bytes; at most 4096 are allowed";
    told(now(election(&a).campaign(&long)).unwrap_err(), ErrorKind::InvalidConfig, text);
    let lead = election(&a).value(&long);
    told(now(lead.lead(|_| async { After::Stop })).unwrap_err(), ErrorKind::InvalidConfig, text);
    let leadership = now(election(&a).campaign(&long[1..])).unwrap();
    told(now(leadership.proclaim(&long)).unwrap_err(), ErrorKind::InvalidConfig, text);
    // Every byte escaped is still less than a register keeps.
    now(leadership.proclaim("\u{1}".repeat(4096))).unwrap();
    now(leadership.resign()).unwrap();

    let look = election(&a).look_every(Duration::ZERO);
    told(now(look.observe().next()).unwrap().unwrap_err(), ErrorKind::InvalidConfig, "at least 10ms");
    let label = election(&a).label("l".repeat(201));
    told(now(label.campaign("v")).unwrap_err(), ErrorKind::InvalidConfig, "the label has 201 bytes");
    let ttl = election(&a).ttl(Duration::ZERO);
    told(now(ttl.lead(|_| async { After::Stop })).unwrap_err(), ErrorKind::InvalidConfig, "out of range");
}
