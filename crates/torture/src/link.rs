//! A way from one worker to one server, which the nemesis slows, stops, cuts and replays.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The directions of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the worker to the server.
    Up,
    /// From the server to the worker.
    Down,
}

/// A TCP proxy on a loopback port.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    to: AtomicU16,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    held: [bool; 2],
    delay: Duration,
    /// Connections of earlier numbers are to end, with what they hold back.
    ended: u64,
    next: u64,
    /// What the connections of now have said, for `replay`.
    said: Vec<Said>,
}

/// The first words of a connection, which may be its login, and some of the latest.
#[derive(Debug)]
struct Said {
    number: u64,
    first: Vec<u8>,
    latest: VecDeque<Vec<u8>>,
}

/// How many of the latest parts of a connection are kept.
const KEPT: usize = 4;

impl Link {
    /// An open way to a loopback port.
    pub(crate) fn new(to: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared { to: AtomicU16::new(to), state: Mutex::default(), changed: Condvar::new() });
        let link = Self { port, shared };
        let all = link.shared.clone();
        // The thread waits for connections until the process ends.
        thread::spawn(move || {
            for caller in listener.incoming().map_while(Result::ok) {
                all.clone().begin(caller);
            }
        });
        Ok(link)
    }

    /// Where the worker connects.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// New connections go to another server, as when an address moves to a new primary.
    pub(crate) fn retarget(&self, to: u16) {
        if self.shared.to.swap(to, Ordering::Relaxed) != to {
            self.reset();
        }
    }

    /// Holds back what is said in one direction, on connections of now and later ones.
    pub(crate) fn hold(&self, way: Way) {
        self.shared.lock().held[way as usize] = true;
    }

    /// Holds back every message for so long.
    pub(crate) fn delay(&self, delay: Duration) {
        self.shared.lock().delay = delay;
    }

    /// Opens it again; what was held back arrives now.
    pub(crate) fn deliver(&self) {
        let mut state = self.shared.lock();
        (state.held, state.delay) = ([false; 2], Duration::ZERO);
        self.shared.changed.notify_all();
    }

    /// Ends all connections of now. What was held back never arrives.
    pub(crate) fn reset(&self) {
        let mut state = self.shared.lock();
        state.ended = state.next;
        state.said.clear();
        self.shared.changed.notify_all();
    }

    /// Sends once more, on connections of its own, what the worker has said last, as a network or a middleman that repeats
    /// might. The answers are read and dropped. On protocols with a state of their own most of it means nothing.
    pub(crate) fn replay(&self) {
        let said: Vec<(Vec<u8>, Vec<Vec<u8>>)> = {
            let state = self.shared.lock();
            state.said.iter().map(|said| (said.first.clone(), said.latest.iter().cloned().collect())).collect()
        };
        let to = self.shared.to.load(Ordering::Relaxed);
        for (first, latest) in said {
            let Ok(mut server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
            let _ = server.set_read_timeout(Some(Duration::from_millis(200)));
            let words = std::iter::once(first).chain(latest);
            // A server that is down or that does not like it hangs up.
            if words.map(|part| server.write_all(&part)).all(|sent| sent.is_ok()) {
                let _ = server.shutdown(Shutdown::Write);
                let _ = server.read_to_end(&mut Vec::new());
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: Arc<Self>, caller: TcpStream) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.to.load(Ordering::Relaxed))) else { return };
        let _ = (caller.set_nodelay(true), server.set_nodelay(true));
        let copies = (caller.try_clone(), server.try_clone());
        let (Ok(from), Ok(back)) = copies else { return };
        let number = {
            let mut state = self.lock();
            state.next += 1;
            let number = state.next;
            state.said.push(Said { number, first: Vec::new(), latest: VecDeque::new() });
            number
        };
        let (up, down) = (self.clone(), self);
        thread::spawn(move || up.pump(Way::Up, number, from, server));
        thread::spawn(move || down.pump(Way::Down, number, back, caller));
    }

    fn pump(&self, way: Way, number: u64, mut from: TcpStream, mut to: TcpStream) {
        // A short limit, so that a connection without words ends too when it is reset.
        let _ = from.set_read_timeout(Some(Duration::from_millis(100)));
        let mut buffer = [0; 16 * 1024];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    if way == Way::Up {
                        self.remember(number, &buffer[..length]);
                    }
                    if !self.waited(way, number) || to.write_all(&buffer[..length]).is_err() {
                        break;
                    }
                }
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                    if self.lock().ended >= number {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
        self.lock().said.retain(|said| said.number != number);
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }

    fn remember(&self, number: u64, words: &[u8]) {
        let mut state = self.lock();
        let Some(said) = state.said.iter_mut().find(|said| said.number == number) else { return };
        if said.first.is_empty() {
            said.first = words.to_vec();
        } else {
            said.latest.push_back(words.to_vec());
            if said.latest.len() > KEPT {
                said.latest.pop_front();
            }
        }
    }

    /// Waits until a message may pass; `false` when its connection is to end instead.
    fn waited(&self, way: Way, number: u64) -> bool {
        let mut state = self.lock();
        let delay = state.delay;
        if !delay.is_zero() {
            drop(state);
            thread::sleep(delay);
            state = self.lock();
        }
        while state.held[way as usize] && state.ended < number {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.ended < number
    }
}
