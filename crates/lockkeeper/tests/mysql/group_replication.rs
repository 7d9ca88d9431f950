//! The MySQL store on a group of servers that all take writes: a transaction that loses against one of another member
//! may be repeated. It is no way to run locks (leases end by the clock of whichever member is asked), but must do no harm.

use lockkeeper::{ErrorKind, Keeper};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use testkit::{MysqlGroup, SOON};

const SECTIONS: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs MySQL: scripts/test-extended"]
async fn members_of_a_group_exclude_each_other_and_lost_transactions_may_be_repeated() {
    static INSIDE: AtomicU32 = AtomicU32::new(0);
    static LAST: AtomicU64 = AtomicU64::new(0);
    let group = MysqlGroup::new();
    // The other one has to know of the tables.
    let first = Keeper::connect(&group.members[0].url()).await.expect("connected");
    for (known, count) in [
        ("SELECT COUNT(*) FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = 'test'", "3"),
        ("SELECT COUNT(*) FROM lockkeeper_layout", "1"),
    ] {
        testkit::eventually(SOON, "tables are replicated", || group.members[1].sql(known) == count);
    }
    let mut tasks = tokio::task::JoinSet::new();
    for url in group.members.iter().chain(&group.members).map(|member| member.url()) {
        let keeper = Keeper::builder().ttl(Duration::from_secs(20)).connect(url).await.expect("connected");
        tasks.spawn(async move {
            for _ in 0..SECTIONS {
                let guard = loop {
                    match keeper.lock("x").wait(SOON * 4).acquire().await {
                        Ok(guard) => break guard,
                        // It lost twice in a row.
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
                    }
                };
                assert_eq!(INSIDE.fetch_add(1, Ordering::SeqCst), 0, "no other holder");
                let token = guard.token().get();
                assert!(LAST.swap(token, Ordering::SeqCst) < token, "tokens rise");
                INSIDE.fetch_sub(1, Ordering::SeqCst);
                // The keeper goes on trying.
                if let Err(error) = guard.release().await {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                }
            }
        });
    }
    tasks.join_all().await;
    drop(first);
}
