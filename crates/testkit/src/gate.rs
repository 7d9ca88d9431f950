//! A way to a server on which messages can be held back and delivered later.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Passes connections on to a loopback port; what callers say can be held back, connection by connection.
#[derive(Debug)]
pub struct Gate {
    port: u16,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    holding: bool,
    connections: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    server: TcpStream,
    /// What was held back; once something was, everything after it is, so that the order stays.
    held: Option<VecDeque<Vec<u8>>>,
}

impl Gate {
    /// An open gate to `to`.
    pub fn new(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let port = listener.local_addr().expect("it is bound").port();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        // Ends with the process: it waits for connections that nobody makes.
        thread::spawn(move || {
            for caller in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let _ = (caller.set_nodelay(true), server.set_nodelay(true));
                let copies = (caller.try_clone(), server.try_clone());
                let (Ok(said), Ok(answers)) = copies else { continue };
                let mut state = lock(&shared);
                let number = state.connections.len();
                state.connections.push(Connection { server, held: None });
                drop(state);
                let shared = shared.clone();
                thread::spawn(move || listen(said, number, &shared));
                thread::spawn(move || copy(answers, caller));
            }
        });
        Self { port, state }
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Holds back whatever is said from now on, on connections that are there and on new ones.
    pub fn hold(&self) {
        lock(&self.state).holding = true;
    }

    /// Holds back whatever is said from now on, on the connections that are there; new ones pass.
    pub fn silence(&self) {
        for connection in &mut lock(&self.state).connections {
            connection.held.get_or_insert_default();
        }
    }

    /// Lets new connections, and those on which nothing was held back, pass again.
    pub fn pass(&self) {
        lock(&self.state).holding = false;
    }

    /// On how many connections something is held back.
    pub fn held(&self) -> usize {
        lock(&self.state).connections.iter().filter(|connection| connection.held.is_some()).count()
    }

    /// Delivers all that was held back.
    pub fn deliver(&self) {
        for connection in &mut lock(&self.state).connections {
            for bytes in connection.held.take().into_iter().flatten() {
                // The server may have given up on it.
                let _ = connection.server.write_all(&bytes);
            }
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(mut said: TcpStream, number: usize, shared: &Mutex<State>) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(length @ 1..) = said.read(&mut buffer) {
        let mut state = lock(shared);
        let holding = state.holding;
        let Connection { server, held } = &mut state.connections[number];
        if holding || held.is_some() {
            held.get_or_insert_default().push_back(buffer[..length].to_vec());
        } else if server.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let state = lock(shared);
    // What is held back is still to come.
    if state.connections[number].held.is_none() {
        let _ = state.connections[number].server.shutdown(Shutdown::Both);
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}
