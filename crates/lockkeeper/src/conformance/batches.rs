//! Many claims in one call: one answer each, in order, each on its own.

use super::kit::{Hand, answers, fresh_name, long, name, open};
use super::{Subject, kit};
use crate::clock::system_now;
use crate::store::{Attempt, Claim, Mode, Release, Renewal, Store, StoreInfo};
use crate::{ErrorKind, HolderId, LockName};
use std::collections::HashSet;
use std::sync::Arc;

/// Fifty claims in one call are answered one by one, in order, and each holds for itself.
pub async fn fifty_claims_in_one_call(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let names = sorted_names(50);
    let first = claims(&a, &info, &names[..]);
    let answers = answers(|| a.try_acquire(&first)).await;
    assert_eq!(answers.len(), 50);
    for (claim, answer) in first.iter().zip(&answers) {
        assert!(matches!(answer, Ok(Attempt::Granted(g)) if g.stamp == claim.stamp), "{claim:?}: {answer:?}");
    }
    // Every second of them is released; another keeper then gets exactly those.
    let some: Vec<Claim> = first.iter().step_by(2).cloned().collect();
    assert!(a.release(&some).await.into_iter().all(|answer| answer.ok() == Some(Release::Released)));
    let second = claims(&b, &info, &names[..]);
    for (i, answer) in kit::answers(|| b.try_acquire(&second)).await.into_iter().enumerate() {
        let answer = answer.expect("answered");
        assert_eq!(matches!(answer, Attempt::Granted(_)), i % 2 == 0, "entry {i}: {answer:?}");
    }
    assert_eq!(a.release(&first).await.len(), 50);
    assert_eq!(b.release(&second).await.len(), 50);
}

/// In a batch of renewals the one that was lost says so, and the others are renewed.
pub async fn one_lost_among_many(subject: &dyn Subject) {
    let (info, [a]) = open(subject).await;
    let mut held = claims(&a, &info, &sorted_names(30));
    assert_eq!(answers(|| a.try_acquire(&held)).await.len(), 30);
    let lost: HashSet<HolderId> = [0, 13, 29].map(|i| held[i].holder).into();
    let gone: Vec<Claim> = held.iter().filter(|c| lost.contains(&c.holder)).cloned().collect();
    assert_eq!(a.release(&gone).await.len(), 3);
    for claim in &mut held {
        claim.stamp = system_now();
    }
    let answers = answers(|| a.renew(&held)).await;
    assert_eq!(answers.len(), 30);
    for (claim, answer) in held.iter().zip(answers) {
        match answer.expect("answered") {
            Renewal::Renewed(_) if !lost.contains(&claim.holder) => {}
            Renewal::Lost(_) if lost.contains(&claim.holder) => {}
            other => panic!("{claim:?}: {other:?}"),
        }
    }
    a.release(&held).await;
}

/// Holders of different TTLs and a waiter renewed in one call: each is answered for what it is.
pub async fn a_waiter_among_many_renewals(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let names = sorted_names(24);
    let mut batch = claims(&a, &info, &names);
    for claim in batch.iter_mut().step_by(3) {
        claim.ttl = (claim.ttl * 2).min(info.ttl_ceiling);
    }
    let mut other = Hand::new(&b, &names[11], long(&info));
    other.acquire().await;
    batch[11].queue = true;
    assert_eq!(answers(|| a.try_acquire(&batch)).await.len(), 24);
    for claim in &mut batch {
        claim.stamp = system_now();
    }
    let renewed = answers(|| a.renew(&batch)).await;
    for (i, (claim, answer)) in batch.iter().zip(renewed).enumerate() {
        match answer.expect("answered") {
            Renewal::Renewed(lease) if i != 11 => assert!(lease <= claim.ttl, "entry {i}: {lease:?}"),
            Renewal::Waiting(_) if i == 11 => {}
            answer => panic!("entry {i}: {answer:?}"),
        }
    }
    other.end().await;
    a.release(&batch).await;
}

/// In a batch of releases each entry says whether there was something to end.
pub async fn releases_are_answered_one_by_one(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let names = sorted_names(20);
    let (mine, theirs) = (claims(&a, &info, &names), claims(&b, &info, &names));
    assert_eq!(kit::answers(|| a.try_acquire(&mine)).await.len(), 20);
    let mixed: Vec<Claim> = (0..20).map(|i| if i % 3 == 0 { &theirs[i] } else { &mine[i] }.clone()).collect();
    let answers: Vec<Release> = a.release(&mixed).await.into_iter().map(|r| r.expect("answered")).collect();
    for (i, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer == Release::NotHeld, i % 3 == 0, "entry {i}");
    }
    for (i, answer) in kit::answers(|| b.try_acquire(&theirs)).await.into_iter().enumerate() {
        let free = matches!(answer.expect("answered"), Attempt::Granted(_));
        assert_eq!(free, i % 3 != 0, "entry {i}");
    }
    a.release(&mine).await;
    b.release(&theirs).await;
}

/// An entry that is refused with an error spoils none of the others.
pub async fn an_error_stays_with_its_entry(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let names = sorted_names(9);
    let mut holder = Hand::new(&a, &names[4], long(&info)).mode(Mode::Permit { limit: 2 });
    holder.acquire().await;
    let mut batch = claims(&b, &info, &names);
    batch[4].mode = Mode::Permit { limit: 3 };
    batch[6].mode = Mode::Permit { limit: 3 };
    for (i, answer) in answers(|| b.try_acquire(&batch)).await.into_iter().enumerate() {
        match answer {
            Ok(Attempt::Granted(_)) if i != 4 => {}
            Err(e) if i == 4 => assert_eq!(e.kind(), ErrorKind::InvalidConfig),
            other => panic!("entry {i}: {other:?}"),
        }
    }
    for (i, answer) in b.release(&batch).await.into_iter().enumerate() {
        assert_eq!(answer.expect("answered") == Release::NotHeld, i == 4, "entry {i}");
    }
    holder.kept().await;
    holder.end().await;
}

/// A call without entries is answered without any.
pub async fn an_empty_batch_is_answered(subject: &dyn Subject) {
    let (_, [a]) = open(subject).await;
    assert!(a.try_acquire(&[]).await.is_empty());
    assert!(a.renew(&[]).await.is_empty());
    assert!(a.release(&[]).await.is_empty());
}

/// Fresh names in the order a batch has.
fn sorted_names(count: usize) -> Vec<LockName> {
    let base = fresh_name("batch");
    (0..count).map(|i| name(format!("{base}/{i:03}"))).collect()
}

fn claims(store: &Arc<dyn Store>, info: &StoreInfo, names: &[LockName]) -> Vec<Claim> {
    names.iter().map(|name| Hand::new(store, name, long(info)).claim).collect()
}
