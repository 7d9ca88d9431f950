//! What `tend` tells of hand-overs. Events are hints and may be lost, so a case listens to several.

use super::Subject;
use super::kit::{Hand, drift, fresh_name, heard, inspected, long, one, open, sleep_until};
use crate::clock::{Stamp, system_now};
use crate::store::{Event, Grant, Store, StoreInfo};
use crate::testing::Listener;
use crate::{HolderId, LockName};
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How soon a hint should come: generous, a push takes milliseconds.
const SOON: Duration = Duration::from_secs(5);

/// How many hand-overs a case listens to before it decides that hints do not come.
const ROUNDS: usize = 3;

/// The waiter's keeper hears of a hand-over within seconds, and other keepers hear nothing of that grant.
pub async fn a_hand_over_is_pushed_to_its_keeper(subject: &dyn Subject) {
    let (info, [a, b, c]) = open(subject).await;
    let (mut right, mut wrong) = (Ears::of(&b), Ears::of(&c));
    let mut heard = false;
    for _ in 0..ROUNDS {
        let (mut holder, mut waiter) = one_waits(&info, [&a, &b]).await;
        holder.end().await;
        heard = match right.hear(&waiter.claim.name, waiter.claim.holder).await {
            Some(Heard::Grant(pushed)) => {
                assert_eq!(waiter.picks_up().await.token, pushed.token, "the grant that was told");
                true
            }
            Some(Heard::Wake) => {
                waiter.picks_up().await;
                true
            }
            None => false,
        };
        waiter.end().await;
        assert!(!wrong.overheard(waiter.claim.holder), "another keeper was told of the grant");
        if heard {
            break;
        }
    }
    assert!(heard, "no hint of {ROUNDS} hand-overs");
}

/// A waiter that was kept alive through another keeper's instance is told there: where it was last heard of.
pub async fn a_waiter_is_told_where_it_last_asked(subject: &dyn Subject) {
    let (info, [a, b, c]) = open(subject).await;
    let (mut early, mut late) = (Ears::of(&b), Ears::of(&c));
    let mut heard = false;
    for _ in 0..ROUNDS {
        let (mut holder, mut waiter) = one_waits(&info, [&a, &b]).await;
        waiter.store = c.clone();
        waiter.waits().await;
        holder.end().await;
        heard = late.hear(&waiter.claim.name, waiter.claim.holder).await.is_some();
        waiter.picks_up().await;
        waiter.end().await;
        assert!(!early.overheard(waiter.claim.holder), "the grant was told where the waiter no longer asks");
        if heard {
            break;
        }
    }
    assert!(heard, "no hint of {ROUNDS} hand-overs");
}

/// A pushed grant counts from the stamp of the waiter's latest call, for the life of its place at most.
pub async fn a_pushed_grant_echoes_the_latest_stamp(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let mut ears = Ears::of(&b);
    for keep_alives in [0, 1, 2] {
        let (mut holder, mut waiter) = one_waits(&info, [&a, &b]).await;
        for _ in 0..keep_alives {
            waiter.waits().await;
        }
        holder.end().await;
        if let Some(Heard::Grant(grant)) = ears.hear(&waiter.claim.name, waiter.claim.holder).await {
            assert_eq!(grant.stamp, waiter.claim.stamp, "after {keep_alives} keep-alives");
            assert!(grant.lease <= waiter.claim.waiter_lease(), "a lease of {:?}", grant.lease);
        }
        waiter.end().await;
    }
}

/// The store keeps a pushed lease to the end it told, also when the release that caused it came late.
pub async fn a_pushed_lease_is_kept_to_its_end(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let mut ears = Ears::of(&b);
    let (holder, mut waiter) = one_waits(&info, [&a, &b]).await;
    // Longer than the allowance for clocks, so that a lease counted from the old stamp shows.
    sleep_until(holder.claim.stamp.after(drift(waiter.claim.waiter_lease()) * 3)).await;
    waiter.waits().await;
    // Stamped right after the grant, delivered now.
    heard("release", || async { one(a.release(from_ref(&holder.claim)).await) }).await;
    if let Some(Heard::Grant(grant)) = ears.hear(&waiter.claim.name, waiter.claim.holder).await {
        let record = inspected(&a, &waiter.claim.name).await.expect("held");
        let told: Stamp = grant.stamp.after(grant.lease);
        if let Some(left) = record.holders[0].remaining {
            let kept = system_now().after(left).after(drift(grant.lease));
            assert!(kept >= told, "the lease ends {:?} before the time that was told", told.since(kept));
        }
    }
    waiter.end().await;
}

/// A held lock of the first keeper and one waiter of the second.
async fn one_waits(info: &StoreInfo, [a, b]: [&Arc<dyn Store>; 2]) -> (Hand, Hand) {
    let name = fresh_name("push");
    let (mut holder, mut waiter) = (Hand::new(a, &name, long(info)), Hand::new(b, &name, long(info)).queued());
    holder.acquire().await;
    waiter.refused().await;
    (holder, waiter)
}

enum Heard {
    Grant(Grant),
    Wake,
}

/// Listens to one keeper's events from the moment it is made.
struct Ears {
    events: mpsc::UnboundedReceiver<Event>,
    task: JoinHandle<()>,
}

impl Ears {
    fn of(store: &Arc<dyn Store>) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let store = store.clone();
        let task = tokio::spawn(async move {
            let mut listener = Listener::of(&*store);
            while sender.send(listener.next().await).is_ok() {}
        });
        Self { events, task }
    }

    /// The next hint for this waiter, if one comes soon.
    async fn hear(&mut self, name: &LockName, holder: HolderId) -> Option<Heard> {
        let hear = async {
            loop {
                match self.events.recv().await? {
                    Event::Granted(id, grant) if id == holder => return Some(Heard::Grant(grant)),
                    Event::Wake(woken) if woken == *name => return Some(Heard::Wake),
                    _ => {}
                }
            }
        };
        tokio::time::timeout(SOON, hear).await.ok().flatten()
    }

    /// Whether a grant of this holder was told here so far.
    fn overheard(&mut self, holder: HolderId) -> bool {
        std::iter::from_fn(|| self.events.try_recv().ok()).any(|e| matches!(e, Event::Granted(id, _) if id == holder))
    }
}

impl Drop for Ears {
    fn drop(&mut self) {
        self.task.abort();
    }
}
