//! Fuzz targets of Redlock: its URLs, and the values that it writes. Values are read by the code of the Redis store.

use super::options::RedlockOptions;
use super::texts::{mine, tombstone, value};
use crate::clock::Stamp;
use crate::name::LockName;
use crate::store::{Claim, Mode, Note};
use crate::stores::redis::keys::{Notes, exclusive, parse_holder};
use crate::stores::shared::fuzz::urls;
use crate::token::HolderId;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn urls_are_read_and_keep_their_secrets() {
    urls("redlock_urls", |url| {
        let url = crate::url::parse(url)?;
        RedlockOptions::parse(&url.raw_place, &url.options)
    });
}

#[test]
fn values_are_read_back_whatever_the_note_says() {
    testkit::fuzz("names", |bytes| {
        let Ok(name) = LockName::new(bytes) else { return };
        let text = String::from_utf8_lossy(bytes);
        let (holder, note) = (HolderId::from_u128(7), Arc::new(Note::new(text.clone(), u32::MAX, text)));
        assert!(tombstone(&name, holder).ends_with(holder.to_hex().as_bytes()));
        let claim = Claim::new(name, holder, Duration::from_secs(4), Stamp::default(), note.clone());
        let value = value(&claim, "17", "4000", u64::MAX, 9, &Notes::default().text(&note));
        assert!(value.starts_with(&mine(holder)));
        let record = parse_holder(exclusive(&value).unwrap(), Mode::Exclusive, None);
        assert_eq!((record.token.map(|token| token.get()), record.note.as_ref()), (Some(17), Some(&*note)));
    });
}
