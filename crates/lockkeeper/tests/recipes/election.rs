//! Leader election on every store.

use crate::Place;
use lockkeeper::ErrorKind;
use lockkeeper::recipes::election::{After, Election, Leader};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than anything here takes; reached only when something hangs.
const PATIENCE: Duration = Duration::from_secs(60);

async fn election(place: &Place, label: &str) -> Election {
    let keeper = place.keeper().await;
    keeper.election(&place.name).label(label).wait(PATIENCE).look_every(Duration::from_millis(20))
}

async fn leader(election: &Election) -> Option<Leader> {
    election.leader().await.expect("answered")
}

pub(crate) async fn a_candidate_leads_proclaims_and_resigns(place: Place) {
    let (here, there) = (election(&place, "here").await, election(&place, "there").await);
    assert_eq!(leader(&there).await, None);
    let first = here.campaign("10.0.0.1").await.expect("free");
    let seen = leader(&there).await.expect("it has proclaimed itself");
    assert_eq!((seen.term, seen.sequence, &seen.value[..]), (first.term(), 1, "10.0.0.1"));
    assert_eq!((&seen.holder.label[..], seen.holder.pid), ("here", std::process::id()));

    first.proclaim("10.0.0.2 \u{1}\"ü").await.expect("written");
    let seen = leader(&there).await.expect("it leads");
    assert_eq!((seen.term, seen.sequence, &seen.value[..]), (first.term(), 2, "10.0.0.2 \u{1}\"ü"));

    let before = first.term();
    assert_eq!(first.run(async { 7 }).await.expect("held"), 7);
    first.resign().await.expect("released");
    assert_eq!(leader(&here).await, None, "a leader that resigned is named no more");
    let second = there.campaign("").await.expect("free");
    assert!(second.term() > before);
    let seen = leader(&here).await.expect("it leads");
    assert_eq!((seen.term, seen.sequence, &seen.value[..]), (second.term(), 1, ""));
    second.resign().await.expect("released");
}

pub(crate) async fn a_term_that_was_broken_is_over(place: Place) {
    let (here, there) = (election(&place, "here").await, election(&place, "there").await);
    let operator = place.keeper().await;
    let first = here.campaign("first").await.expect("free");
    let broken = operator.break_lock(format!("election/{}", place.name), first.term()).await.expect("answered");
    assert!(broken.is_some(), "the term is the token of the lock");
    let second = there.campaign("second").await.expect("free");
    assert!(second.term() > first.term());
    let late = first.proclaim("late").await.expect_err("a later leader has been there");
    assert!(matches!(late.kind(), ErrorKind::Stale | ErrorKind::Lost), "{late}");
    assert_eq!(leader(&here).await.expect("it leads").value, "second");
    assert_eq!(first.resign().await.expect_err("it is over").kind(), ErrorKind::Lost);
    second.resign().await.expect("released");
}

pub(crate) async fn a_held_lock_without_a_proclamation_names_no_leader(place: Place) {
    let here = election(&place, "here").await;
    here.campaign("first").await.expect("free").resign().await.expect("released");
    // As a new leader between its grant and its first value.
    let keeper = place.keeper().await;
    let guard = keeper.lock(format!("election/{}", place.name)).acquire().await.expect("free");
    assert_eq!(leader(&here).await, None, "the term in the register is over");
    guard.release().await.expect("released");
}

pub(crate) async fn bodies_take_turns_and_never_overlap(place: Place) {
    let busy = Arc::new(AtomicBool::new(false));
    let terms = Arc::new(Mutex::new(Vec::new()));
    let mut candidates = tokio::task::JoinSet::new();
    for label in ["a", "b", "c"] {
        let election = election(&place, label).await.value(label);
        let (busy, terms) = (busy.clone(), terms.clone());
        candidates.spawn(async move {
            let mut turns = 0;
            let body = |term: lockkeeper::recipes::election::Term| {
                turns += 1;
                let (busy, terms, after) = (&busy, &terms, if turns < 3 { After::Again } else { After::Stop });
                async move {
                    assert!(!busy.swap(true, Ordering::SeqCst), "two bodies at once");
                    term.proclaim(label).await.expect("it leads");
                    tokio::task::yield_now().await;
                    terms.lock().expect("no panic inside").push(term.number());
                    busy.store(false, Ordering::SeqCst);
                    after
                }
            };
            election.lead(body).await.expect("it leads in the end");
        });
    }
    tokio::time::timeout(PATIENCE, candidates.join_all()).await.expect("everyone leads three times");
    let terms = terms.lock().expect("no panic inside");
    assert_eq!(terms.len(), 9);
    assert!(terms.is_sorted_by(|a, b| a < b), "{terms:?}");
}

pub(crate) async fn another_candidate_wins_when_a_leader_steps_down(place: Place) {
    // A leader waits for its successor for a TTL at most; a busy machine needs some of it.
    let long = Duration::from_secs(30);
    let (here, there) = (election(&place, "here").await.ttl(long), election(&place, "there").await.ttl(long));
    let first = here.campaign("first").await.expect("free");
    let before = first.term();
    let other = tokio::spawn(async move { there.campaign("second").await });
    assert!(first.step_down().await.expect("answered"), "another candidate won");
    let second = other.await.expect("no panic").expect("won");
    assert!(second.term() > before);
    assert_eq!(leader(&here).await.map(|leader| leader.value), Some("second".into()));
    second.resign().await.expect("released");
}

pub(crate) async fn an_observer_tells_rising_terms_and_ends_with_the_latest(place: Place) {
    let (here, there) = (election(&place, "here").await, election(&place, "there").await);
    let mut observer = there.observe();
    let following = tokio::spawn(async move {
        let mut seen = Vec::new();
        loop {
            let leader = observer.next().await.expect("it goes on").expect("no error");
            seen.push((leader.term, leader.sequence));
            if leader.value == "the last" {
                return seen;
            }
        }
    });
    for term in 0..3 {
        let leadership = here.campaign(format!("term {term}")).await.expect("free");
        for value in 0..5 {
            leadership.proclaim(format!("term {term}, {value}")).await.expect("written");
        }
        leadership.resign().await.expect("released");
    }
    let last = here.campaign("nearly").await.expect("free");
    last.proclaim("the last").await.expect("written");
    let seen = tokio::time::timeout(PATIENCE, following).await.expect("it is seen").expect("no panic");
    assert_eq!(seen.last(), Some(&(last.term(), 2)));
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    last.resign().await.expect("released");
}

pub(crate) async fn the_blocking_face_leads(place: Place) {
    let keeper = lockkeeper::blocking::Keeper::from(place.keeper().await);
    let election = keeper.election(&place.name).value("blocking").look_every(Duration::from_millis(20));
    let mut terms = Vec::new();
    let lead = move || {
        let led = election.lead(|term| {
            term.check().expect("it leads");
            let leader = election.leader().expect("answered").expect("it has proclaimed itself");
            assert_eq!((leader.term, &leader.value[..]), (term.number(), "blocking"));
            let observed = election.observe().next().expect("it goes on").expect("no error");
            assert_eq!(observed, leader);
            terms.push(term.number());
            if terms.len() < 3 { After::Again } else { After::Stop }
        });
        led.expect("no error");
        assert!(terms.is_sorted_by(|a, b| a < b), "{terms:?}");
        assert_eq!(election.leader().expect("answered"), None);
    };
    tokio::task::spawn_blocking(lead).await.expect("no panic");
}
