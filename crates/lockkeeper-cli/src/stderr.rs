//! Writing to stderr: a thread with a bounded queue, so that a reader that stops reading never blocks the lock's
//! keeper.
//!
//! Lines keep their order. What does not fit is left out, and a line says how many were. At the end of the program the
//! thread has a short time to write the rest.

use crate::output;
use serde_json::json;
use std::collections::VecDeque;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How much may wait to be written: hours of events, or a second of the busiest log, and still little memory.
const MOST: usize = 256 * 1024;
/// How long the rest may take at the end: a working reader takes it at once.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long to wait so that our lines come before the command's.
const A_MOMENT: Duration = Duration::from_millis(100);

/// Whether everything on stderr is JSON.
static JSON: AtomicBool = AtomicBool::new(false);
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// From now on every line is a JSON object, also those of the log.
pub(crate) fn speak_json() {
    JSON.store(true, Ordering::Relaxed);
}

/// Whether every line is a JSON object.
pub(crate) fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Writes text as it is, as soon as the reader takes it.
pub(crate) fn write(text: String) {
    let queue = QUEUE.get_or_init(Queue::default);
    if queue.serve() {
        queue.put(text);
    } else {
        put_down(&text);
    }
}

/// Waits a moment until our lines are written, because the command is about to write to stderr too.
pub(crate) fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.wait(A_MOMENT);
    }
}

/// Gives what is still to be written a short time.
pub(crate) fn finish() {
    if let Some(queue) = QUEUE.get() {
        queue.wait(LAST_WORDS);
    }
}

/// Lets this thread write from the background: a terminal with `tostop` would stop our whole process for it.
pub(crate) fn write_from_background() {
    let mut set = nix::sys::signal::SigSet::empty();
    set.add(nix::sys::signal::Signal::SIGTTOU);
    // Cannot fail for a valid set.
    let _ = set.thread_block();
}

/// A closed stderr is not an error.
fn put_down(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

#[derive(Debug)]
enum Item {
    Text(String),
    /// So many did not fit.
    LeftOut(u64),
}

#[derive(Debug, Default)]
struct Queue {
    inside: Mutex<Inside>,
    changed: Condvar,
    /// Whether the thread could be started.
    thread: OnceLock<bool>,
}

#[derive(Debug, Default)]
struct Inside {
    items: VecDeque<Item>,
    bytes: usize,
    /// Something was taken out and is being written.
    writing: bool,
}

impl Queue {
    /// Makes sure that there is a thread; `false` when there cannot be one.
    fn serve(&'static self) -> bool {
        *self.thread.get_or_init(|| {
            let thread = std::thread::Builder::new().name("stderr".to_owned());
            thread.spawn(|| self.write_all(put_down)).is_ok()
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, text: String) {
        let mut inside = self.lock();
        let full = inside.bytes + text.len() > MOST;
        match inside.items.back_mut() {
            // Once lines were left out, the next one comes only after the line that says so.
            Some(Item::LeftOut(n)) if full => *n += 1,
            _ if full => inside.items.push_back(Item::LeftOut(1)),
            _ => {
                inside.bytes += text.len();
                inside.items.push_back(Item::Text(text));
            }
        }
        drop(inside);
        self.changed.notify_all();
    }

    /// Writes whatever comes, for ever.
    fn write_all(&self, out: impl Fn(&str)) {
        write_from_background();
        loop {
            let mut inside = self.lock();
            inside.writing = false;
            self.changed.notify_all();
            let item = loop {
                match inside.items.pop_front() {
                    Some(item) => break item,
                    None => inside = self.changed.wait(inside).unwrap_or_else(PoisonError::into_inner),
                }
            };
            inside.writing = true;
            drop(inside);
            match item {
                Item::Text(text) => {
                    out(&text);
                    self.lock().bytes -= text.len();
                }
                Item::LeftOut(lines) => out(&left_out(lines)),
            }
        }
    }

    fn wait(&self, limit: Duration) {
        let busy = |inside: &mut Inside| inside.writing || !inside.items.is_empty();
        // The caller goes on after `limit`, whether or not the queue is empty.
        let _ = self.changed.wait_timeout_while(self.lock(), limit, busy);
    }
}

fn left_out(lines: u64) -> String {
    let text = format!("{lines} lines are missing here, because stderr was not read in time");
    if is_json() {
        return output::event("dropped", json!({ "lines": lines, "message": text }));
    }
    format!("lockkeeper: {text}\n")
}

/// Where the log goes: each write is one line of it.
#[derive(Debug)]
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        if is_json() {
            write(output::event("log", json!({ "message": text.trim_end() })));
        } else {
            write(text.into_owned());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};

    #[test]
    fn what_does_not_fit_is_counted_where_it_is_missing() {
        let queue = Arc::new(Queue::default());
        let (go, gate) = mpsc::channel::<()>();
        let (into, written) = mpsc::channel();
        let gate = Mutex::new(gate);
        let writer = queue.clone();
        std::thread::spawn(move || {
            writer.write_all(|text| {
                let _ = gate.lock().unwrap().recv();
                let _ = into.send(text.to_owned());
            });
        });
        queue.put("first\n".to_owned());
        queue.put("x".repeat(MOST - 6));
        queue.put("too much\n".to_owned());
        queue.put("too much\n".to_owned());
        queue.wait(Duration::from_millis(1));
        for _ in 0..3 {
            go.send(()).unwrap();
        }
        assert_eq!(written.recv().unwrap(), "first\n");
        assert_eq!(written.recv().unwrap().len(), MOST - 6);
        assert!(written.recv().unwrap().contains("2 lines are missing here"));
        queue.put("last\n".to_owned());
        go.send(()).unwrap();
        assert_eq!(written.recv().unwrap(), "last\n");
        queue.wait(Duration::from_secs(30));
        assert!(queue.lock().items.is_empty());
    }
}
