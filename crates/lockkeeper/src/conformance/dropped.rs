//! Calls whose futures are dropped half-way, or which arrive late. Whether or not the server carried them out, the
//! claim can be ended and the lock can be taken again.

use super::Subject;
use super::kit::{Hand, Tended, eventually, fresh_name, long, open};
use crate::clock::system_now;
use crate::store::{Attempt, Expiry, Release, Renewal};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::slice::from_ref;
use std::task::Poll;
use std::time::Duration;

/// More polls than a call of any store needs; a call that is finished earlier ends the loop.
const POLLS: usize = 24;

/// How long a claim that was dropped and released may still block others: far less than its TTL.
const SETTLES: Duration = Duration::from_secs(10);

/// How long a call may take that is held up at one of several servers: the others decide it, and the store cleans up.
const DECIDED: Duration = Duration::from_millis(500);

/// An acquire dropped after any number of polls, then released, leaves the lock free and never wins later.
pub async fn a_dropped_acquire_leaves_nothing(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    // What arrives after its release is swept by the keeper's thread, where a session carries the claims.
    let _tended = Tended::new(&a);
    for polls in 0..=POLLS {
        let name = fresh_name("dropped");
        let mut gone = Hand::new(&a, &name, long(&info)).unsettled();
        let finished = cut_short(a.try_acquire(from_ref(&gone.claim)), polls).await.is_some();
        let released = gone.release().await;
        let mut next = Hand::new(&b, &name, long(&info));
        next.wins(SETTLES).await;
        if released == Release::NotHeld && info.expiry != Expiry::Session {
            assert_eq!(gone.attempt().await, Attempt::Cancelled, "dropped after {polls} polls");
        }
        next.kept().await;
        next.end().await;
        gone.lost().await;
        Hand::new(&b, &name, long(&info)).acquire().await;
        if finished {
            return;
        }
    }
}

/// A waiter's registration that is dropped after any number of polls, then released, blocks no waiter behind it.
pub async fn a_dropped_wait_leaves_nothing(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    // What arrives after its release is swept by the keeper's thread, where a session carries the claims.
    let _tended = Tended::new(&a);
    for polls in 0..=POLLS {
        let name = fresh_name("dropped");
        let mut holder = Hand::new(&b, &name, long(&info));
        holder.acquire().await;
        let mut gone = Hand::new(&a, &name, long(&info)).queued().unsettled();
        let finished = cut_short(a.try_acquire(from_ref(&gone.claim)), polls).await.is_some();
        gone.release().await;
        let mut next = Hand::new(&b, &name, long(&info)).queued();
        next.refused().await;
        holder.end().await;
        // Shorter than the life of a dead waiter's place, which would hide a dropped one that stayed: its lease, or the session.
        let stays = if info.expiry == Expiry::Session {
            info.worst_hand_over(gone.claim.ttl)
        } else {
            gone.claim.waiter_lease()
        };
        next.is_let_in(SETTLES.min(stays / 2)).await;
        gone.lost().await;
        next.end().await;
        if finished {
            return;
        }
    }
}

/// A renewal dropped after any number of polls can be sent again, and the claim still holds.
pub async fn a_dropped_renewal_can_be_repeated(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("dropped");
    let mut holder = Hand::new(&a, &name, long(&info));
    let grant = holder.acquire().await;
    for polls in 0..=POLLS {
        holder.claim.stamp = system_now();
        let answer = cut_short(a.renew(from_ref(&holder.claim)), polls).await;
        holder.kept().await;
        Hand::new(&b, &name, long(&info)).refused().await;
        if let Some(answer) = answer {
            assert!(matches!(answer[..], [Ok(Renewal::Renewed(_))]), "{answer:?}");
            break;
        }
    }
    assert_eq!(holder.acquire().await.token, grant.token);
    holder.end().await;
}

/// A release dropped after any number of polls can be sent again, and the lock is free then.
pub async fn a_dropped_release_can_be_repeated(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    for polls in 0..=POLLS {
        let name = fresh_name("dropped");
        let mut holder = Hand::new(&a, &name, long(&info));
        holder.acquire().await;
        let finished = cut_short(a.release(from_ref(&holder.claim)), polls).await.is_some();
        if finished {
            holder.ends_nothing().await;
        } else {
            holder.release().await;
        }
        let mut next = Hand::new(&b, &name, long(&info));
        next.acquire().await;
        holder.ends_nothing().await;
        next.kept().await;
        next.end().await;
        if finished {
            return;
        }
    }
}

/// The first call of a claim, and the store's messages to clean it up, arrive after a repeat was granted over another
/// connection. The repeat keeps its grant.
pub async fn a_late_first_call_takes_nothing_from_its_repeat(subject: &dyn Subject) {
    let (info, [other]) = open(subject).await;
    let Some(detour) = subject.detour() else { unreachable!("the case is skipped") };
    let detour = detour.await;
    for dropped in [true, false] {
        // The connection is there before anything is held up.
        let mut warm = Hand::new(&detour.late, &fresh_name("warm"), long(&info));
        warm.acquire().await;
        warm.end().await;
        let name = fresh_name("overtaken");
        let mut before = Hand::new(&other, &name, long(&info));
        before.acquire().await;

        let mut repeat = Hand::new(&detour.prompt, &name, long(&info)).unsettled();
        detour.way.hold();
        let (late, claim) = (detour.late.clone(), repeat.claim.clone());
        let mut first = tokio::spawn(async move { late.try_acquire(from_ref(&claim)).await.pop() });
        eventually("the first call is on its way", SETTLES, async || detour.way.holds().then_some(())).await;
        let mut answer = tokio::time::timeout(DECIDED, &mut first).await.ok();
        if dropped && answer.is_none() {
            first.abort();
        }

        before.end().await;
        let granted = repeat.wins(SETTLES).await;
        tokio::time::timeout(SETTLES, detour.way.deliver()).await.expect("what was held up is delivered");
        if !dropped && answer.is_none() {
            answer = tokio::time::timeout(SETTLES, first).await.ok();
        }
        if let Some(Ok(Some(Ok(Attempt::Granted(late))))) = answer {
            assert_eq!(late.token, granted.token, "the late call is answered with another grant");
        }
        // On this connection the call is answered after all held-up calls; its answer does not matter here.
        let _ = tokio::time::timeout(SETTLES, detour.late.inspect(&name)).await;
        repeat.kept().await;
        Hand::new(&other, &name, long(&info)).refused().await;
        repeat.kept().await;
        repeat.end().await;
        let mut next = Hand::new(&other, &name, long(&info));
        next.wins(SETTLES).await;
        next.end().await;
    }
}

/// Polls `call` at most so many times, then drops it.
async fn cut_short<T>(call: impl Future<Output = T>, mut polls: usize) -> Option<T> {
    let mut call = pin!(call);
    poll_fn(|cx| {
        if polls == 0 {
            return Poll::Ready(None);
        }
        polls -= 1;
        match call.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
