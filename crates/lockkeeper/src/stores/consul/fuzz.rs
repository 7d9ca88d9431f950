//! Fuzz targets of the Consul store.

use super::json::{self, SessionInfo};
use super::keys::{Keys, SUFFIX, Value, decode, field, in_url, no_lock};
use super::options::Options;
use crate::clock::Stamp;
use crate::name::LockName;
use crate::register::Pass;
use crate::store::{Claim, Note};
use crate::stores::shared::fuzz::urls;
use crate::stores::shared::http::Answer;
use crate::stores::shared::register::StoredRegister;
use crate::token::{HolderId, Token};
use std::time::Duration;

#[test]
fn urls_are_read_and_keep_their_secrets() {
    urls("consul_urls", |url| {
        let url = crate::url::parse(url)?;
        Options::parse(&url.scheme, &url.raw_place, &url.options)
    });
}

#[test]
fn keys_name_one_lock_and_begin_as_their_prefixes_do() {
    let all = [Keys::new("", SUFFIX), Keys::new("team/a", ""), Keys::new("", "")].map(Result::unwrap);
    testkit::fuzz("names", |bytes| {
        assert_eq!(decode(&field(bytes)).as_deref(), Some(bytes));
        let text = String::from_utf8_lossy(bytes);
        let _ = (in_url(&text), no_lock(&text).to_string(), Keys::new(&text, &text).map_err(|e| e.to_string()));
        for keys in &all {
            if let Some(name) = keys.name(&text) {
                assert_eq!(keys.lock(&name), text, "one key, one name");
            }
            let Ok(name) = LockName::new(bytes) else { continue };
            let key = keys.lock(&name);
            assert_eq!(keys.name(&key).as_ref(), Some(&name), "{key}");
            for end in 0..=bytes.len() {
                assert!(key.starts_with(&keys.below(&bytes[..end])), "{key} by its first {end} bytes");
            }
            assert!(keys.name(&keys.register(&name)).is_none(), "no register is a lock");
        }
    });
}

#[test]
fn values_of_keys_are_read() {
    testkit::fuzz("consul_values", |bytes| {
        let _ = format!("{:?} {:?}", Value::parse(bytes), Value::parse(bytes).holder());
        let stored = StoredRegister::parse(bytes, decode);
        let _ = stored.map(|stored| stored.live(7));
        let text = String::from_utf8_lossy(bytes);
        let note = Note::new(text.clone(), 7, text);
        let (name, holder) = (LockName::new("a").unwrap(), HolderId::from_u128(9));
        let claim = Claim::new(name, holder, Duration::MAX, Stamp::default(), note.clone().into());
        assert_eq!(Value::parse(&Value::of(&claim, u64::MAX)), Value::Held { holder, note, since: u64::MAX });
        let Ok(lock) = LockName::new(bytes) else { return };
        let stored = StoredRegister { seen: Pass::new(lock, Token::MAX, holder), value: None, ends: None };
        assert_eq!(StoredRegister::parse(&stored.bytes(field), decode), Some(stored));
    });
}

#[test]
fn answers_of_agents_are_read() {
    testkit::fuzz_text("consul_answers", |body| {
        for status in [200, 403, 404, 409, 500] {
            let answer = Answer::of(status, body);
            if let Ok((Some(entry), _)) = json::entry(&answer) {
                let _ = (entry.is_held(), entry.parsed());
            }
            let _ = json::entry(&answer).map_err(|e| e.to_string());
            let _ = json::transaction(&answer).map(|txn| txn.index_of("a")).map_err(|e| e.to_string());
            let _ = json::session_id(&answer).map_err(|e| e.to_string());
            let _ = json::read::<Vec<SessionInfo>>(&answer, "sessions").map_err(|e| e.to_string());
            let _ = json::read::<Vec<String>>(&answer, "keys").map_err(|e| e.to_string());
            let _ = super::error::refused(&answer).to_string();
        }
    });
}
