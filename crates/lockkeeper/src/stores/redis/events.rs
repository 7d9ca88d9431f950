//! The push connection of a keeper: grants handed over to its waiters, and changes of keys it waits for.

use super::connect::{self, Links};
use super::error::map_err;
use super::keys::Keys;
use super::layout;
use super::options::{Kind, Node, Options};
use crate::clock::Stamp;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::store::{Event, Grant};
use crate::token::{HolderId, Token};
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// How often a silent connection is asked whether it still lives.
const PING_EVERY: Duration = Duration::from_secs(5);

/// How long a small question on the push connection may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// The longest pause before connecting again.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// What `tend` reads.
#[derive(Debug)]
pub(super) struct Events {
    keeper: Arc<str>,
    link: Option<Push>,
    failures: u32,
    /// Names held by somebody who will not tell us, with a waiter of ours first in line.
    watches: mpsc::Receiver<LockName>,
    was_up: bool,
}

struct Push {
    connection: MultiplexedConnection,
    messages: mpsc::UnboundedReceiver<PushInfo>,
    node: Node,
}

impl std::fmt::Debug for Push {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Push")
    }
}

impl Events {
    pub(super) fn new(keeper: Arc<str>, watches: mpsc::Receiver<LockName>) -> Self {
        Self { keeper, link: None, failures: 0, watches, was_up: false }
    }

    /// The next event; `queued` says whether a claim of this keeper may be in line already.
    pub(super) async fn next(&mut self, links: &Links, queued: &AtomicBool) -> Event {
        loop {
            let Some(push) = &mut self.link else {
                if self.connect(links).await && (self.was_up || queued.load(Ordering::Relaxed)) {
                    self.was_up = true;
                    return Event::Reconnected;
                }
                continue;
            };
            self.was_up = true;
            let happened = tokio::select! {
                biased;
                message = push.messages.recv() => match message {
                    Some(message) if message.kind != PushKind::Disconnection => Ok(event(&message, links.options())),
                    _ => Err(Error::unavailable("the push connection ended")),
                },
                Some(name) = self.watches.recv() => push.watch(name, links).await,
                () = tokio::time::sleep(PING_EVERY) => push.check(links).await,
            };
            match happened {
                Ok(Some(event)) => return event,
                Ok(None) => {}
                Err(error) => {
                    crate::log::say(move || tracing::debug!(%error, "the push connection to Redis is down"));
                    self.link = None;
                }
            }
        }
    }

    /// Connects and subscribes, after a pause if the last try failed.
    async fn connect(&mut self, links: &Links) -> bool {
        if self.failures > 0 {
            let pause = Duration::from_millis(20).saturating_mul(1 << self.failures.min(8)).min(MAX_PAUSE);
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        }
        match Push::open(links, &self.keeper).await {
            Ok(push) => {
                self.link = Some(push);
                self.failures = 0;
            }
            Err(error) => {
                if self.failures == 0 {
                    crate::log::say(
                        move || tracing::warn!(%error, "no push connection to Redis: waiters look again by themselves"),
                    );
                }
                self.failures = self.failures.saturating_add(1);
                self.was_up = true;
            }
        }
        self.link.is_some()
    }
}

impl Push {
    async fn open(links: &Links, keeper: &str) -> Result<Self> {
        // Every server of a Cluster passes on what is published at any of them.
        let node = links.node_of(keeper.as_bytes()).await?;
        let (sender, messages) = mpsc::unbounded_channel();
        let opened = connect::open(links.options(), &node, move |push| sender.send(push).map_err(|_| ())).await;
        let connection = opened.inspect_err(|_| links.routes().doubt())?;
        let mut push = Self { connection, messages, node };
        let subscribing = push.connection.subscribe(channel(keeper));
        let subscribed = tokio::time::timeout(ANSWER_LIMIT, subscribing).await;
        subscribed.map_err(|_| Error::unavailable("the push connection does not answer"))?.map_err(map_err)?;
        // Without it a foreign holder's release is noticed later, by asking.
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON").arg("OPTIN");
        if let Err(error) = push.ask(tracking).await {
            crate::log::say(move || tracing::debug!(%error, "the server offers no client tracking"));
        }
        Ok(push)
    }

    async fn ask(&mut self, cmd: redis::Cmd) -> Result<Value> {
        let asked = tokio::time::timeout(ANSWER_LIMIT, self.connection.send_packed_command(&cmd)).await;
        asked.map_err(|_| Error::unavailable("the push connection does not answer"))?.map_err(map_err)
    }

    /// Whether the server still answers, and is still the one to listen to.
    async fn check(&mut self, links: &Links) -> Result<Option<Event>> {
        self.ask(redis::cmd("PING")).await?;
        match links.options().kind {
            Kind::Sentinel(_) if links.node_of(b"").await? != self.node => {
                Err(Error::unavailable("the primary has changed"))
            }
            _ => Ok(None),
        }
    }

    /// Asks to be told when the key changes; if it is free by now, says so.
    async fn watch(&mut self, name: LockName, links: &Links) -> Result<Option<Event>> {
        let cluster = links.options().kind == Kind::Cluster;
        let Ok(Keys { lock: key, .. }) = links.options().layout.keys(&name, cluster) else { return Ok(None) };
        if cluster && links.node_of(&key).await? != self.node {
            // Only the owner of a key tells of it; elsewhere the waiter looks by itself.
            return Ok(None);
        }
        let mut pipeline = redis::pipe();
        pipeline.cmd("CLIENT").arg("CACHING").arg("YES").cmd("EXISTS").arg(&key);
        let asked = tokio::time::timeout(ANSWER_LIMIT, self.connection.send_packed_commands(&pipeline, 0, 2)).await;
        let answers = asked.map_err(|_| Error::unavailable("the push connection does not answer"))?.map_err(map_err)?;
        Ok(matches!(answers.get(1), Some(Value::Int(0))).then_some(Event::Wake(name)))
    }
}

/// The channel that the scripts publish grants to, by the name a waiter gave.
pub(super) fn channel(name: &str) -> String {
    format!("lk:k:{name}")
}

/// What a push message means to the engine, if anything.
pub(super) fn event(push: &PushInfo, options: &Options) -> Option<Event> {
    let wake = |key: &[u8]| layout::name_of(options.layout, key).map(Event::Wake);
    match push.kind {
        PushKind::Message => match push.data.get(1)? {
            Value::BulkString(text) => {
                let (event, key) = granted(text)?;
                // Replicas have not confirmed it yet: the waiter asks, and waits for them there.
                if options.wait.is_some() { wake(key) } else { Some(event) }
            }
            _ => None,
        },
        // One key at a time, since every watched key changes by itself.
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
