//! The Redis stores beside lock clients that come from Maven and Go modules, each in its real version.
//! `scripts/test-extended` builds them and runs this.

use crate::peers::{self, Kind, beside};

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

/// Its readers share with each other, so there are no sections to mix.
mod redisson_read_lock {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs Maven: scripts/test-extended"]
    async fn each_keeps_the_other_out() {
        peers::keep_out(Kind::RReadLock).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs Maven: scripts/test-extended"]
    async fn each_comes_in_when_the_other_leaves() {
        peers::take_turns(Kind::RReadLock).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs Maven: scripts/test-extended"]
    async fn a_late_release_or_extension_touches_nothing() {
        peers::late(Kind::RReadLock).await;
    }
}

mod redisson_in_a_cluster {
    use super::*;
    use peers::Place;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs Maven: scripts/test-extended"]
    async fn a_thousand_mixed_sections_never_overlap() {
        peers::mixed_at(Kind::RFencedLock, Place::cluster(Kind::RFencedLock)).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs Maven: scripts/test-extended"]
    async fn its_waiters_come_in_when_we_leave() {
        peers::wake_them_at(Kind::RLock, Place::cluster(Kind::RLock)).await;
    }
}

#[cfg(feature = "redlock")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go: scripts/test-extended"]
async fn a_thousand_mixed_sections_with_redsync_on_three_servers_never_overlap() {
    peers::mixed_at(Kind::Redsync, peers::Place::majority()).await;
}
