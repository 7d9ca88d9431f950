//! A proxy to a Redis server: slow in one direction, and slower still for pushed messages.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Passes connections on to a loopback port, and holds back what the server says.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    held: Arc<AtomicU64>,
}

/// A part of the server's words, and when it is due.
type Part = (Instant, Vec<u8>);

impl Proxy {
    /// Published messages are held back for `push_delay`, and overtaken by answers, which are for `delay`.
    pub fn new(to: u16, push_delay: Duration, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let port = listener.local_addr().expect("it is bound").port();
        let held = Arc::new(AtomicU64::new(0));
        let count = held.clone();
        // The thread waits for connections until the process ends.
        thread::spawn(move || {
            for caller in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let _ = (caller.set_nodelay(true), server.set_nodelay(true));
                let Ok((mut said, mut to_server)) = caller.try_clone().and_then(|c| Ok((c, server.try_clone()?)))
                else {
                    continue;
                };
                thread::spawn(move || {
                    pass(&mut said, |bytes| to_server.write_all(bytes));
                    let _ = to_server.shutdown(Shutdown::Both);
                });
                slow(server, caller, [delay, push_delay], count.clone());
            }
        });
        Self { port, held }
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many messages were held back.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

/// Passes on what comes, each reply after its delay.
fn slow(mut from: TcpStream, to: TcpStream, delays: [Duration; 2], held: Arc<AtomicU64>) {
    let to = Arc::new(Mutex::new(to));
    let [answers, messages] = [(); 2].map(|()| {
        let (sender, parts) = channel::<Part>();
        let to = to.clone();
        thread::spawn(move || deliver(parts, &to));
        sender
    });
    thread::spawn(move || {
        let mut unread = Vec::new();
        pass(&mut from, |bytes| {
            unread.extend_from_slice(bytes);
            while let Some(length) = reply_length(&unread) {
                let reply: Vec<u8> = unread.drain(..length).collect();
                let message = reply.starts_with(b">") && reply.windows(9).any(|part| part == b"\r\nmessage");
                held.fetch_add(u64::from(message), Ordering::Relaxed);
                let due = Instant::now() + delays[usize::from(message)];
                let queue = if message { &messages } else { &answers };
                queue.send((due, reply)).map_err(std::io::Error::other)?;
            }
            Ok(())
        });
    });
}

fn deliver(parts: Receiver<Part>, to: &Mutex<TcpStream>) {
    for (due, bytes) in parts {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.lock().unwrap_or_else(PoisonError::into_inner).write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Both);
}

fn pass(from: &mut TcpStream, mut on: impl FnMut(&[u8]) -> std::io::Result<()>) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if on(&buffer[..length]).is_err() {
            break;
        }
    }
}

/// How long the first reply is (RESP, second or third version), once all of it is there.
fn reply_length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|end| end == b"\r\n")? + 2;
    let count = || std::str::from_utf8(&bytes[1..line - 2]).ok()?.parse::<i64>().ok()?.try_into().ok();
    let parts: usize = match bytes[0] {
        // Of a length of its own; none at all is written as a negative one.
        b'$' | b'!' | b'=' => {
            let length = line + count().map_or(0, |length: usize| length + 2);
            return (bytes.len() >= length).then_some(length);
        }
        b'*' | b'~' | b'>' => count().unwrap_or(0),
        b'%' | b'|' => 2 * count().unwrap_or(0),
        _ => 0,
    };
    (0..parts).try_fold(line, |length, _| Some(length + reply_length(&bytes[length..])?))
}

#[cfg(test)]
mod tests {
    use super::reply_length;

    #[test]
    fn replies_are_told_apart() {
        for whole in [
            "+OK\r\n",
            ":12\r\n",
            "$-1\r\n",
            "$3\r\na\r\n\r\n",
            "*2\r\n:1\r\n$1\r\na\r\n",
            "%1\r\n+a\r\n*-1\r\n",
            ">3\r\n$7\r\nmessage\r\n$4\r\nlk:k\r\n$1\r\nx\r\n",
        ] {
            assert_eq!(reply_length(format!("{whole}+next\r\n").as_bytes()), Some(whole.len()), "{whole:?}");
            for end in 0..whole.len() {
                assert_eq!(reply_length(&whole.as_bytes()[..end]), None, "{:?}", &whole[..end]);
            }
        }
    }
}
