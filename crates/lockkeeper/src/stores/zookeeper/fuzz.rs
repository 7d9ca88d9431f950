//! Fuzz targets of the ZooKeeper store.

use super::keys::{Data, Layout, decode, encode, field, foreign, name_of, parse_child, token};
use super::options::Options;
use super::registers;
use crate::name::LockName;
use crate::register::Pass;
use crate::store::{Mode, Note};
use crate::stores::shared::fuzz::urls;
use crate::stores::shared::register::StoredRegister;
use crate::token::{HolderId, Token};

#[test]
fn urls_are_read_and_keep_their_secrets() {
    urls("zookeeper_urls", |url| {
        let url = crate::url::parse(url)?;
        Options::parse(&url.raw_place, &url.options)
    });
}

#[test]
fn directories_name_one_lock() {
    testkit::fuzz("names", |bytes| {
        let dir = encode(bytes);
        assert!(!dir.contains('/') && dir != "." && dir != ".." && dir != "zookeeper", "{dir}");
        assert_eq!(decode(&dir).as_deref(), Some(bytes), "read back");
        assert!(!field(bytes).contains([':', '/']));
        let text = String::from_utf8_lossy(bytes);
        if let Some(name) = name_of(&text) {
            assert_eq!(encode(name.as_bytes()), text, "one directory, one name");
        }
    });
}

#[test]
fn children_of_any_client_are_read() {
    testkit::fuzz_text("zookeeper_children", |child| {
        let _ = (parse_child(child), foreign(child).to_string(), token(i64::MIN));
    });
    let holder = HolderId::from_u128(7);
    for layout in [Layout::Curator, Layout::CuratorRw, Layout::Kazoo] {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { limit: u32::MAX }] {
            for number in [0, 2_147_483_647, -2_147_483_648] {
                let child = format!("{}{number:010}", layout.prefix(mode, holder));
                assert_eq!(parse_child(&child), Some((mode, number)), "{child}");
            }
        }
    }
}

#[test]
fn data_of_nodes_is_read() {
    testkit::fuzz("zookeeper_values", |bytes| {
        let _ = Data::parse(bytes);
        let name = LockName::new("a").unwrap();
        let _ = registers::parse(&name, bytes).map(|stored| stored.live(7)).map_err(|e| e.to_string());
        let text = String::from_utf8_lossy(bytes);
        let data = Data::of(HolderId::from_u128(7), &Note::new(text.clone(), 7, text), true);
        assert_eq!(Data::parse(data.text().as_bytes()), Some(data));
        let Ok(lock) = LockName::new(bytes) else { return };
        let seen = Pass::new(lock, Token::MAX, HolderId::from_u128(7));
        let stored = StoredRegister { seen, value: Some(bytes.to_vec()), ends: Some(u64::MAX) };
        assert_eq!(registers::parse(&name, &stored.bytes(field)).unwrap(), stored);
    });
}
