//! A store that misbehaves by itself: it panics, tells strange events, declares what is not so, runs code on the keeper's
//! thread. What a network does to calls is [`Faults`](lockkeeper::testing::Faults), which goes round or inside this one.

use async_trait::async_trait;
use lockkeeper::store::{Attempt, Break, Claim, Cursor, Event, Page, Record, Release, Renewal, Sink};
use lockkeeper::stores::memory::MemoryStore;
use lockkeeper::{Error, ErrorKind, LockName, Register, Result, Store, StoreInfo, Token};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What a test slips into the stream of events.
pub enum Word {
    Event(Event),
    Act(Box<dyn FnOnce() + Send>),
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Word")
    }
}

struct Hook(Box<dyn FnMut() + Send>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

/// A store with extra events and with methods that panic on request.
#[derive(Debug)]
pub struct Misbehaving {
    inner: Arc<dyn Store>,
    said: tokio::sync::Mutex<UnboundedReceiver<Word>>,
    say: UnboundedSender<Word>,
    look: Mutex<Option<Hook>>,
    asked: Mutex<Option<Hook>>,
    /// How many milliseconds an acquire takes to be answered.
    pub slow: AtomicU64,
    /// Whether it says that waiters queue in it.
    pub queue: bool,
    /// Whether it says that calls reach it in order.
    pub ordered: bool,
    /// Every renewal is answered that the file is somebody else's.
    pub foreign: AtomicBool,
    /// The scheme it goes by.
    pub scheme: &'static str,
    pub renew_panics: AtomicBool,
    pub release_panics: AtomicBool,
    pub acquire_panics: AtomicBool,
    pub renewals: AtomicU64,
    /// The claims of every acquire and release, in order, and whether it was a release.
    pub seen: Mutex<Vec<(bool, Claim)>>,
}

impl Misbehaving {
    pub fn new(inner: MemoryStore) -> Self {
        Self::over(Arc::new(inner))
    }

    pub fn over(inner: Arc<dyn Store>) -> Self {
        let (say, said) = unbounded_channel();
        Self {
            inner,
            said: tokio::sync::Mutex::new(said),
            say,
            look: Mutex::default(),
            asked: Mutex::default(),
            slow: AtomicU64::new(0),
            queue: true,
            ordered: false,
            foreign: AtomicBool::new(false),
            scheme: "memory",
            renew_panics: AtomicBool::new(false),
            release_panics: AtomicBool::new(false),
            acquire_panics: AtomicBool::new(false),
            renewals: AtomicU64::new(0),
            seen: Mutex::default(),
        }
    }

    /// The next event is this one.
    pub fn say(&self, event: Event) {
        self.say.send(Word::Event(event)).unwrap();
    }

    /// Runs on the keeper's own thread, at its next look for events.
    pub fn on_thread(&self, act: impl FnOnce() + Send + 'static) {
        self.say.send(Word::Act(Box::new(act))).unwrap();
    }

    /// Runs on the keeper's own thread whenever it has woken up, before it looks at its timers.
    pub fn on_wake(&self, act: impl FnMut() + Send + 'static) {
        *self.look.lock().unwrap() = Some(Hook(Box::new(act)));
    }

    /// Runs within the next acquire, before anything else of it.
    pub fn on_acquire(&self, act: impl FnMut() + Send + 'static) {
        *self.asked.lock().unwrap() = Some(Hook(Box::new(act)));
    }

    /// The keeper's own thread dies of a panic.
    pub fn kill(&self) {
        self.on_thread(|| std::panic::resume_unwind(Box::new("injected")));
    }

    fn saw(&self, release: bool, claims: &[Claim]) {
        self.seen.lock().unwrap().extend(claims.iter().map(|c| (release, c.clone())));
    }
}

/// Panics with a message that is not printed as a failure of the test.
fn break_down(which: &AtomicBool) {
    if which.load(Ordering::SeqCst) {
        std::panic::resume_unwind(Box::new("injected"));
    }
}

#[async_trait]
impl Store for Misbehaving {
    fn info(&self) -> StoreInfo {
        let mut info = self.inner.info();
        info.scheme = self.scheme;
        (info.queue, info.ordered) = (self.queue, self.ordered);
        info
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        self.saw(false, claims);
        let hook = self.asked.lock().unwrap().take();
        if let Some(mut hook) = hook {
            (hook.0)();
        }
        break_down(&self.acquire_panics);
        let answers = self.inner.try_acquire(claims).await;
        std::thread::sleep(Duration::from_millis(self.slow.load(Ordering::SeqCst)));
        answers
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        break_down(&self.renew_panics);
        if self.foreign.load(Ordering::SeqCst) {
            let error = || Error::new(ErrorKind::Foreign, "the file was replaced (injected)");
            return claims.iter().map(|_| Err(error())).collect();
        }
        self.inner.renew(claims).await
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        self.saw(true, claims);
        break_down(&self.release_panics);
        self.inner.release(claims).await
    }

    async fn tend(&self, events: Sink) {
        let mut said = self.said.lock().await;
        let look = std::future::poll_fn(|_| {
            if let Some(Hook(act)) = &mut *self.look.lock().unwrap() {
                act();
            }
            std::task::Poll::<()>::Pending
        });
        let say = async {
            while let Some(word) = said.recv().await {
                match word {
                    Word::Event(event) => events.tell(event),
                    Word::Act(act) => act(),
                }
            }
        };
        tokio::join!(look, say, self.inner.tend(events.clone()));
    }

    fn registers(&self) -> Option<&dyn Register> {
        self.inner.registers()
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        self.inner.inspect(name).await
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.inner.list(prefix, cursor).await
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.inner.break_lock(name, token).await
    }

    async fn checks(&self, ttl: std::time::Duration) -> Vec<lockkeeper::store::Check> {
        self.inner.checks(ttl).await
    }
}
