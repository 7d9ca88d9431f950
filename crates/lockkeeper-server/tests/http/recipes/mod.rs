//! The recipes by hand, and beside programs that have the library: both exclude and understand each other.

mod access;
mod crowd;
pub(crate) mod documented;
mod elections;
mod jobs;
mod once;
mod script;
mod stores;
mod unanswered;

use crate::{Served, store_url};
use lockkeeper::Keeper;
use serde_json::Value;

/// A program with the library, on the store of the gateway.
async fn beside(served: &Served) -> Keeper {
    Keeper::connect(store_url(&served.dir)).await.expect("connected")
}

/// How many clients hold a lock.
async fn holders(served: &Served, name: &str) -> Option<usize> {
    let (status, lock) = served.get(&format!("/v1/lock?name={name}")).await;
    assert_eq!(status, 200, "{lock}");
    lock["holders"].as_array().map(Vec::len)
}

/// What a problem is.
fn kind((status, problem): &(u16, Value)) -> (u16, &str) {
    (*status, problem["kind"].as_str().unwrap_or_default())
}
