//! Connections whose clients have not shown yet that they may come in. One address has only so many of them, so that it
//! cannot take all of the gateway's.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Enough for the clients behind one address that connect at the same moment; each counts for one round trip only.
const MOST: usize = 100;

/// The bits of an IPv6 address that one customer of a network can choose.
const OWN_BITS: u32 = 64;

type Table = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// How many there are, by address.
#[derive(Debug, Default)]
pub(crate) struct Unproven {
    table: Table,
    /// Whether loopback counts too. There a proxy may end all connections of a network.
    local_too: bool,
}

/// A connection; counted until it has proven itself or is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Place(Option<Arc<Counted>>);

#[derive(Debug)]
struct Counted {
    table: Table,
    address: IpAddr,
    still: AtomicBool,
}

fn open(table: &Table) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> OWN_BITS << OWN_BITS)),
        v4 => v4,
    }
}

impl Unproven {
    /// Counts a new connection; `None` when its address has too many.
    pub(crate) fn take(&self, from: Option<SocketAddr>) -> Option<Place> {
        let Some(from) = from.filter(|from| self.local_too || !from.ip().to_canonical().is_loopback()) else {
            return Some(Place(None));
        };
        let address = network(from.ip());
        let mut table = open(&self.table);
        let count = table.entry(address).or_default();
        if *count >= MOST {
            return None;
        }
        *count += 1;
        Some(Place(Some(Arc::new(Counted { table: self.table.clone(), address, still: AtomicBool::new(true) }))))
    }
}

impl Place {
    /// Its client has sent a request that was let in.
    pub(crate) fn proven(&self) {
        if let Some(counted) = &self.0 {
            counted.give_back();
        }
    }
}

impl Counted {
    fn give_back(&self) {
        if !self.still.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut table = open(&self.table);
        match table.get_mut(&self.address) {
            Some(count) if *count > 1 => *count -= 1,
            // Addresses that are gone leave nothing behind.
            _ => _ = table.remove(&self.address),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
impl Unproven {
    /// Counts clients on this machine too.
    pub(crate) fn also_local() -> Self {
        Self { table: Table::default(), local_too: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Option<SocketAddr> {
        Some(text.parse().expect("an address"))
    }

    #[test]
    fn an_address_has_its_own_share_until_it_has_proven_itself() {
        let unproven = Unproven::default();
        let mut places: Vec<_> = (0..MOST).map(|_| unproven.take(at("192.0.2.1:5")).expect("room")).collect();
        assert!(unproven.take(at("192.0.2.1:6")).is_none());
        assert!(unproven.take(at("192.0.2.2:5")).is_some());
        assert!(unproven.take(at("[::ffff:192.0.2.1]:5")).is_none(), "the same machine by another name");
        places[0].proven();
        places[0].proven();
        let more = unproven.take(at("192.0.2.1:6"));
        assert!(more.is_some() && unproven.take(at("192.0.2.1:7")).is_none(), "given back once");
        places.clear();
        drop(more);
        assert!(open(&unproven.table).is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_and_this_machine_is_not_counted() {
        let unproven = Unproven::default();
        let _places: Vec<_> = (0..MOST).map(|n| unproven.take(at(&format!("[2001:db8::{n:x}]:5")))).collect();
        assert!(unproven.take(at("[2001:db8::ffff]:5")).is_none());
        assert!(unproven.take(at("[2001:db8:0:1::1]:5")).is_some());
        for local in [at("127.0.0.1:5"), at("[::1]:5"), None] {
            let many: Vec<_> = (0..=MOST).map(|_| unproven.take(local)).collect();
            assert!(many.iter().all(Option::is_some));
        }
    }
}
