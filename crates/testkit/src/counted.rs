//! A way to a server on which round trips are counted.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Passes connections on to a loopback port, and counts how often one side spoke and the other had to answer.
#[derive(Debug)]
pub struct Counted {
    port: u16,
    trips: Arc<AtomicU64>,
}

impl Counted {
    /// Before a server on this port. Its thread waits for connections until the process ends.
    pub fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let counted = Self { port: listener.local_addr().expect("it is bound").port(), trips: Arc::default() };
        let trips = counted.trips.clone();
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let answered = Arc::new(AtomicBool::new(true));
                for asks in [true, false] {
                    let [near, far] = [&near, &far].map(|side| side.try_clone().expect("a socket"));
                    let (from, to) = if asks { (near, far) } else { (far, near) };
                    let (answered, trips) = (answered.clone(), trips.clone());
                    thread::spawn(move || {
                        pass(from, to, || {
                            if answered.swap(!asks, Ordering::SeqCst) && asks {
                                trips.fetch_add(1, Ordering::SeqCst);
                            }
                        });
                    });
                }
            }
        });
        counted
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Round trips so far, on all connections.
    pub fn trips(&self) -> u64 {
        self.trips.load(Ordering::SeqCst)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, on: impl Fn()) {
    let mut buffer = [0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        on();
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
