//! What lies between a keeper and the store: requests, replies and hints, each on its way until the schedule delivers
//! or loses it.

use crate::truth::{News, Time, Truth, Way};
use async_trait::async_trait;
use lockkeeper::store::{
    Attempt, Break, Claim, Cursor, Event, Guarantee, Page, Record, Release, Renewal, Sink, Store, StoreInfo,
};
use lockkeeper::{Error, LockName, Result, Token};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// The store and all messages, shared by the keepers' stores and the schedule.
#[derive(Clone, Default)]
pub struct World(Arc<Mutex<Inner>>);

#[derive(Default)]
pub struct Inner {
    pub now: Time,
    pub truth: Truth,
    pub messages: Vec<Message>,
    /// Where each keeper hears events.
    pub sinks: Vec<Option<Sink>>,
    /// Which claims each call of a release was for, sent or not arrived yet.
    pub releases_sent: Vec<lockkeeper::HolderId>,
    /// Holders and keepers that a hint told of their end; it may have come late, and be about claims before these.
    pub told_over: Vec<lockkeeper::HolderId>,
    pub sessions_over: Vec<usize>,
    /// Calls whose callers hear nothing: a dropped sender would tell them.
    silent: Vec<oneshot::Sender<Answers>>,
    /// Holders in the order in which they called: the story numbers them so. Their ids count through all schedules of the
    /// process, those of other threads too.
    callers: Vec<lockkeeper::HolderId>,
    /// The steps in words, when they are wanted.
    pub story: Option<Vec<String>>,
}

pub struct Message {
    pub sent: Time,
    pub what: What,
}

pub enum What {
    Request { op: Op, keeper: usize, claims: Vec<Claim>, reply: Option<oneshot::Sender<Answers>>, copy: bool },
    Reply { keeper: usize, answers: Answers, reply: oneshot::Sender<Answers> },
    Hint { keeper: usize, event: Event },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Acquire,
    Renew,
    Release,
}

pub enum Answers {
    Acquire(Vec<Result<Attempt>>),
    Renew(Vec<Result<Renewal>>),
    Release(Vec<Result<Release>>),
}

impl World {
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Also after a panic.
    pub fn lock_anyway(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call(&self, op: Op, keeper: usize, claims: &[Claim]) -> Option<Answers> {
        let (reply, answer) = oneshot::channel();
        {
            let mut inner = self.lock();
            for claim in claims {
                if inner.story.is_some() && !inner.callers.contains(&claim.holder) {
                    inner.callers.push(claim.holder);
                }
            }
            let said = inner.said(claims);
            inner.say(|| format!("keeper {keeper} sends {op:?} {said}"));
            if op == Op::Release {
                inner.releases_sent.extend(claims.iter().map(|claim| claim.holder));
            }
            let what = What::Request { op, keeper, claims: claims.to_vec(), reply: Some(reply), copy: false };
            inner.send(what);
        }
        answer.await.ok()
    }
}

impl Inner {
    /// Claims in words, when the story is wanted.
    fn said(&self, claims: &[Claim]) -> String {
        if self.story.is_some() { Claims(claims, &self.callers).to_string() } else { String::new() }
    }

    pub fn say(&mut self, words: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(format!("{:>11} {}", self.now, words()));
        }
    }

    fn send(&mut self, what: What) {
        self.messages.push(Message { sent: self.now, what });
    }

    /// A message arrives. A hint goes to its sink once the world is unlocked.
    pub fn deliver(&mut self, at: usize) -> Option<(Sink, Event)> {
        let Message { sent, what } = self.messages.remove(at);
        match what {
            What::Request { op, keeper, claims, reply, copy } => {
                let answers = self.act(op, &claims, Way { keeper, copy, slow: self.now > sent });
                let said = self.said(&claims);
                self.say(|| format!("{op:?} of keeper {keeper} arrives {said}: {answers:?}"));
                if let Some(reply) = reply {
                    self.send(What::Reply { keeper, answers, reply });
                }
                None
            }
            What::Reply { keeper, answers, reply } => {
                self.say(|| format!("keeper {keeper} gets {answers:?}"));
                // Its caller may have gone.
                drop(reply.send(answers));
                None
            }
            What::Hint { keeper, event } => {
                self.say(|| format!("keeper {keeper} hears {event:?}"));
                let sink = self.sinks[keeper].clone()?;
                Some((sink, event))
            }
        }
    }

    /// A message is lost. The caller of a lost call hears of a broken connection, or nothing at all.
    pub fn lose(&mut self, at: usize, told: bool) {
        let what = self.messages.remove(at).what;
        self.say(|| format!("lost{}: {what:?}", if told { ", and its caller is told" } else { "" }));
        match what {
            What::Request { reply: Some(reply), op, claims, .. } if told => {
                drop(reply.send(Answers::broken(op, claims.len())));
            }
            What::Reply { answers, reply, .. } if told => drop(reply.send(answers.into_broken())),
            What::Request { reply: Some(reply), .. } | What::Reply { reply, .. } => self.silent.push(reply),
            What::Request { reply: None, .. } | What::Hint { .. } => {}
        }
    }

    /// The caller hears of a broken connection; its request arrives all the same.
    pub fn cut(&mut self, at: usize) {
        if let What::Request { op, claims, reply, .. } = &mut self.messages[at].what
            && let Some(reply) = reply.take()
        {
            drop(reply.send(Answers::broken(*op, claims.len())));
            let words = format!("cut off: {:?}", self.messages[at].what);
            self.say(|| words);
        }
    }

    /// A request will arrive once more.
    pub fn copy(&mut self, at: usize) {
        if let What::Request { op, keeper, claims, .. } = &self.messages[at].what {
            let what = What::Request { op: *op, keeper: *keeper, claims: claims.clone(), reply: None, copy: true };
            self.say(|| format!("copied: {what:?}"));
            self.send(what);
        }
    }

    /// The store's own time goes on: leases end, and waiters may be let in.
    pub fn store_steps(&mut self) {
        let mut news = Vec::new();
        let now = self.now;
        self.truth.advance(now, &mut news);
        self.tell(news);
    }

    pub fn hint(&mut self, keeper: usize, event: Event) {
        self.send(What::Hint { keeper, event });
    }

    fn tell(&mut self, news: Vec<News>) {
        for news in news {
            match news {
                News::Granted(keeper, holder, grant) => self.hint(keeper, Event::Granted(holder, grant)),
                News::Free(name) => (0..self.sinks.len()).for_each(|k| self.hint(k, Event::Wake(name.clone()))),
            }
        }
    }

    fn act(&mut self, op: Op, claims: &[Claim], way: Way) -> Answers {
        let (now, mut news) = (self.now, Vec::new());
        let truth = &mut self.truth;
        truth.advance(now, &mut news);
        let answers = match op {
            Op::Acquire => Answers::Acquire(claims.iter().map(|c| Ok(truth.acquire(c, way, now))).collect()),
            Op::Renew => Answers::Renew(claims.iter().map(|c| Ok(truth.renew(c, way, now))).collect()),
            Op::Release => Answers::Release(claims.iter().map(|c| Ok(truth.release(c, now, &mut news))).collect()),
        };
        truth.advance(now, &mut news);
        self.tell(news);
        answers
    }
}

impl Answers {
    fn broken(op: Op, len: usize) -> Self {
        match op {
            Op::Acquire => Self::Acquire((0..len).map(|_| Err(cut())).collect()),
            Op::Renew => Self::Renew((0..len).map(|_| Err(cut())).collect()),
            Op::Release => Self::Release((0..len).map(|_| Err(cut())).collect()),
        }
    }

    fn into_broken(self) -> Self {
        match self {
            Self::Acquire(all) => Self::broken(Op::Acquire, all.len()),
            Self::Renew(all) => Self::broken(Op::Renew, all.len()),
            Self::Release(all) => Self::broken(Op::Release, all.len()),
        }
    }
}

fn cut() -> Error {
    Error::unavailable("the connection was cut (simulated)")
}

/// What one keeper has of the store.
pub struct Line {
    pub world: World,
    pub keeper: usize,
}

#[async_trait]
impl Store for Line {
    fn info(&self) -> StoreInfo {
        let habits = self.world.lock().truth.habits;
        let mut info = StoreInfo::new("simulated", Guarantee::Primary).shared().permits().local();
        (info.queue, info.push, info.ordered) = (habits.queue, habits.push, habits.ordered);
        info.ttl(Duration::from_millis(10), Duration::from_secs(3600))
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        match self.world.call(Op::Acquire, self.keeper, claims).await {
            Some(Answers::Acquire(answers)) => answers,
            _ => Vec::new(),
        }
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        match self.world.call(Op::Renew, self.keeper, claims).await {
            Some(Answers::Renew(answers)) => answers,
            _ => Vec::new(),
        }
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        match self.world.call(Op::Release, self.keeper, claims).await {
            Some(Answers::Release(answers)) => answers,
            _ => Vec::new(),
        }
    }

    async fn tend(&self, events: Sink) {
        self.world.lock().sinks[self.keeper] = Some(events);
        std::future::pending().await
    }

    async fn inspect(&self, _: &LockName) -> Result<Option<Record>> {
        Ok(None)
    }

    async fn list(&self, _: &[u8], _: Option<&Cursor>) -> Result<Page> {
        Err(Error::unsupported("not simulated"))
    }

    async fn break_lock(&self, _: &LockName, _: Token) -> Result<Break> {
        Err(Error::unsupported("not simulated"))
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Line({})", self.keeper)
    }
}

impl fmt::Debug for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request { op, keeper, claims, .. } => write!(f, "{op:?} of keeper {keeper} ({})", claims[0].name),
            Self::Reply { keeper, answers, .. } => write!(f, "the reply to keeper {keeper}, {answers:?}"),
            Self::Hint { keeper, event } => write!(f, "the hint to keeper {keeper}, {event:?}"),
        }
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire(all) => write!(f, "{all:?}"),
            Self::Renew(all) => write!(f, "{all:?}"),
            Self::Release(all) => write!(f, "{all:?}"),
        }
    }
}

/// Claims in few words.
struct Claims<'a>(&'a [Claim], &'a [lockkeeper::HolderId]);

impl fmt::Display for Claims<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0 {
            let holder = self.1.iter().position(|caller| *caller == c.holder).unwrap_or_default();
            write!(f, "({} by #{holder}, {}, ttl {:?}, stamp {:?}", c.name, c.mode, c.ttl, c.stamp)?;
            write!(f, "{}{})", if c.queue { ", queues" } else { "" }, if c.unsettled { ", unsettled" } else { "" })?;
        }
        Ok(())
    }
}
