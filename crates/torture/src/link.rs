//! A way from one worker to one server, or from all servers to one of them, which the nemesis slows, stops, cuts and replays.

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
    /// Whether it looks which process has made a connection.
    knows_callers: bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    held: [bool; 2],
    /// What connections up to this number say to the server is held back.
    held_up_to: u64,
    /// Processes whose connections are held back, and in which directions.
    held_callers: Vec<(i32, [bool; 2])>,
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
        Self::open(to, false)
    }

    /// An open way to a server for all others of its group. It knows them by their processes: the address that a server
    /// tells the others is the same for all, so there cannot be a link for each two of them.
    pub(crate) fn between_servers(to: u16) -> std::io::Result<Self> {
        Self::open(to, true)
    }

    fn open(to: u16, knows_callers: bool) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            to: AtomicU16::new(to),
            knows_callers,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
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

    /// Holds back what the connections of now say to the server. Later ones are not disturbed, so that a caller which tries
    /// anew gets through before what it said first.
    pub(crate) fn hold_old(&self) {
        let mut state = self.shared.lock();
        state.held_up_to = state.next;
    }

    /// Holds back what is said on connections of one process, of now and later ones.
    pub(crate) fn hold_caller(&self, pid: i32, ways: &[Way]) {
        let held = [ways.contains(&Way::Up), ways.contains(&Way::Down)];
        self.shared.lock().held_callers.push((pid, held));
    }

    /// Holds back every message for so long.
    pub(crate) fn delay(&self, delay: Duration) {
        self.shared.lock().delay = delay;
    }

    /// Opens it again; what was held back arrives now.
    pub(crate) fn deliver(&self) {
        let mut state = self.shared.lock();
        (state.held, state.held_up_to, state.delay) = ([false; 2], 0, Duration::ZERO);
        state.held_callers.clear();
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
        let pid = caller.peer_addr().ok().filter(|_| self.knows_callers).and_then(|address| owner(address.port()));
        let (up, down) = (self.clone(), self);
        thread::spawn(move || up.pump(Way::Up, (number, pid), from, server));
        thread::spawn(move || down.pump(Way::Down, (number, pid), back, caller));
    }

    fn pump(&self, way: Way, (number, pid): (u64, Option<i32>), mut from: TcpStream, mut to: TcpStream) {
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
                    if !self.waited(way, number, pid) || to.write_all(&buffer[..length]).is_err() {
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
    fn waited(&self, way: Way, number: u64, pid: Option<i32>) -> bool {
        let mut state = self.lock();
        let delay = state.delay;
        if !delay.is_zero() {
            drop(state);
            thread::sleep(delay);
            state = self.lock();
        }
        let held = |state: &State| {
            let of_caller = |(caller, ways): &(i32, [bool; 2])| Some(*caller) == pid && ways[way as usize];
            state.held[way as usize]
                || way == Way::Up && number <= state.held_up_to
                || state.held_callers.iter().any(of_caller)
        };
        while held(&state) && state.ended < number {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.ended < number
    }
}

/// The process that has this loopback port for its end of a connection.
fn owner(port: u16) -> Option<i32> {
    let socket = format!("socket:[{}]", inode(port)?);
    let has = |pid: &i32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| std::fs::read_link(file.path()).ok()).any(|to| to.as_os_str() == &*socket)
    };
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(has)
}

/// The number of the socket with this local port, of IPv4 or of IPv6 with an address of IPv4 in it, as Java has.
fn inode(port: u16) -> Option<String> {
    let own = format!("0100007F:{port:04X}");
    let table = |name: &str| std::fs::read_to_string(name).unwrap_or_default();
    let sockets = table("/proc/net/tcp") + &table("/proc/net/tcp6");
    let mut lines = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|words| words.get(1).is_some_and(|local| local.ends_with(&own)))?;
    Some((*line.get(9)?).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers each byte with the same one, and the link to it.
    fn echo(open: impl Fn(u16) -> std::io::Result<Link>) -> Link {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for mut caller in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    let mut byte = [0];
                    while caller.read_exact(&mut byte).and_then(|()| caller.write_all(&byte)).is_ok() {}
                });
            }
        });
        open(port).unwrap()
    }

    fn call(link: &Link) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", link.port())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    fn says(stream: &mut TcpStream, byte: u8) -> u8 {
        stream.write_all(&[byte]).unwrap();
        let mut answer = [0];
        stream.read_exact(&mut answer).unwrap();
        answer[0]
    }

    /// Nothing has come after so long, though a byte that is not held back comes in far less.
    fn is_silent(stream: &mut TcpStream) -> bool {
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let silent = stream.read_exact(&mut [0]).is_err();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        silent
    }

    #[test]
    fn a_later_connection_overtakes_an_old_one_that_is_held() {
        let link = echo(Link::new);
        let mut old = call(&link);
        assert_eq!(says(&mut old, 1), 1);
        link.hold_old();
        old.write_all(&[2]).unwrap();
        assert_eq!(says(&mut call(&link), 3), 3);
        assert!(is_silent(&mut old));
        link.deliver();
        let mut answer = [0];
        old.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [2]);
    }

    #[test]
    fn a_caller_is_known_by_its_process() {
        let link = echo(Link::between_servers);
        let us = std::process::id().cast_signed();
        link.hold_caller(1, &[Way::Up, Way::Down]);
        assert_eq!(says(&mut call(&link), 1), 1, "another process is cut off, not this one");
        link.hold_caller(us, &[Way::Down]);
        let mut cut = call(&link);
        cut.write_all(&[2]).unwrap();
        assert!(is_silent(&mut cut));
        link.deliver();
        let mut answer = [0];
        cut.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [2]);
    }
}
