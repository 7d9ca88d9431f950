//! Keys, as a terminal sends them.

use super::Happened;
use crate::exit::Failure;
use rustix::io::Errno;
use rustix::process::Signal;
use tokio::sync::mpsc::UnboundedSender;

/// What an operator pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    Enter,
    Escape,
    Backspace,
    Char(char),
}

/// Reads keys for as long as the program lives. A thread of its own: a terminal's descriptor is shared with other
/// programs, so it must not be made non-blocking.
pub(super) fn listen(into: UnboundedSender<Happened>) -> Result<(), Failure> {
    let thread = std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
        let mut buffer = [0; 256];
        loop {
            match rustix::io::read(std::io::stdin(), &mut buffer) {
                Err(Errno::INTR) => {}
                // The terminal is gone.
                Ok(0) | Err(_) => {
                    let _ = into.send(Happened::Signal(Signal::HUP));
                    return;
                }
                Ok(n) => {
                    for key in read(&buffer[..n]) {
                        let _ = into.send(Happened::Key(key));
                    }
                }
            }
        }
    });
    thread.map(drop).map_err(|e| Failure::system(format!("cannot start a thread: {e}")))
}

/// The keys in what one read brought. An escape with nothing behind it is the key Escape: a terminal sends the bytes of
/// an arrow at once.
fn read(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let text = String::from_utf8_lossy(bytes);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\x1b' if rest.next_if(|c| matches!(c, '[' | 'O')).is_some() => {
                // Numbers may stand before the letter that names the key.
                match rest.find(|c| !c.is_ascii_digit() && *c != ';') {
                    Some('A') => keys.push(Key::Up),
                    Some('B') => keys.push(Key::Down),
                    _ => {}
                }
            }
            '\x1b' => keys.push(Key::Escape),
            '\r' | '\n' => keys.push(Key::Enter),
            '\x7f' | '\x08' => keys.push(Key::Backspace),
            c if c.is_control() => {}
            c => keys.push(Key::Char(c)),
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        assert_eq!(read(b"q\r\x7f"), [Key::Char('q'), Key::Enter, Key::Backspace]);
        assert_eq!(read(b"\x1b"), [Key::Escape]);
        assert_eq!(read(b"\x1b[A\x1bOB\x1b[1;5A"), [Key::Up, Key::Down, Key::Up]);
        assert_eq!(read(b"\x1b[5~\x1b[\x01x"), [Key::Char('x')], "keys that mean nothing here");
        assert_eq!(read("ü\u{9b}".as_bytes()), [Key::Char('ü')]);
    }
}
