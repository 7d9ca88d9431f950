//! Ports for servers that are killed and started again: a port stays theirs while they are down.
//!
//! A port that the system chooses for `bind(0)` is not: while the server is down, any connection on this machine may be
//! given the same port for its own end, and another test may be given it for its server.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::Path;

use crate::{SOON, eventually};

/// How far above its own port a node of a Redis Cluster listens for the other nodes.
const CLUSTER_BUS: u16 = 10_000;

/// A loopback port that is free, and that no test is given again before thousands of other ports were.
///
/// All test programs of this user take turns with one number in one file, so that two programs never get the same port.
pub fn free_port() -> u16 {
    let ports = below_ephemeral();
    let mut file = turns();
    let mut text = String::new();
    file.read_to_string(&mut text).expect("the number of the last port");
    let last: u16 = text.trim().parse().unwrap_or(ports.start);
    let after = last.saturating_add(1).max(ports.start)..ports.end;
    let free = after.chain(ports).find(|&port| is_free(port)).expect("one of ten thousand ports is free");
    file.rewind().and_then(|()| file.set_len(0)).expect("the number can be replaced");
    write!(file, "{free}").expect("the number can be written");
    free
}

/// Ports that the system gives to no connection, and whose cluster bus is none that it gives either.
fn below_ephemeral() -> Range<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").expect("the system's range of ports");
    let first: u16 = text.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a range");
    let end = first.saturating_sub(CLUSTER_BUS);
    assert!(
        end > 12_000,
        "the system gives connections ports from {first} on; tests need those below it: \
        sysctl net.ipv4.ip_local_port_range='32768 60999'"
    );
    end.saturating_sub(CLUSTER_BUS).max(2_000)..end
}

/// The file whose one number is the port given last, locked until it is dropped. It is the same whatever `TMPDIR` says.
fn turns() -> File {
    let user = rustix::process::geteuid().as_raw();
    let path = Path::new("/tmp").join(format!("testkit-ports-{user}"));
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
    let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    file.lock().expect("a lock on a file");
    file
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// Waits until something listens on a loopback port.
pub fn listens(port: u16) {
    eventually(SOON, "the server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither another test nor a connection takes a port that was given.
    #[test]
    fn a_port_is_given_once() {
        let ports: Vec<u16> = (0..50).map(|_| free_port()).collect();
        let different: std::collections::BTreeSet<&u16> = ports.iter().collect();
        assert_eq!(different.len(), ports.len());
        let outgoing = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        assert!(ports.iter().all(|port| port + CLUSTER_BUS < outgoing), "{ports:?} and {outgoing}");
    }

    #[test]
    fn a_port_in_use_is_not_given() {
        let next = free_port() + 1;
        let taken = TcpListener::bind(("127.0.0.1", next));
        assert_ne!(free_port(), next, "{taken:?}");
    }
}
