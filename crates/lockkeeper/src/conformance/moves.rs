//! Claims whose calls go through one instance after the other, as behind a balancer before several gateways.

use super::Subject;
use super::kit::{Hand, fresh_name, long, open};
use std::time::Duration;

/// How far a client's clock may be from everything that the store knows: more than any TTL.
const AHEAD: Duration = Duration::from_secs(400 * 24 * 3600);

/// A claim that one instance took is repeated, renewed and released through others, and excludes all the time.
pub async fn a_claim_moves_between_instances(subject: &dyn Subject) {
    let (info, [a, b, c]) = open(subject).await;
    let name = fresh_name("moves");
    let (mut holder, mut other) = (Hand::new(&a, &name, long(&info)), Hand::new(&c, &name, long(&info)));
    let token = holder.acquire().await.token;
    holder.store = b.clone();
    assert_eq!(holder.acquire().await.token, token, "a repeat through another instance is the same grant");
    holder.store = c.clone();
    holder.kept().await;
    assert_eq!(other.refused().await.token, Some(token), "and another claim is refused there");
    holder.store = b;
    holder.end().await;
    assert!(other.acquire().await.token > token, "what one instance took, another has given back");
    other.end().await;
}

/// A client whose clock has nothing to do with the store's is granted, renewed and excluded as any other.
pub async fn a_clients_clock_is_only_a_number(subject: &dyn Subject) {
    let (info, [a, b]) = open(subject).await;
    let name = fresh_name("clock");
    let (mut ahead, mut usual) = (Hand::new(&a, &name, long(&info)).ahead(AHEAD), Hand::new(&b, &name, long(&info)));
    for _ in 0..2 {
        let grant = ahead.acquire().await;
        assert_eq!(grant.stamp, ahead.claim.stamp, "a lease counts from the client's own stamp");
        assert!(grant.lease <= long(&info), "and lasts no longer than asked for: {:?}", grant.lease);
        usual.refused().await;
        ahead.kept().await;
        ahead.end().await;
        let next = usual.acquire().await;
        assert!(next.token > grant.token && next.lease <= long(&info), "{next:?} after {grant:?}");
        ahead.refused().await;
        usual.end().await;
        (ahead.claim.holder, usual.claim.holder) = (super::kit::fresh_holder(), super::kit::fresh_holder());
    }
}
