//! The store behind a gateway, with every answer counted. The gateway has no engine, which counts for other clients.

use super::Exporter;
use async_trait::async_trait;
use lockkeeper::register::{Entry, Pass, Register, Written};
use lockkeeper::store::{Attempt, Break, Check, Claim, Cursor, Page, Record, Release, Renewal, Sink};
use lockkeeper::{LockName, Result, Store, StoreInfo, Token};
use metrics::{Counter, counter, with_local_recorder};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// No definite answer: nothing is known.
const ERROR: &str = "error";

/// What a store can answer, besides an error.
const ANSWERS: [(&str, &[&str]); 9] = [
    ("acquire", &["granted", "held", "cancelled"]),
    ("renew", &["renewed", "waiting", "granted", "lost"]),
    ("release", &["released", "not-held"]),
    ("inspect", &["answered"]),
    ("list", &["answered"]),
    ("break", &["broken", "not-held"]),
    ("register-enter", &["entered", "stale"]),
    ("register-write", &["written", "stale"]),
    ("register-read", &["answered"]),
];

/// A store whose answers are counted.
pub(crate) struct Counted {
    store: Arc<dyn Store>,
    /// By operation and answer.
    counters: HashMap<(&'static str, &'static str), Counter>,
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl Counted {
    /// Every counter exists from here on, at zero.
    pub(crate) fn new(store: Arc<dyn Store>, exporter: &Exporter) -> Self {
        let mut counters = HashMap::new();
        for (op, answers) in ANSWERS {
            for answer in answers.iter().chain([&ERROR]).copied() {
                let counter = with_local_recorder(
                    &*exporter.0,
                    || counter!("lockkeeper_gateway_answers_total", "op" => op, "answer" => answer),
                );
                counter.increment(0);
                counters.insert((op, answer), counter);
            }
        }
        Self { store, counters }
    }

    fn one<T>(&self, op: &'static str, answer: Result<T>, word: impl Fn(&T) -> &'static str) -> Result<T> {
        self.all(op, std::slice::from_ref(&answer), word);
        answer
    }

    fn all<T>(&self, op: &'static str, answers: &[Result<T>], word: impl Fn(&T) -> &'static str) {
        for answer in answers {
            let word = answer.as_ref().map_or(ERROR, &word);
            debug_assert!(self.counters.contains_key(&(op, word)), "{op} {word}");
            if let Some(counter) = self.counters.get(&(op, word)) {
                counter.increment(1);
            }
        }
    }
}

#[async_trait]
impl Store for Counted {
    fn info(&self) -> StoreInfo {
        self.store.info()
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        let answers = self.store.try_acquire(claims).await;
        self.all("acquire", &answers, |answer| match answer {
            Attempt::Granted(_) => "granted",
            Attempt::Held(_) => "held",
            Attempt::Cancelled => "cancelled",
        });
        answers
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let answers = self.store.renew(claims).await;
        self.all("renew", &answers, |answer| match answer {
            Renewal::Renewed(_) => "renewed",
            Renewal::Waiting(_) => "waiting",
            Renewal::Granted(_) => "granted",
            Renewal::Lost(_) => "lost",
        });
        answers
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let answers = self.store.release(claims).await;
        self.all("release", &answers, |answer| match answer {
            Release::Released => "released",
            Release::NotHeld => "not-held",
        });
        answers
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        self.one("inspect", self.store.inspect(name).await, |_| "answered")
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.one("list", self.store.list(prefix, cursor).await, |_| "answered")
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.one("break", self.store.break_lock(name, token).await, |answer| match answer {
            Break::Broken(_) => "broken",
            Break::NotHeld => "not-held",
        })
    }

    async fn tend(&self, events: Sink) {
        self.store.tend(events).await;
    }

    fn registers(&self) -> Option<&dyn Register> {
        self.store.registers().is_some().then_some(self)
    }

    async fn checks(&self, ttl: Duration) -> Vec<Check> {
        self.store.checks(ttl).await
    }
}

impl Counted {
    /// Handed out as registers only when the store has some.
    fn inner(&self) -> Result<&dyn Register> {
        let none = || lockkeeper::Error::unsupported(format!("{} keeps no registers", self.store.info().scheme));
        self.store.registers().ok_or_else(none)
    }
}

#[async_trait]
impl Register for Counted {
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        self.one("register-enter", self.inner()?.enter(key, pass).await, |answer| match answer {
            Entry::Entered(_) => "entered",
            Entry::Stale { .. } => "stale",
        })
    }

    async fn write(&self, key: &LockName, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<Written> {
        self.one("register-write", self.inner()?.write(key, pass, value, ttl).await, |answer| match answer {
            Written::Written => "written",
            Written::Stale { .. } => "stale",
        })
    }

    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        self.one("register-read", self.inner()?.read(key).await, |_| "answered")
    }
}
