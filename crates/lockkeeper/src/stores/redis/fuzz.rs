//! Fuzz targets of the Redis store, and of Redlock, whose values are read by the same code.

use super::connect::Info;
use super::driver::call::{Call, Reply, apart};
use super::events::event;
use super::keys::{
    Keys, Notes, companion, companion_of, exclusive, parse_holder, parse_mode, parse_note, push_head, slot,
};
use super::layout::{PLAIN, name_of};
use super::options::Options;
use crate::clock::Stamp;
use crate::name::LockName;
use crate::store::{Claim, Mode, Note};
use crate::stores::shared::fuzz::urls;
use crate::token::HolderId;
use redis::{PushInfo, PushKind, Value};
use std::sync::Arc;
use std::time::Duration;

fn options(url: &str) -> crate::error::Result<Options> {
    let url = crate::url::parse(url)?;
    Options::parse(&url.scheme, &url.raw_place, &url.options)
}

#[test]
fn urls_are_read_and_keep_their_secrets() {
    urls("redis_urls", options);
}

/// The URL is cut at such a mark, and the error showed what came after it.
#[test]
fn a_password_with_a_mark_that_was_not_escaped_is_not_told() {
    for url in ["redis://u:p?geheim@h", "redis://u:5/geheim@h", "redis://u:p?geheim&geheim&@h"] {
        let error = options(url).unwrap_err();
        assert!(!format!("{error:?}").contains("geheim") && error.message().contains("password"), "{url}: {error}");
    }
}

#[test]
fn keys_share_a_slot_and_name_one_lock() {
    testkit::fuzz("names", |bytes| {
        let Ok(name) = LockName::new(bytes) else { return };
        for letter in *b"fqwrhx" {
            let key = companion(letter, bytes);
            assert_eq!(companion_of(letter, &key), Some(bytes), "read back");
            assert_eq!(slot(&key), slot(bytes), "in one slot");
            let _ = companion_of(letter, bytes);
        }
        if let Ok(keys) = Keys::of(&name) {
            assert_eq!(name_of(PLAIN, &keys.lock), Some(name));
            let _ = (keys.clone().declared(true, Some(HolderId::from_u128(7))), keys.declared(false, None));
        }
    });
}

#[test]
fn values_of_locks_are_read() {
    testkit::fuzz("redis_values", |bytes| {
        if let Some(info) = exclusive(bytes) {
            let _ = format!("{:?}", parse_holder(info, Mode::Exclusive, Some(Duration::MAX)));
            assert!(bytes.get(..36).is_some(), "operators of Redlock compare so much");
        }
        let text = String::from_utf8_lossy(bytes);
        let _ = format!("{:?} {:?}", parse_holder(&text, Mode::Shared, None), (parse_note(&text), parse_mode(&text)));
        // What we write ourselves is read back, whatever the note says.
        let note = Arc::new(Note::new(text.clone(), 7, text));
        let written = Notes::default().text(&note);
        assert_eq!(parse_note(&written).as_ref(), Some(&*note));
        let name = LockName::new("a").unwrap();
        let claim = Claim::new(name, HolderId::from_u128(7), Duration::from_secs(4), Stamp::default(), note.clone());
        let mut value = Vec::new();
        push_head(&mut value, &claim, &written);
        value.extend(b"17");
        let record = parse_holder(exclusive(&value).unwrap(), Mode::Exclusive, None);
        assert_eq!((record.token.map(|token| token.get()), record.note.as_ref()), (Some(17), Some(&*note)));
    });
}

/// A reply of a script from bytes: lists in lists of numbers and texts, divided by line feeds.
fn reply(bytes: &[u8]) -> Value {
    let mut lists = vec![Vec::new()];
    for line in bytes.split(|byte| *byte == b'\n') {
        let value = match line.split_first() {
            Some((b'[', _)) => {
                lists.push(Vec::new());
                continue;
            }
            Some((b']', _)) if lists.len() > 1 => Value::Array(lists.pop().unwrap_or_default()),
            Some((b'_', _)) => Value::Nil,
            Some((b'+', rest)) => Value::SimpleString(String::from_utf8_lossy(rest).into_owned()),
            Some((b'#', rest)) => Value::Int(String::from_utf8_lossy(rest).parse().unwrap_or(i64::MIN)),
            _ => Value::BulkString(line.to_vec()),
        };
        lists.last_mut().into_iter().for_each(|list| list.push(value.clone()));
    }
    Value::Array(lists.swap_remove(0))
}

#[test]
fn replies_of_scripts_are_read() {
    let options = options("redis://h").unwrap();
    testkit::fuzz("redis_replies", |bytes| {
        let value = reply(bytes);
        let name = LockName::new("a").unwrap();
        let mut claim =
            Claim::new(name.clone(), HolderId::from_u128(7), Duration::MAX, Stamp::default(), Arc::default());
        claim.mode = Mode::Permit { limit: 2 };
        if let Ok(reply) = Reply::read(value.clone()) {
            let _ = format!("{:?} {:?} {:?}", reply.code(), reply.token(1), reply.bytes(2));
            let _ = format!("{:?} {:?}", reply.number::<i64>(2, "x"), reply.number::<u32>(3, "x"));
            let _ = super::acquire::refused(&claim, &reply).to_string();
            let _ = format!("{:?}", super::operators::record(&name, &reply));
        }
        for calls in [1, 2, 5] {
            assert_eq!(apart(Ok(value.clone()), calls).len(), calls, "an answer for each call");
        }
        let info = Info::read(Value::BulkString(bytes.to_vec()));
        let _ = (info.too_old(), info.may_evict(), info.field("maxmemory"));
        let Value::Array(data) = value else { return };
        for kind in [PushKind::Message, PushKind::Invalidate] {
            let _ = event(&PushInfo { kind, data: data.clone() }, &options);
        }
        let message = PushInfo { kind: PushKind::Message, data: vec![Value::Nil, Value::BulkString(bytes.to_vec())] };
        let _ = event(&message, &options);
        let _ = Call::new([bytes]);
    });
}
