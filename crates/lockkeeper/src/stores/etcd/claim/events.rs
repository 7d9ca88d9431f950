//! What `tend` does: watches what is before the claims that wait and were asked about here, and wakes them. Locks are right
//! without it, only slower: a renewal finds out by itself.
//!
//! No event grants anything, and none says that a lock is lost: the renewal after it does.

use super::{Claims, News};
use crate::clock::system_now;
use crate::error::Error;
use crate::name::LockName;
use crate::store::{Claim, Event, Sink};
use crate::stores::etcd::core::{Before, Watch};
use crate::stores::etcd::proto::WatchAnswer;
use crate::stores::etcd::stream::{self, Stream, next_answer, pause, warn};
use crate::stores::shared::lock;
use futures_util::future::BoxFuture;
use std::collections::HashMap;
use std::time::Duration;

/// How often claims are looked for that are not asked about here any more.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// A claim that nothing was asked about here for so long waits no more, or is kept alive through another instance.
const ELSEWHERE: Duration = Claim::MAX_WAITER_LEASE.saturating_mul(2);

/// The state of `tend`.
struct Events<'a> {
    claims: &'a Claims,
    sink: Sink,
    stream: Option<Box<Stream>>,
    opening: Option<BoxFuture<'static, Result<Box<Stream>, Error>>>,
    failures: u32,
    /// How often in a row the server has refused a watch.
    refused: u32,
    next_id: i64,
    /// What is watched, by the number of its watch.
    targets: HashMap<i64, Target>,
}

/// What a claim waits for.
struct Target {
    own: Vec<u8>,
    name: LockName,
    before: Before,
    range: [Vec<u8>; 2],
    /// Everything up to this revision has been seen.
    revision: i64,
}

impl Claims {
    /// Watches for as long as the store lives.
    pub(in crate::stores::etcd) async fn tend(&self, sink: Sink) {
        let Some(mut inbox) = self.news.take() else { return };
        let (next_id, targets) = (stream::FIRST, HashMap::new());
        let mut events =
            Events { claims: self, sink, stream: None, opening: None, failures: 0, refused: 0, next_id, targets };
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        loop {
            events.open();
            tokio::select! {
                answer = next_answer(&mut events.stream) => match answer {
                    Some(answer) => events.answer(answer),
                    None => events.stream = None,
                },
                opened = opened(&mut events.opening) => events.opened(opened),
                Some(news) = inbox.recv() => match news {
                    News::Watch(watch) => events.watch(watch),
                    News::Forget(own) => events.forget(&own),
                },
                _ = sweep.tick() => events.sweep(),
            }
        }
    }
}

impl Events<'_> {
    /// Begins to open a stream, if one is needed.
    fn open(&mut self) {
        if self.stream.is_none() && self.opening.is_none() && !self.targets.is_empty() {
            let pause = pause(self.failures, self.refused);
            self.opening = Some(Box::pin(Stream::open(self.claims.core.clone(), pause)));
        }
    }

    /// A new stream goes on where the last one has ended: what happened meanwhile is told then.
    fn opened(&mut self, opened: Result<Box<Stream>, Error>) {
        self.opening = None;
        match opened {
            Ok(stream) => {
                for (id, target) in &self.targets {
                    stream.create(*id, target.range.clone(), target.revision, true);
                }
                (self.stream, self.failures) = (Some(stream), 0);
            }
            Err(error) => {
                warn(error, self.failures);
                self.failures = self.failures.saturating_add(1);
            }
        }
    }

    fn watch(&mut self, watch: Watch) {
        self.forget(&watch.own);
        let Watch { name, own, before, revision, .. } = watch;
        let Some(range) = before.range() else { return };
        self.next_id += 1;
        if let Some(stream) = &self.stream {
            stream.create(self.next_id, range.clone(), revision, true);
        }
        self.targets.insert(self.next_id, Target { own, name, before, range, revision });
    }

    fn forget(&mut self, own: &[u8]) {
        for (id, _) in self.targets.extract_if(|_, target| target.own == own) {
            if let Some(stream) = &self.stream {
                stream.cancel(id);
            }
        }
    }

    fn answer(&mut self, answer: WatchAnswer) {
        if answer.cancelled && answer.created && answer.compact_revision == 0 {
            // The server does not say which watch it refuses. Most often the login has ended that the stream began with.
            if let Some(stream) = self.stream.take() {
                self.claims.core.rpc.log_out(&stream.connection);
            }
            self.refused = self.refused.saturating_add(1);
            return;
        }
        if answer.created && self.targets.contains_key(&answer.watch_id) {
            self.refused = 0;
        }
        let mut gone = answer.events.into_iter().filter(|event| event.is_delete()).filter_map(|event| event.kv);
        let Some(target) = self.targets.get_mut(&answer.watch_id) else { return };
        // A watch whose beginning was compacted away is ended by the server: what was missed is asked for.
        if answer.cancelled || gone.any(|kv| target.before.left(&kv.key)) {
            self.wake(answer.watch_id);
        }
    }

    fn wake(&mut self, id: i64) {
        let Some(target) = self.targets.remove(&id) else { return };
        if let Some(stream) = &self.stream {
            stream.cancel(id);
        }
        if let Some(waiting) = lock(&self.claims.waiting).get_mut(&target.own) {
            waiting.watched = false;
        }
        self.sink.tell(Event::Wake(target.name));
    }

    fn sweep(&mut self) {
        let now = system_now();
        let mut waiting = lock(&self.claims.waiting);
        let old: Vec<_> = waiting.extract_if(|_, waiting| now.since(waiting.asked) > ELSEWHERE).collect();
        drop(waiting);
        old.into_iter().for_each(|(own, _)| self.forget(&own));
    }
}

async fn opened(opening: &mut Option<BoxFuture<'static, Result<Box<Stream>, Error>>>) -> Result<Box<Stream>, Error> {
    match opening {
        Some(opening) => opening.await,
        None => std::future::pending().await,
    }
}
