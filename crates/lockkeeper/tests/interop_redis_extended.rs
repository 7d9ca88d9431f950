//! The Redis stores beside lock clients that come from Maven and Go modules, each in its real version.
//! `scripts/test-extended` builds them and runs this.
#![cfg(feature = "redis")]
#![allow(clippy::print_stdout, reason = "measured times are for people")]

mod peers;

use peers::{Kind, beside};

beside! {
    #[ignore = "needs Maven: scripts/test-extended"]
    redisson_lock: RLock;
    #[ignore = "needs Maven: scripts/test-extended"]
    redisson_fenced_lock: RFencedLock;
    #[ignore = "needs Maven: scripts/test-extended"]
    redisson_fair_lock: RFairLock;
    #[ignore = "needs Maven: scripts/test-extended"]
    redisson_write_lock: RWriteLock;
    #[ignore = "needs Go: scripts/test-extended"]
    redsync: Redsync;
}

#[cfg(feature = "redlock")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go: scripts/test-extended"]
async fn a_thousand_mixed_sections_with_redsync_on_three_servers_never_overlap() {
    peers::mixed_at(Kind::Redsync, peers::Place::majority()).await;
}
