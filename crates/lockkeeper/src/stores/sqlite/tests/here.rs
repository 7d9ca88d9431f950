//! What a caller's own thread does itself.

use super::*;

/// A release on this thread; `None` when it is left to the store's.
fn release_here(store: &SqliteStore, claim: &Claim) -> Option<Release> {
    let (job, _answer) = Job::new(Op::Release(vec![claim.clone()]), true);
    let Answer::Releases(mut answers) = store.here(|worker| worker.release_here(&job))?.unwrap() else { panic!() };
    Some(answers.remove(0).unwrap())
}

#[tokio::test]
async fn a_callers_own_thread_hands_over_while_the_line_is_short_and_no_other_process_writes() {
    let dir = Dir::new();
    let (a, b) = (dir.store(), dir.store());
    let writer = dir.sql();
    for (waiters, here) in [(1, true), (16, true), (17, false)] {
        let holder = claim("x");
        granted(&a, &holder).await;
        let mut line = Vec::new();
        for place in 1..=waiters {
            line.push(claim("x"));
            assert_eq!(held(&b, &line[place - 1]).await.place, u32::try_from(place).ok());
        }
        writer.execute_batch("BEGIN IMMEDIATE").unwrap();
        assert_eq!(release_here(&a, &holder), None, "it waits for no other writer");
        writer.execute_batch("COMMIT").unwrap();
        if here {
            // The store's thread may just be tidying.
            let released = std::iter::repeat_with(|| release_here(&a, &holder)).flatten().next();
            assert_eq!(released, Some(Release::Released));
        } else {
            assert_eq!(release_here(&a, &holder), None, "{waiters} wait");
            assert_eq!(release(&a, &holder).await.unwrap(), Release::Released);
        }
        for waiter in line {
            assert!(matches!(renew(&b, &waiter).await.unwrap(), Renewal::Granted(_)));
            release(&b, &waiter).await.unwrap();
        }
    }
}
