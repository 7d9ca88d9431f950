//! Calls whose futures are dropped half-way: whatever the server made of them, the claim can be ended and the lock
//! goes on.

use super::Subject;
use super::kit::{Hand, fresh_name, long, open};
use crate::clock::system_now;
use crate::store::{Attempt, Release, Renewal};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::slice::from_ref;
use std::task::Poll;
use std::time::Duration;

/// More polls than a call of any store needs; a call that is finished earlier ends the loop.
const POLLS: usize = 24;

/// How long a claim that was dropped and released may still be in the way: far less than its TTL.
const SETTLES: Duration = Duration::from_secs(10);

/// An acquire dropped after any number of polls, then released, leaves the lock free and never wins later.
pub async fn a_dropped_acquire_leaves_nothing(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    for polls in 0..=POLLS {
        let name = fresh_name("dropped");
        let mut gone = Hand::new(&a, &name, long(&info)).unsettled();
        let finished = cut_short(a.try_acquire(from_ref(&gone.claim)), polls).await.is_some();
        let released = gone.release().await;
        let mut next = Hand::new(&b, &name, long(&info));
        next.wins(SETTLES).await;
        if released == Release::NotHeld && info.expiry != crate::store::Expiry::Session {
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

/// The registration of a waiter dropped after any number of polls, then released, keeps nobody behind it waiting.
pub async fn a_dropped_wait_leaves_nothing(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
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
        // Shorter than the life of a dead waiter's place, which would hide a dropped one that stayed.
        next.is_let_in(gone.claim.waiter_lease() / 2).await;
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
        let again = holder.release().await;
        assert!(!finished || again == Release::NotHeld, "released twice");
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
