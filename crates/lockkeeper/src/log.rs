//! Words for the log from threads that must not be held up: a subscriber may write to a pipe whose reader stands still,
//! and renewals must not wait for it.

use crate::lane;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

/// How many events wait for a slow subscriber before further ones are left out: a burst of all locks of a busy keeper,
/// in less memory than anybody notices.
const MOST: usize = 1024;

type Words = Box<dyn FnOnce() + Send>;

thread_local! {
    /// This thread's writer; it ends with the thread. Nothing here is shared with other threads, so a fork cannot leave
    /// it locked.
    static WRITER: RefCell<Option<Writer>> = const { RefCell::new(None) };
}

struct Writer {
    words: SyncSender<Words>,
    dropped: Arc<AtomicU64>,
}

/// Says it on this thread or, where that could delay renewals, on one that only writes. `words` is one `tracing` event.
pub(crate) fn say(words: impl FnOnce() + Send + 'static) {
    if !lane::is_upkeep() {
        return words();
    }
    let mut words: Option<Words> = Some(Box::new(words));
    // Fails at the very end of a thread, when nothing depends on it any more.
    let _ = WRITER.try_with(|writer| {
        let mut writer = writer.borrow_mut();
        if writer.is_none() {
            *writer = Writer::start();
        }
        if let Some(there) = &*writer
            && !there.send(&mut words)
        {
            *writer = None;
        }
    });
    // Without a thread to be had, the log may hold up this one.
    if let Some(words) = words {
        words();
    }
}

impl Writer {
    fn start() -> Option<Self> {
        let (words, queue) = sync_channel(MOST);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Self { words, dropped: dropped.clone() };
        let thread = std::thread::Builder::new().name("lockkeeper-log".into());
        thread.spawn(move || write(&queue, &dropped)).ok()?;
        Some(writer)
    }

    /// Whether the writer is still there; events beyond the most that may wait are counted instead.
    fn send(&self, words: &mut Option<Words>) -> bool {
        let Some(words) = words.take() else { return true };
        match self.words.try_send(words) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                true
            }
            // The subscriber has panicked.
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

fn write(queue: &Receiver<Words>, dropped: &AtomicU64) {
    while let Ok(words) = queue.recv() {
        words();
        let dropped = dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(dropped, "the log was too slow: events were left out");
        }
    }
}
