//! The Redis stores beside other lock clients, each in its real version (`scripts/peers`).
#![allow(clippy::print_stdout, reason = "measured times are for people, and a peer answers there")]

use crate::peers::{self, ALONE, Kind, Mix, Place, TOTAL, beside, mix};

/// Not a test: the main program of an rslock peer.
#[tokio::test]
async fn rslock_in_a_process_of_its_own() {
    peers::rust::serve().await;
}

beside! {
    redis_py: RedisPy;
    python_redis_lock: PythonRedisLock;
    python_redis_lock_in_its_layout: PythonRedisLockSignals;
    node_redlock: NodeRedlock;
    rslock: Rslock;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sections_under_two_different_locks_are_seen_to_overlap() {
    let _alone = ALONE.lock().await;
    let Mix { seen, crossed, counted, .. } = mix(Kind::Rslock, &Place::of(Kind::Rslock), "one", "another").await;
    println!("two different locks: {seen} + {crossed} overlaps, {} lost writes", TOTAL - counted);
    assert!(seen > 0 && crossed > 0 && counted < TOTAL);
}

#[cfg(feature = "redlock")]
mod on_three_servers {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn node_redlock_and_we_keep_each_other_out() {
        // No mix: node-redlock leaves the votes of a failed try behind. Two of its own processes already keep each
        // other and all other clients out until their TTL.
        peers::exclude_at(Kind::NodeRedlock, Place::majority()).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_thousand_mixed_sections_with_rslock_never_overlap() {
        peers::mixed_at(Kind::Rslock, Place::majority()).await;
    }
}
