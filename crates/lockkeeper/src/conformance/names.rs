//! Names are bytes: different ones never exclude each other, equal ones always do, and each comes back exact.

use super::Subject;
use super::kit::{
    Hand, answers, fresh_holder, inspected, listed, long, name, nonce, open, patience, register_of, token,
};
use crate::register::{Entry, Pass, Written};
use crate::store::{Attempt, Claim, Store, StoreInfo};
use crate::{ErrorKind, LockName};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Endings that some store, driver, shell or person confuses with another, or takes for a command.
const HOSTILE: &[&[u8]] = &[
    b"",
    b"\0",
    b"\0\0",
    b"a",
    b"A",
    b"a ",
    b" a",
    b"a\t",
    b"a/",
    b"a/b",
    b"a//b",
    b"a/../b",
    b"a/./b",
    b"..",
    b"../..",
    b".",
    b"/",
    b"//",
    b"\\",
    b"a%2Fb",
    b"a%2fb",
    b"a%252Fb",
    b"a%00",
    b"{a}",
    b"a}b",
    b"{}x",
    b"{a}{b}",
    b"a\r\nb",
    b"a\nb",
    b"a\rb",
    b"'",
    b"''",
    b"\"",
    b"`",
    b"'; DROP TABLE locks; --",
    b"x' OR '1'='1",
    b"$1",
    b":name",
    b"?",
    b"*",
    b"[a-z]",
    b"[",
    b"%",
    b"_",
    b"a:b",
    b"a:b:c",
    b"#",
    b"&a=b",
    b"+",
    b"\xff",
    b"\xff\xff",
    b"\xfe",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xc0\x80",
    b"\x80",
    b"\x1b[2J",
    b"\x7f",
    "\u{e9}".as_bytes(),
    "e\u{301}".as_bytes(),
    "\u{df}".as_bytes(),
    "ss".as_bytes(),
    "\u{130}".as_bytes(),
    "i".as_bytes(),
    "I".as_bytes(),
    "\u{1f512}".as_bytes(),
    "\u{1f469}\u{200d}\u{1f4bb}".as_bytes(),
    "\u{202e}a".as_bytes(),
    "\u{feff}a".as_bytes(),
    b"0",
    b"00",
    b"1e3",
    b"null",
    b"true",
];

/// The hostile names of one run, sorted: every ending behind a fresh beginning, and long ones that differ at the end.
fn hostile() -> (Vec<u8>, Vec<LockName>) {
    let base = format!("conformance/names/{}/", nonce()).into_bytes();
    let mut names: Vec<LockName> = HOSTILE.iter().map(|end| name([&base[..], end].concat())).collect();
    for last in [b'x', b'y', b'\0', b'\xff'] {
        let mut long = base.clone();
        long.resize(LockName::MAX_LEN - 1, b'x');
        names.push(name([&long[..], &[last]].concat()));
        names.push(name(&long));
    }
    names.sort();
    names.dedup();
    (base, names)
}

/// One claim for each name, labelled with its number.
fn claims(store: &Arc<dyn Store>, info: &StoreInfo, names: &[LockName]) -> Vec<Claim> {
    let hand = |(i, name)| Hand::new(store, name, long(info)).label(format!("number {i}")).claim;
    names.iter().enumerate().map(hand).collect()
}

async fn take_all(store: &Arc<dyn Store>, claims: &[Claim]) {
    for (claim, answer) in claims.iter().zip(answers(|| store.try_acquire(claims)).await) {
        assert!(matches!(answer, Ok(Attempt::Granted(_))), "{:?} excludes another name: {answer:?}", claim.name);
    }
}

async fn free_all(store: &Arc<dyn Store>, claims: &[Claim]) {
    for (claim, answer) in claims.iter().zip(store.release(claims).await) {
        assert_eq!(answer.ok(), Some(crate::store::Release::Released), "{:?}", claim.name);
    }
}

/// A name has 1 to 512 bytes; anything else is refused before it reaches a store.
pub async fn lengths_are_checked(subject: &dyn Subject) {
    for wrong in [0, LockName::MAX_LEN + 1, 1 << 20] {
        assert_eq!(
            LockName::new(vec![b'x'; wrong]).map_err(|e| e.kind()),
            Err(ErrorKind::InvalidName),
            "{wrong} bytes"
        );
    }
    let (info, [a]) = open(subject).await;
    let mut longest = nonce().into_bytes();
    longest.resize(LockName::MAX_LEN, b'\xff');
    let mut hand = Hand::new(&a, &name(longest), long(&info));
    hand.acquire().await;
    hand.end().await;
}

/// Every hostile name can be held at once with all the others, in one batch and one by one.
pub async fn different_names_never_exclude_each_other(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let (_, names) = hostile();
    let batch = claims(&a, &info, &names);
    take_all(&a, &batch).await;
    free_all(&a, &batch).await;
    let mut hands: Vec<Hand> = names.iter().map(|name| Hand::new(&b, name, long(&info))).collect();
    for hand in &mut hands {
        hand.acquire().await;
    }
    for hand in &mut hands {
        hand.end().await;
    }
}

/// Every hostile name that is held is refused to another keeper, which is told the right holder.
pub async fn equal_names_always_exclude(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let (_, names) = hostile();
    let mine = claims(&a, &info, &names);
    take_all(&a, &mine).await;
    let theirs = claims(&b, &info, &names);
    for (i, answer) in answers(|| b.try_acquire(&theirs)).await.into_iter().enumerate() {
        match answer {
            Ok(Attempt::Held(held)) => {
                assert_eq!(held.holder.map(|note| note.label), Some(format!("number {i}")), "{:?}", names[i]);
            }
            other => panic!("{:?} is held, but {other:?}", names[i]),
        }
    }
    free_all(&a, &mine).await;
}

/// `inspect` and `list` show every hostile name exactly as it was given.
pub async fn names_come_back_exact(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let (base, names) = hostile();
    let mine = claims(&a, &info, &names);
    take_all(&a, &mine).await;
    let mut seen: BTreeMap<LockName, usize> = BTreeMap::new();
    let mut cursor = None;
    loop {
        let page = listed(&b, &base, cursor.as_ref()).await;
        for record in page.records {
            *seen.entry(record.name).or_default() += 1;
        }
        let Some(next) = page.next else { break };
        cursor = Some(next);
    }
    let expected: BTreeMap<LockName, usize> = names.iter().map(|name| (name.clone(), 1)).collect();
    assert_eq!(seen, expected, "each name once");
    for (i, name) in names.iter().enumerate() {
        let record = inspected(&b, name).await.unwrap_or_else(|| panic!("{name:?} is held"));
        let label = record.holders.first().and_then(|h| h.note.clone()).map(|note| note.label);
        assert_eq!((&record.name, label), (name, Some(format!("number {i}"))));
    }
    free_all(&a, &mine).await;
}

/// Names of one byte work like any other. They cannot be fresh, so another run may hold one for a while.
pub async fn the_shortest_names_work(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    for byte in [b"\0", b".", b"/", b"*", b"%", b"'", b"\xff"] {
        let mut hand = Hand::new(&a, &name(byte), long(&info));
        hand.wins(patience(&info, long(&info))).await;
        Hand::new(&b, &name(byte), long(&info)).refused().await;
        assert_eq!(inspected(&b, &name(byte)).await.map(|r| r.name), Some(name(byte)));
        hand.end().await;
    }
}

/// Register keys are kept apart like lock names.
pub async fn registers_keep_names_apart(subject: &dyn Subject) {
    let (_, [a, b]) = open(subject).await;
    let (_, names) = hostile();
    let pass = |name: &LockName| Pass::new(name.clone(), token(7), fresh_holder());
    for (i, name) in names.iter().enumerate() {
        let (value, pass) = (format!("number {i}"), pass(name));
        assert_eq!(register_of(&a).enter(name, &pass).await.ok(), Some(Entry::Entered(None)), "{name:?} is another's");
        let ttl = Some(std::time::Duration::from_secs(60));
        assert_eq!(register_of(&a).write(name, &pass, value.as_bytes(), ttl).await.ok(), Some(Written::Written));
    }
    for (i, name) in names.iter().enumerate() {
        let value = register_of(&b).read(name).await.expect("read");
        assert_eq!(value, Some(format!("number {i}").into_bytes()), "{name:?}");
    }
}
