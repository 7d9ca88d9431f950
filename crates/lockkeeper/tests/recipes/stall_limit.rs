//! A hung holder loses its lock, and the next client gets it.

use crate::Place;
use lockkeeper::{ErrorKind, LossReason};
use std::time::Duration;

pub(crate) async fn a_hung_holder_loses_the_lock(place: Place) {
    let (hung, next) = (place.keeper().await, place.keeper().await);
    let lock = hung.lock(&place.name).stall_limit(hung.info().ttl_floor.max(Duration::from_secs(2)));
    let guard = lock.acquire().await.unwrap();
    let error = guard.run(std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    // It waits for as long as it takes: the lock is never free unless the keeper gives it back.
    let after = next.lock(&place.name).acquire().await.unwrap();
    assert_eq!(guard.lost().await, LossReason::Stalled);
    assert!(after.token() > guard.token());
    after.release().await.unwrap();
}
