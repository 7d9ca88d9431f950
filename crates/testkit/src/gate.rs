//! A way to a server on which messages can be held back and delivered later.

use crate::SOON;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Passes connections on to a loopback port; what callers say can be held back, connection by connection.
#[derive(Debug)]
pub struct Gate {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// A connection has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    holding: bool,
    /// What a message must contain to be held back, with all after it on that connection.
    mark: Option<Vec<u8>>,
    connections: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    server: TcpStream,
    /// What was held back; once something was, everything after it is, so that the order stays.
    held: Option<VecDeque<Vec<u8>>>,
    /// The caller has hung up; what it said before is still to come.
    left: bool,
    /// The server has closed it, so it has read all that came.
    ended: bool,
}

impl Gate {
    /// An open gate to `to`.
    pub fn new(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared::default());
        let all = shared.clone();
        // The thread waits for connections until the process ends.
        thread::spawn(move || {
            for caller in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let _ = (caller.set_nodelay(true), server.set_nodelay(true));
                let copies = (caller.try_clone(), server.try_clone());
                let (Ok(said), Ok(answers)) = copies else { continue };
                let mut state = all.lock();
                let number = state.connections.len();
                state.connections.push(Connection { server, held: None, left: false, ended: false });
                drop(state);
                let (listening, answering) = (all.clone(), all.clone());
                thread::spawn(move || listening.listen(said, number));
                thread::spawn(move || answering.answer(answers, caller, number));
            }
        });
        Self { port, shared }
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Holds back whatever is said from now on, on connections that are there and on new ones.
    pub fn hold(&self) {
        self.shared.lock().holding = true;
    }

    /// Holds back, on each connection, the next message that contains `mark` and all after it.
    pub fn hold_at(&self, mark: &[u8]) {
        self.shared.lock().mark = Some(mark.to_vec());
    }

    /// Holds back whatever is said from now on, on the connections that are there; new ones pass.
    pub fn silence(&self) {
        for connection in &mut self.shared.lock().connections {
            connection.held.get_or_insert_default();
        }
    }

    /// Lets new connections, and those on which nothing was held back, pass again.
    pub fn pass(&self) {
        let mut state = self.shared.lock();
        (state.holding, state.mark) = (false, None);
    }

    /// On how many connections something is held back.
    pub fn held(&self) -> usize {
        self.shared.lock().connections.iter().filter(|connection| connection.held.is_some()).count()
    }

    /// Delivers all that was held back. When this returns, the server has read what callers that hung up had sent. On a
    /// connection still in use, the next call is answered after the held-back ones.
    pub fn deliver(&self) {
        let mut state = self.shared.lock();
        let mut orphans = Vec::new();
        for (number, connection) in state.connections.iter_mut().enumerate() {
            let Some(parts) = connection.held.take() else { continue };
            for bytes in parts {
                // The server may have given up on it.
                let _ = connection.server.write_all(&bytes);
            }
            if connection.left {
                // It reads to the end, then closes.
                let _ = connection.server.shutdown(Shutdown::Write);
                orphans.push(number);
            }
        }
        let read = |state: &mut State| orphans.iter().any(|number| !state.connections[*number].ended);
        let waited = self.shared.ended.wait_timeout_while(state, SOON, read);
        let late = waited.is_ok_and(|(_, timeout)| timeout.timed_out());
        assert!(!late, "the server did not read what was delivered");
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes on what a caller says, or keeps it.
    fn listen(&self, mut said: TcpStream, number: usize) {
        let mut buffer = [0; 16 * 1024];
        while let Ok(length @ 1..) = said.read(&mut buffer) {
            let mut state = self.lock();
            let marked = |mark: &Vec<u8>| buffer[..length].windows(mark.len()).any(|part| part == mark);
            let holding = state.holding || state.mark.as_ref().is_some_and(marked);
            let Connection { server, held, .. } = &mut state.connections[number];
            if holding || held.is_some() {
                held.get_or_insert_default().push_back(buffer[..length].to_vec());
            } else if server.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let connection = &mut self.lock().connections[number];
        connection.left = true;
        // What is held back is still to come.
        if connection.held.is_none() {
            let _ = connection.server.shutdown(Shutdown::Both);
        }
    }

    /// Passes on what the server answers, to its end even if the caller has hung up.
    fn answer(&self, mut answers: TcpStream, mut caller: TcpStream, number: usize) {
        let mut buffer = [0; 16 * 1024];
        while let Ok(length @ 1..) = answers.read(&mut buffer) {
            let _ = caller.write_all(&buffer[..length]);
        }
        self.lock().connections[number].ended = true;
        self.ended.notify_all();
        let _ = caller.shutdown(Shutdown::Both);
    }
}
