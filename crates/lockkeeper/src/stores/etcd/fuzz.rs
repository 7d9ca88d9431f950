//! Fuzz targets of the etcd store.

use super::entry::{Entry, holders, note_text};
use super::keys::{self, Keys, Names, base_of, decode, encode, fence, is_ours, name_of, ranges, tomb, tomb_of};
use super::options::Options;
use super::proto::{Authenticated, KeyValue, LeaseAnswer, RangeAnswer, TxnAnswer, WatchAnswer};
use super::registers;
use crate::clock::Stamp;
use crate::error::Error;
use crate::name::LockName;
use crate::store::{Claim, Mode, Note};
use crate::stores::shared::fuzz::urls;
use crate::token::HolderId;
use prost::Message;
use std::time::Duration;
use tonic::{Code, Status};

#[test]
fn urls_are_read_and_keep_their_secrets() {
    urls("etcd_urls", |url| {
        let url = crate::url::parse(url)?;
        Options::parse(&url.scheme, &url.raw_place, &url.options)
    });
}

#[test]
fn keys_name_one_lock_and_lie_in_the_ranges_of_their_prefixes() {
    testkit::fuzz("names", |bytes| {
        assert_eq!(decode(encode(bytes).as_bytes()).as_deref(), Some(bytes));
        let Ok(name) = LockName::new(bytes) else { return };
        assert!(is_ours(&fence(&name)));
        for names in [Names::Encoded, Names::Native] {
            let Ok(keys) = Keys::of(names, &name) else { continue };
            let base = &keys.prefix[..keys.prefix.len() - 1];
            assert_eq!(name_of(names, base).as_ref(), Some(&name), "read back");
            assert!(!is_ours(&keys.prefix), "not among our own");
            for end in 0..=bytes.len() {
                let within = |[from, to]: &[Vec<u8>; 2]| *from <= keys.prefix && (*to == [0] || keys.prefix < *to);
                assert!(ranges(names, &bytes[..end]).iter().any(within), "found by its first {end} bytes");
            }
            for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { limit: u32::MAX }] {
                let key = keys.claim(mode, i64::MAX, 9);
                let kv = KeyValue { key, lease: i64::MAX, ..KeyValue::default() };
                assert_eq!(base_of(&kv), Some(base));
                assert_eq!(Entry::read(&keys, kv).mode, mode);
            }
        }
        let _ = (name_of(Names::Encoded, bytes), tomb_of(bytes), keys::kind(bytes));
        assert_eq!(tomb_of(&tomb(-1, HolderId::from_u128(7))), Some(HolderId::from_u128(7)));
    });
}

#[test]
fn refusals_of_servers_are_read() {
    testkit::fuzz_text("etcd_refusals", |text| {
        for code in 0..=16 {
            let error = Error::from(super::error::map(Status::new(Code::from_i32(code), text)).at("h:2379"));
            let _ = format!("{error} {error:?}");
        }
    });
}

/// Everything that is done with a key and its value.
fn look_at(kv: KeyValue) -> Entry {
    let name = LockName::new("x").unwrap();
    let _ = (base_of(&kv).map(<[u8]>::to_vec), tomb_of(&kv.key), is_ours(&kv.key));
    let _ = registers::parse(&name, &kv).map_err(|e| e.to_string());
    let entry = Entry::read(&Keys::of(Names::Encoded, &name).unwrap(), kv);
    let _ = format!("{:?} {:?} {}", entry.token(), entry.record(), entry.held(Some(1)));
    entry
}

#[test]
fn values_of_claims_are_read() {
    testkit::fuzz("etcd_values", |bytes| {
        let kv =
            |key: &[u8], value: &[u8]| KeyValue { key: key.to_vec(), value: value.to_vec(), ..KeyValue::default() };
        look_at(kv(b"x/5e-1", bytes));
        look_at(kv(bytes, b""));
        let text = String::from_utf8_lossy(bytes);
        let note = Note::new(text.clone(), 7, text);
        let name = LockName::new("x").unwrap();
        let claim = Claim::new(name, HolderId::from_u128(9), Duration::MAX, Stamp::default(), note.clone().into());
        let read = look_at(kv(b"x/5e-1", &note_text(&claim)));
        assert_eq!((read.holder, read.record().note), (Some(claim.holder), Some(note)));
    });
}

#[test]
fn replies_of_servers_are_read() {
    testkit::fuzz("etcd_replies", |bytes| {
        if let Ok(answer) = RangeAnswer::decode(bytes) {
            let line: Vec<Entry> = answer.kvs.into_iter().map(look_at).collect();
            assert!(holders(&line) <= line.len());
        }
        if let Ok(mut answer) = TxnAnswer::decode(bytes) {
            let _ = answer.revision();
            let nested = answer.nested();
            for range in answer.ranges().chain(nested.into_iter().flat_map(TxnAnswer::ranges)) {
                range.kvs.into_iter().for_each(|kv| drop(look_at(kv)));
            }
        }
        if let Ok(answer) = WatchAnswer::decode(bytes) {
            answer.events.into_iter().filter_map(|event| event.kv).for_each(|kv| drop(look_at(kv)));
        }
        let _ = (LeaseAnswer::decode(bytes), Authenticated::decode(bytes));
    });
}
