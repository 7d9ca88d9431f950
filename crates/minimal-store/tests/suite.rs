//! The store passes the whole suite, as every store must.

use lockkeeper::{Store, conformance_suite};
use minimal_store::MinimalStore;
use std::sync::Arc;

conformance_suite!(minimal, {
    let root = MinimalStore::default();
    move || Arc::new(root.clone()) as Arc<dyn Store>
});

#[test]
fn it_is_as_small_as_the_docs_say() {
    assert!(include_str!("../src/lib.rs").lines().count() <= 120, "docs/custom-store.md promises a small file");
}
