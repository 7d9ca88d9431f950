//! Fuzz targets of the PostgreSQL stores.

use super::options::Options;
use crate::stores::shared::fuzz::urls;

#[test]
fn urls_are_read_and_keep_their_secrets() {
    urls("postgres_urls", |url| {
        let url = crate::url::parse(url)?;
        Options::parse(&url.raw_place, &url.options)
    });
}
