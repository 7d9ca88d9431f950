//! Fuzz targets of names, texts and URLs, which no store owns.

use crate::name::{LockName, escape};
use crate::text;
use crate::url;

#[test]
fn names_print_safely_and_differently() {
    testkit::fuzz("names", |bytes| {
        let shown = escape(bytes);
        assert!(!shown.chars().any(char::is_control), "{shown}");
        if let Ok(name) = LockName::new(bytes) {
            assert_eq!(name.to_string(), shown);
            assert!(!format!("{name:?}").is_empty());
        }
        for sign in *b"%~" {
            let written = text::encode(bytes, sign, |byte| byte != sign && byte.is_ascii_graphic());
            assert_eq!(text::decode(written.as_bytes(), sign).as_deref(), Some(bytes));
            let _ = text::decode(bytes, sign);
        }
        if let Some(end) = text::upper_bound(bytes) {
            assert!(end.as_slice() > bytes && !end.starts_with(bytes));
        }
    });
}

#[test]
fn any_url_is_taken_apart_or_refused() {
    testkit::fuzz_text("urls", |text| {
        if let Ok(parts) = url::parse(text) {
            assert!(text.len() > parts.scheme.len());
            let _ = format!("{parts:?}");
            #[cfg(feature = "sqlite")]
            let _ = crate::stores::sqlite::SqliteOptions::from_pairs(&parts.options).map_err(|e| e.to_string());
        }
        let _ = crate::duration::parse(text);
    });
}

#[test]
fn a_url_that_names_no_store_does_not_tell_its_password() {
    testkit::fuzz_text("urls", |text| {
        // No scheme of ours: such a URL opens nothing.
        let text = format!("x-{}", text.replace("geheim", "x"));
        let url = match text.split_once("://") {
            Some((scheme, rest)) => format!("{}://u:geheim@{rest}", scheme.replace(':', "-")),
            None => format!("{}://u:geheim@h", text.replace([':', '/'], "-")),
        };
        let opened = url::open(&url, &crate::clock::Clock::System);
        let error = crate::blocking::block_on(opened).expect_err(&url);
        assert!(!format!("{error} {error:?}").contains("geheim"), "{url}: {error:?}");
    });
}
