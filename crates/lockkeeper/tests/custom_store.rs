//! The store that `docs/custom-store.md` shows passes the suite it recommends.

#[path = "../examples/custom_store.rs"]
#[allow(dead_code, unreachable_pub, reason = "a program of its own, whose main is not run here")]
mod example;

use lockkeeper::stores::memory::MemoryStore;
use lockkeeper::{Store, conformance_suite};
use std::sync::Arc;

conformance_suite!(counting, {
    let root = MemoryStore::new();
    move || Arc::new(example::Counting(root.share(), Arc::default())) as Arc<dyn Store>
});
