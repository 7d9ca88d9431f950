//! The protected thing: registers in the harness' own process, which worker processes reach through a Unix socket.
//!
//! The rule of the fenced one is written here once more, without the library's help: the harness must not trust what it
//! tests.

use crate::history::{Log, Op, Request, Served, now};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// A request as it is sent.
#[derive(Debug, Serialize, Deserialize)]
struct Ask {
    op: Op,
    name: String,
    token: u64,
    holder: String,
    want: Want,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Want {
    Enter,
    Read,
    Write { fenced: u64, naked: u64 },
}

#[derive(Debug, Default)]
struct Slot {
    seen: u64,
    by: String,
    fenced: u64,
    naked: u64,
}

#[derive(Debug)]
struct State {
    slots: HashMap<String, Slot>,
    seq: u64,
    log: Log,
}

/// The server; its threads end with the process.
#[derive(Debug)]
pub(crate) struct Registers {
    socket: PathBuf,
}

impl Registers {
    /// Serves at `socket` and writes down every request, in order.
    pub(crate) fn serve(socket: &Path, history: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(socket)?;
        let log = Log::open(history, "register.jsonl")?;
        let state = Arc::new(Mutex::new(State { slots: HashMap::new(), seq: 0, log }));
        thread::spawn(move || {
            for caller in listener.incoming().map_while(Result::ok) {
                let state = state.clone();
                // A caller that is killed leaves half a line, or none: its connection ends.
                thread::spawn(move || answer(caller, &state));
            }
        });
        Ok(Self { socket: socket.to_owned() })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

fn answer(caller: UnixStream, state: &Mutex<State>) -> io::Result<()> {
    let mut lines = BufReader::new(caller.try_clone()?).lines();
    while let Some(line) = lines.next().transpose()? {
        let ask: Ask = serde_json::from_str(&line)?;
        let request = state.lock().unwrap_or_else(PoisonError::into_inner).serve(ask)?;
        let mut text = serde_json::to_vec(&request)?;
        text.push(b'\n');
        (&caller).write_all(&text)?;
    }
    Ok(())
}

impl State {
    fn serve(&mut self, ask: Ask) -> io::Result<Request> {
        let slot = self.slots.entry(ask.name.clone()).or_default();
        // Commands do not know their holder id: the operation stands for it.
        let by = if ask.holder.is_empty() { format!("op {}", ask.op) } else { ask.holder.clone() };
        let clears = ask.token > slot.seen || (ask.token == slot.seen && by == slot.by);
        let request = match ask.want {
            Want::Enter => {
                if clears {
                    (slot.seen, slot.by) = (ask.token, by);
                }
                Request::Enter { accepted: clears }
            }
            Want::Read => Request::Read { fenced: slot.fenced, naked: slot.naked },
            Want::Write { fenced, naked } => {
                let (fenced_was, naked_was) = (slot.fenced, slot.naked);
                if clears {
                    (slot.seen, slot.by) = (ask.token, by);
                    slot.fenced += 1;
                }
                slot.naked += 1;
                Request::Write { accepted: clears, fenced_base: fenced, fenced_was, naked_base: naked, naked_was }
            }
        };
        self.seq += 1;
        let Ask { op, name, token, holder, .. } = ask;
        self.log.line(&Served { at: now(), seq: self.seq, op, name, token, holder, request: request.clone() })?;
        Ok(request)
    }
}

/// A process's connection to the registers, shared by its tasks: the server has a thread for each connection.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    stream: Arc<Mutex<BufReader<UnixStream>>>,
}

/// What one section shows at the registers.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) op: Op,
    pub(crate) name: String,
    pub(crate) token: u64,
    pub(crate) holder: String,
}

impl Client {
    pub(crate) fn connect(socket: &Path) -> io::Result<Self> {
        Ok(Self { stream: Arc::new(Mutex::new(BufReader::new(UnixStream::connect(socket)?))) })
    }

    /// Shows the token, before the first read. Whether it was let in.
    pub(crate) fn enter(&self, shown: &Shown) -> io::Result<bool> {
        Ok(matches!(self.ask(shown, Want::Enter)?, Request::Enter { accepted: true }))
    }

    /// The versions of the fenced and of the naked register.
    pub(crate) fn read(&self, shown: &Shown) -> io::Result<(u64, u64)> {
        match self.ask(shown, Want::Read)? {
            Request::Read { fenced, naked } => Ok((fenced, naked)),
            other => Err(io::Error::other(format!("not an answer to a read: {other:?}"))),
        }
    }

    /// Writes the next version to both. Whether the fence took it.
    pub(crate) fn write(&self, shown: &Shown, (fenced, naked): (u64, u64)) -> io::Result<bool> {
        Ok(matches!(self.ask(shown, Want::Write { fenced, naked })?, Request::Write { accepted: true, .. }))
    }

    fn ask(&self, shown: &Shown, want: Want) -> io::Result<Request> {
        let Shown { op, name, token, holder } = shown.clone();
        let mut text = serde_json::to_vec(&Ask { op, name, token, holder, want })?;
        text.push(b'\n');
        let mut line = String::new();
        {
            let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
            stream.get_mut().write_all(&text)?;
            stream.read_line(&mut line)?;
        }
        Ok(serde_json::from_str(&line)?)
    }
}
