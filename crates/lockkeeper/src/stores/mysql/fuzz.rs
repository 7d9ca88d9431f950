//! Fuzz targets of the MySQL stores.

use super::options::Options;
use crate::stores::shared::fuzz::urls;

#[test]
fn urls_are_read_and_keep_their_secrets() {
    urls("mysql_urls", |url| {
        let url = crate::url::parse(url)?;
        Options::parse(&url.raw_place, &url.options)
    });
}
