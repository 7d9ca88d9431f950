//! What operators see and do: listing, inspecting, breaking.

use super::Subject;
use super::kit::{Hand, answers, broken, fresh_name, heard, inspected, listed, long, name, nonce, open, token};
use crate::store::{Attempt, Break, Claim, LossReason, Mode, Note, Record, Store};
use crate::{LockName, Token};
use std::collections::BTreeSet;
use std::sync::Arc;

/// All locks under a prefix, over all pages; no lock twice.
async fn list_all(store: &Arc<dyn Store>, prefix: &[u8]) -> BTreeSet<LockName> {
    let (mut seen, mut cursor) = (BTreeSet::new(), None);
    loop {
        let page = listed(store, prefix, cursor.as_ref()).await;
        for record in page.records {
            assert!(record.name.as_bytes().starts_with(prefix), "{:?} is not under the prefix", record.name);
            assert!(seen.insert(record.name.clone()), "{:?} was listed twice", record.name);
        }
        let Some(next) = page.next else { return seen };
        assert_ne!(Some(&next), cursor.as_ref(), "the listing goes on");
        cursor = Some(next);
    }
}

async fn inspect(store: &Arc<dyn Store>, name: &LockName) -> Record {
    inspected(store, name).await.unwrap_or_else(|| panic!("{name:?} is in use"))
}

async fn take(store: &Arc<dyn Store>, names: &BTreeSet<LockName>) -> Vec<Claim> {
    let ttl = long(&store.info());
    let claims: Vec<Claim> = names.iter().map(|name| Hand::new(store, name, ttl).claim).collect();
    for batch in claims.chunks(50) {
        let answers = answers(|| store.try_acquire(batch)).await;
        assert!(answers.iter().all(|answer| matches!(answer, Ok(Attempt::Granted(_)))), "{answers:?}");
    }
    claims
}

/// 250 locks are listed over all pages, each exactly once, and none that is not under the prefix.
pub async fn list_pages_show_each_lock_once(subject: &dyn Subject) {
    let (_, [a, b]) = open(subject).await;
    let base = format!("conformance/list/{}", nonce()).into_bytes();
    // The end of a range of bytes is computed; 0xff is where that goes wrong.
    let prefix = [&base[..], b"\xff\xff"].concat();
    let wanted: BTreeSet<LockName> =
        (0..250).map(|i| name([&prefix[..], format!("{i}").as_bytes()].concat())).collect();
    let others = [&b"\xff\xfe"[..], b"\xff", b"\x00", b"\xffa"].map(|end| name([&base[..], end].concat()));
    let all: BTreeSet<LockName> = wanted.iter().cloned().chain(others).collect();
    let claims = take(&a, &all).await;
    assert_eq!(list_all(&b, &prefix).await, wanted);
    assert_eq!(list_all(&b, &base).await, all);
    for batch in claims.chunks(50) {
        a.release(batch).await;
    }
    assert_eq!(list_all(&b, &base).await, BTreeSet::new(), "free locks are not listed");
}

/// A prefix is compared byte by byte: no character in it is a wildcard.
pub async fn a_prefix_is_bytes_not_a_pattern(subject: &dyn Subject) {
    let (_, [a, b]) = open(subject).await;
    let base = format!("conformance/prefix/{}/", nonce());
    let ends = ["*", "?", "[a]", "%", "_", "\\", "a", "A", "a/b", "'", "\u{e9}", "e\u{301}", "e"];
    let name = |end: &str| name(format!("{base}{end}"));
    let claims = take(&a, &ends.map(name).into()).await;
    for end in ends {
        let expected = ends.into_iter().filter(|e| e.starts_with(end)).map(name).collect();
        assert_eq!(list_all(&b, format!("{base}{end}").as_bytes()).await, expected, "under {end}");
    }
    assert_eq!(list_all(&b, "e\u{301}x".as_bytes()).await, BTreeSet::new());
    a.release(&claims).await;
}

/// The empty prefix lists every lock there is.
pub async fn the_empty_prefix_lists_everything(subject: &dyn Subject) {
    let (_, [a, b]) = open(subject).await;
    let names: BTreeSet<LockName> = [fresh_name("all"), name([b"\xff\xff", nonce().as_bytes()].concat())].into();
    let claims = take(&a, &names).await;
    // Locks of other cases come and go meanwhile, so only ours are looked for, and none of them twice.
    let mut ours = Vec::new();
    let mut cursor = None;
    loop {
        let page = listed(&b, b"", cursor.as_ref()).await;
        ours.extend(page.records.into_iter().map(|r| r.name).filter(|name| names.contains(name)));
        let Some(next) = page.next else { break };
        cursor = Some(next);
    }
    assert_eq!(ours.len(), 2);
    assert_eq!(BTreeSet::from_iter(ours), names);
    a.release(&claims).await;
}

/// `inspect` shows who holds, how, with which token and how long at most; `None` for a free lock.
pub async fn inspect_shows_the_holder(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("inspect");
    assert_eq!(inspected(&b, &name).await, None);
    let mut holder = Hand::new(&a, &name, long(&info)).label("a label");
    let grant = holder.acquire().await;
    let record = inspect(&b, &name).await;
    assert_eq!((&record.name, record.holders.len(), record.waiting), (&name, 1, 0));
    let shown = &record.holders[0];
    assert_eq!(shown.mode, Mode::Exclusive);
    assert_eq!(shown.note, Some(Note::new("host", 1, "a label")));
    assert_eq!(shown.token, Some(grant.token));
    assert!(shown.remaining.is_none_or(|left| left <= long(&info) + info.hand_over_slack), "{:?}", shown.remaining);
    holder.end().await;
    assert_eq!(inspected(&b, &name).await, None);
}

/// `inspect` shows all that hold together, oldest first.
pub async fn inspect_shows_every_holder(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("holders");
    let mut hands: Vec<Hand> = (0..3)
        .map(|i| Hand::new([&a, &b][i % 2], &name, long(&info)).mode(Mode::Shared).label(format!("reader {i}")))
        .collect();
    for hand in &mut hands {
        hand.acquire().await;
    }
    let record = inspect(&b, &name).await;
    let shown: Vec<_> = record.holders.iter().map(|h| (h.mode, h.note.clone().map(|note| note.label))).collect();
    let expected: Vec<_> = (0..3).map(|i| (Mode::Shared, Some(format!("reader {i}")))).collect();
    assert_eq!(shown, expected);
    for hand in &mut hands {
        hand.end().await;
    }
}

/// `inspect` shows who waits, first in line first; `list` counts them.
pub async fn inspect_shows_the_waiters_in_order(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("waiters");
    let mut hands: Vec<Hand> =
        (0..4).map(|i| Hand::new([&a, &b][i % 2], &name, long(&info)).queued().label(format!("claim {i}"))).collect();
    hands[0].acquire().await;
    for hand in &mut hands[1..] {
        hand.refused().await;
    }
    let record = inspect(&b, &name).await;
    let shown: Vec<_> = record.waiters.iter().map(|w| (w.mode, w.note.clone().map(|note| note.label))).collect();
    let expected: Vec<_> = (1..4).map(|i| (Mode::Exclusive, Some(format!("claim {i}")))).collect();
    assert_eq!((shown, record.waiting), (expected, 3));
    let page = listed(&b, name.as_bytes(), None).await;
    assert_eq!(page.records.first().map(|r| (r.name.clone(), r.waiting)), Some((name, 3)));
    for hand in hands.iter_mut().rev() {
        hand.end().await;
    }
}

/// Labels and host names come back exactly as they were given.
pub async fn notes_come_back_exact(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let longest = "x".repeat(Note::MAX_LABEL);
    for label in ["", " ", "a\nb\r\0c", "'\"`;--", "{\"a\":1}", "%s %2F", "\u{1f512} e\u{301}", "a|b,c:d=e", &longest] {
        let name = fresh_name("notes");
        let mut hand = Hand::new(&a, &name, long(&info));
        let note = Note::new(format!("host {label}"), u32::MAX, label);
        hand.claim.note = Arc::new(note.clone());
        hand.acquire().await;
        assert_eq!(inspect(&b, &name).await.holders[0].note, Some(note.clone()));
        assert_eq!(Hand::new(&b, &name, long(&info)).refused().await.holder, Some(note));
        hand.end().await;
    }
}

/// A lock is broken only for the token that its holder has now.
pub async fn break_needs_the_right_token(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("break");
    let not_held = async |token| {
        let (answer, _) = heard("break", || b.break_lock(&name, token)).await;
        assert_eq!(answer, Break::NotHeld, "by {token}");
    };
    not_held(token(1)).await;
    let mut earlier = Hand::new(&a, &name, long(&info));
    let old = earlier.acquire().await.token;
    earlier.end().await;
    not_held(old).await;
    let mut holder = Hand::new(&a, &name, long(&info));
    let held = holder.acquire().await.token;
    for wrong in [old, token(1), token(held.get() + 1), Token::MAX] {
        not_held(wrong).await;
    }
    holder.kept().await;
    broken(&b, &name, held).await;
    not_held(held).await;
    Hand::new(&b, &name, long(&info)).acquire().await;
}

/// A broken lock goes to the first in line, with a token above the one that the break drew. Every further waiter gets a
/// higher one, also one that joined after the break while earlier waiters still stood in line.
pub async fn break_hands_over(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("break-queue");
    let hand = |store| Hand::new(store, &name, long(&info)).queued();
    let (mut holder, mut head, mut second, mut late) = (hand(&a), hand(&b), hand(&a), hand(&b));
    let held = holder.acquire().await.token;
    head.refused().await;
    second.refused().await;
    let above = broken(&b, &name, held).await;
    late.refused().await;
    second.waits().await;
    let mut tokens = vec![above];
    for waiter in [&mut head, &mut second, &mut late] {
        tokens.push(waiter.picks_up().await.token);
        waiter.end().await;
    }
    // And for a claim that finds the lock free.
    tokens.push(hand(&a).acquire().await.token);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

/// A holder whose lock was broken learns of it with its next renewal.
pub async fn a_broken_holder_is_told(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("told");
    let mut holder = Hand::new(&a, &name, long(&info));
    let held = holder.acquire().await.token;
    broken(&b, &name, held).await;
    let reason = holder.lost().await;
    let known = [LossReason::Broken, LossReason::Gone, LossReason::SessionEnded].contains(&reason);
    assert!(known, "broken, not {reason}");
    Hand::new(&b, &name, long(&info)).acquire().await;
}

/// A holder whose lock was broken can neither release nor take back what went to the next.
pub async fn a_broken_holder_harms_nobody(subject: &dyn Subject) {
    let (info, [a, b, c]) = open(subject).await;
    let name = fresh_name("harmless");
    let mut holder = Hand::new(&a, &name, long(&info));
    let held = holder.acquire().await.token;
    broken(&c, &name, held).await;
    let mut next = Hand::new(&b, &name, long(&info));
    let grant = next.acquire().await;
    let again = holder.attempt().await;
    assert!(!matches!(again, Attempt::Granted(_)), "{again:?}");
    holder.ends_nothing().await;
    holder.lost().await;
    next.kept().await;
    assert_eq!(next.acquire().await.token, grant.token);
    next.end().await;
}
