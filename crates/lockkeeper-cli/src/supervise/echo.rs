//! The command's output through this process: passed on as it comes, and seen on the way.
//!
//! A thread for each stream, so that a reader that stops reading stops the command, as without this, and never what
//! watches over the lock.

use rustix::io::Errno;
use rustix::stdio;
use std::fmt;
use std::io::{PipeReader, PipeWriter, Read, Result};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// As much as a pipe holds.
const PART: usize = 64 * 1024;
/// How long to wait before another try to write where a write would block: another process has set our output so.
const FULL: Duration = Duration::from_millis(5);

/// One of the two streams of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// What looks at the output: it is called in the order of the output, and must not block.
type Seen = Arc<dyn Fn(Stream, &[u8]) + Send + Sync>;

/// How the command's output is passed on.
#[derive(Clone)]
pub(crate) struct Echo {
    seen: Seen,
    /// Read to the end, even when our own output has lost its reader.
    reads_on: bool,
}

impl Echo {
    /// Output that `seen` looks at. Without a reader of our own output the command has none either.
    pub(crate) fn new(seen: impl Fn(Stream, &[u8]) + Send + Sync + 'static) -> Self {
        Self { seen: Arc::new(seen), reads_on: false }
    }

    /// Lets `seen` have all of it, also when our own output has lost its reader.
    pub(crate) fn reading_on(self) -> Self {
        Self { reads_on: true, ..self }
    }

    /// Begins: the ends for the command to write into, and what tells when both are at their end.
    pub(super) fn begin(&self) -> Result<(PipeWriter, PipeWriter, Echoing)> {
        let (running, ended) = mpsc::channel(1);
        let stdout = self.follow(Stream::Stdout, running.clone())?;
        let stderr = self.follow(Stream::Stderr, running)?;
        Ok((stdout, stderr, Echoing { ended }))
    }

    fn follow(&self, stream: Stream, running: mpsc::Sender<()>) -> Result<PipeWriter> {
        let (from, into) = std::io::pipe()?;
        let echo = self.clone();
        let thread = std::thread::Builder::new().name("output".to_owned());
        thread.spawn(move || {
            echo.pass_on(stream, from);
            drop(running);
        })?;
        Ok(into)
    }

    fn pass_on(&self, stream: Stream, mut from: PipeReader) {
        crate::stderr::write_from_background();
        let mut part = vec![0; PART];
        let mut has_reader = true;
        while let Ok(n @ 1..) = from.read(&mut part) {
            (self.seen)(stream, &part[..n]);
            has_reader = has_reader && write(stream, &part[..n]);
            if !has_reader && !self.reads_on {
                return;
            }
        }
    }
}

impl fmt::Debug for Echo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Echo").field("reads_on", &self.reads_on).finish_non_exhaustive()
    }
}

/// Two threads at work.
#[derive(Debug)]
pub(super) struct Echoing {
    ended: mpsc::Receiver<()>,
}

impl Echoing {
    /// Resolves when all output was passed on. Cancel safe.
    pub(super) async fn ended(&mut self) {
        self.ended.recv().await;
    }
}

/// Writes to our own stream; `false` when it has no reader any more.
pub(crate) fn write(stream: Stream, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let written = match stream {
            Stream::Stdout => rustix::io::write(stdio::stdout(), bytes),
            Stream::Stderr => rustix::io::write(stdio::stderr(), bytes),
        };
        match written {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => std::thread::sleep(FULL),
            Err(_) => return false,
        }
    }
    true
}
