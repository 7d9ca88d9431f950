//! A way to a server that is slow in one direction.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// Passes connections on to a loopback port, and holds back what the server says.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    held: Arc<AtomicU64>,
}

impl Proxy {
    /// Connections on which the caller has said `marked` are held back for `marked_delay`, the others for `delay`.
    pub fn new(to: u16, marked: &'static [u8], marked_delay: Duration, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let port = listener.local_addr().expect("it is bound").port();
        let held = Arc::new(AtomicU64::new(0));
        let count = held.clone();
        // Ends with the process: it waits for connections that nobody makes.
        thread::spawn(move || {
            for caller in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let is_marked = Arc::new(AtomicBool::new(false));
                let _ = (caller.set_nodelay(true), server.set_nodelay(true));
                let Ok((mut said, mut to_server)) = caller.try_clone().and_then(|c| Ok((c, server.try_clone()?)))
                else {
                    continue;
                };
                let found = is_marked.clone();
                thread::spawn(move || {
                    pass(&mut said, |bytes| {
                        if bytes.windows(marked.len()).any(|part| part == marked) {
                            found.store(true, Ordering::Relaxed);
                        }
                        to_server.write_all(bytes)
                    });
                    let _ = to_server.shutdown(Shutdown::Both);
                });
                slow(server, caller, is_marked, [delay, marked_delay], count.clone());
            }
        });
        Self { port, held }
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How often something on a marked connection was held back.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

/// Passes on what comes, each part after its delay.
fn slow(mut from: TcpStream, mut to: TcpStream, marked: Arc<AtomicBool>, delays: [Duration; 2], held: Arc<AtomicU64>) {
    let (sender, parts) = channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        pass(&mut from, |bytes| {
            let marked = marked.load(Ordering::Relaxed);
            held.fetch_add(u64::from(marked), Ordering::Relaxed);
            let due = Instant::now() + delays[usize::from(marked)];
            sender.send((due, bytes.to_vec())).map_err(std::io::Error::other)
        });
    });
    thread::spawn(move || {
        for (due, bytes) in parts {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

fn pass(from: &mut TcpStream, mut on: impl FnMut(&[u8]) -> std::io::Result<()>) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if on(&buffer[..length]).is_err() {
            break;
        }
    }
}
