//! Hints: grants handed over to waiters of this keeper, and changes of keys that it waits for. They come on the push
//! connection of the keeper, and on the connections that calls go through.

use super::RedisStore;
use super::driver::connections::{self, Connections};
use super::error::map_err;
use super::keys::Keys;
use super::layout;
use super::options::{Kind, Node, Options};
use crate::clock::Stamp;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::store::{Event, Grant, Sink};
use crate::stores::shared::timing::{ANSWER_LIMIT, MAX_PAUSE, back_off};
use crate::token::{HolderId, Token};
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How often the keeper asks a silent push connection whether it still lives.
const PING_EVERY: Duration = Duration::from_secs(5);

/// The first pause before the push connection is opened again.
const FIRST_PAUSE: Duration = Duration::from_millis(40);

/// How many keys may be waiting to be watched.
const WATCHES: usize = 1024;

/// Where hints go, and how to ask for more of them.
#[derive(Debug)]
pub(super) struct Hints {
    pub(super) sink: Sink,
    /// Names whose holder will tell this keeper nothing, with a waiter of ours first in line.
    watch: mpsc::Sender<LockName>,
}

impl RedisStore {
    /// Makes the push connection watch the key of a lock.
    pub(super) fn watch(&self, name: &LockName) {
        // Not sent while the push connection is down: the waiter asks again once it is up.
        let sent = self.connections.hints().is_some_and(|hints| hints.watch.try_send(name.clone()).is_ok());
        if !sent {
            self.missed.store(true, Ordering::Relaxed);
        }
    }

    /// Keeps the push connection open and tells its hints.
    pub(super) async fn listen(&self, sink: Sink) {
        let (watch, mut watches) = mpsc::channel(WATCHES);
        self.connections.tell(Hints { sink: sink.clone(), watch });
        let (mut failures, mut was_down) = (0, false);
        loop {
            let mut push = match PushConnection::open(&self.connections, &self.keeper).await {
                Ok(push) => push,
                Err(error) => {
                    if failures == 0 {
                        crate::log::say(
                            move || tracing::warn!(%error, "no push connection to Redis: waiters look again by themselves"),
                        );
                    }
                    tokio::time::sleep(back_off(FIRST_PAUSE, failures, MAX_PAUSE)).await;
                    failures = failures.saturating_add(1);
                    was_down = true;
                    continue;
                }
            };
            if was_down || self.missed.load(Ordering::Relaxed) {
                sink.tell(Event::Reconnected);
            }
            let began = Instant::now();
            let error = push.serve(&self.connections, &mut watches, &sink).await;
            crate::log::say(move || tracing::debug!(%error, "the push connection to Redis is down"));
            sink.tell(Event::Disconnected);
            was_down = true;
            // A server that cuts every new connection is not asked again and again without a pause.
            failures = if began.elapsed() > MAX_PAUSE { 0 } else { failures.saturating_add(1) };
            if failures > 1 {
                tokio::time::sleep(back_off(FIRST_PAUSE, failures, MAX_PAUSE)).await;
            }
        }
    }
}

/// The connection on which the keeper listens to its channel and watches keys.
struct PushConnection {
    driver: MultiplexedConnection,
    messages: mpsc::UnboundedReceiver<PushInfo>,
    node: Node,
}

impl PushConnection {
    async fn open(connections: &Connections, keeper: &str) -> Result<Self> {
        // Every server of a Cluster passes on what is published at any of them.
        let node = connections.node_of(keeper.as_bytes()).await?;
        let (sender, messages) = mpsc::unbounded_channel();
        let pushed = move |push| sender.send(push).map_err(|_| ());
        let opened = connections::open(connections.options(), &node, pushed).await;
        let mut driver = opened.inspect_err(|_| connections.routes().doubt())?;
        in_time(driver.subscribe(channel(keeper))).await?;
        let mut push = Self { driver, messages, node };
        // Without tracking, a waiter notices the release of another program's lock later, by polling.
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON").arg("OPTIN");
        if let Err(error) = push.ask(tracking).await {
            crate::log::say(move || tracing::debug!(%error, "the server offers no client tracking"));
        }
        Ok(push)
    }

    /// Tells hints until the connection fails; why it failed.
    async fn serve(&mut self, connections: &Connections, watches: &mut mpsc::Receiver<LockName>, sink: &Sink) -> Error {
        loop {
            let hint = tokio::select! {
                biased;
                message = self.messages.recv() => match message {
                    Some(message) if message.kind != PushKind::Disconnection => {
                        Ok(event(&message, connections.options()))
                    }
                    _ => Err(Error::unavailable("the push connection ended")),
                },
                Some(name) = watches.recv() => self.watch(name, connections).await,
                () = tokio::time::sleep(PING_EVERY) => self.check(connections).await,
            };
            match hint {
                Ok(Some(event)) => sink.tell(event),
                Ok(None) => {}
                Err(error) => return error,
            }
        }
    }

    async fn ask(&mut self, cmd: redis::Cmd) -> Result<Value> {
        in_time(self.driver.send_packed_command(&cmd)).await
    }

    /// Whether the server still answers, and is still the one to listen to.
    async fn check(&mut self, connections: &Connections) -> Result<Option<Event>> {
        self.ask(redis::cmd("PING")).await?;
        match connections.options().kind {
            Kind::Sentinel(_) if connections.node_of(b"").await? != self.node => {
                Err(Error::unavailable("the primary has changed"))
            }
            _ => Ok(None),
        }
    }

    /// Asks the server to tell when the key changes. If the key is free by now, the waiter should ask.
    async fn watch(&mut self, name: LockName, connections: &Connections) -> Result<Option<Event>> {
        let options = connections.options();
        let cluster = options.kind == Kind::Cluster;
        let Ok(Keys { lock: key, .. }) = options.layout.keys(&name, cluster) else { return Ok(None) };
        if cluster && connections.node_of(&key).await? != self.node {
            // Only the owner of a key tells of it. For keys of other servers the waiter polls.
            return Ok(None);
        }
        let mut pipeline = redis::pipe();
        pipeline.cmd("CLIENT").arg("CACHING").arg("YES").cmd("EXISTS").arg(&key);
        let answers = in_time(self.driver.send_packed_commands(&pipeline, 0, 2)).await?;
        Ok(matches!(answers.get(1), Some(Value::Int(0))).then_some(Event::Wake(name)))
    }
}

/// The answer to a question on the push connection, which counts as dead without one.
async fn in_time<T>(asked: impl Future<Output = redis::RedisResult<T>>) -> Result<T> {
    let answer = tokio::time::timeout(ANSWER_LIMIT, asked).await;
    answer.map_err(|_| Error::unavailable("the push connection does not answer"))?.map_err(map_err)
}

/// The channel that scripts publish grants to, from the name in a waiter's entry.
pub(super) fn channel(name: &str) -> String {
    format!("lk:k:{name}")
}

/// A new channel's name: 128 random bits. The `z` says to scripts that its keeper knows values of version 2.
pub(super) fn new_channel() -> Result<Arc<str>> {
    Ok(format!("z{}", HolderId::random()?.to_hex()).into())
}

/// What a push message means to the engine, if anything.
pub(super) fn event(push: &PushInfo, options: &Options) -> Option<Event> {
    let wake = |key: &[u8]| layout::name_of(options.layout, key).map(Event::Wake);
    match push.kind {
        PushKind::Message => match push.data.get(1)? {
            Value::BulkString(text) => {
                let (event, key) = granted(text)?;
                // Replicas have not confirmed the grant yet: the waiter's own call waits for them.
                if options.wait.is_some() { wake(key) } else { Some(event) }
            }
            _ => None,
        },
        // One key per message, since every watched key changes by itself.
        PushKind::Invalidate => match push.data.first()? {
            Value::Array(keys) => match keys.first()? {
                Value::BulkString(key) => wake(key),
                _ => None,
            },
            // The whole database was flushed.
            _ => Some(Event::Reconnected),
        },
        _ => None,
    }
}

/// `holder:token:stamp:lease ms:key`, as the scripts publish it.
fn granted(message: &[u8]) -> Option<(Event, &[u8])> {
    let mut fields = message.splitn(5, |byte| *byte == b':');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let holder = HolderId::from_hex(text()?)?;
    let mut number = || text()?.parse::<u64>().ok();
    let token = Token::new(number()?).ok()?;
    let stamp = Stamp::from_micros(number()?);
    let lease = Duration::from_millis(number()?);
    Some((Event::Granted(holder, Grant { token, stamp, lease }), fields.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_grant_is_read_and_anything_else_ignored() {
        let holder = HolderId::from_u128(7);
        let text = format!("{}:17:123456:300:a:b", holder.to_hex());
        let grant = Grant {
            token: Token::new(17).unwrap(),
            stamp: Stamp::from_micros(123_456),
            lease: Duration::from_millis(300),
        };
        assert_eq!(granted(text.as_bytes()), Some((Event::Granted(holder, grant), &b"a:b"[..])));
        for bad in ["", "x:1:2:3:4", "::::", &text[..40]] {
            assert_eq!(granted(bad.as_bytes()), None, "{bad}");
        }
    }
}
