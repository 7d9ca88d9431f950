//! Where all calls of a keeper meet its session. One task has the session and knows what it holds: the server would let
//! the same session in again, so claims of one keeper are told apart here. What is asked while the server is at work goes
//! out together afterwards, in one statement for all that is taken and one for all that is given back. A call whose
//! caller has gone is finished all the same, so nothing is ever held that is not known here; one that arrives after the
//! release of its claim is not begun.

use super::claims::{Claims, is_shared};
use super::entries::Entry;
use super::session::{Fault, Session};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::store::{Claim, Event, Held, LossReason, Mode, Note};
use crate::stores::postgres::connect::Connections;
use crate::stores::postgres::keys::{Key, KeyRule};
use crate::stores::postgres::values::unexpected_reply;
use crate::stores::shared::sql::{Answer, Op};
use crate::token::{HolderId, Token};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// The most claims that are gathered into one statement.
const GATHER: usize = 500;

/// From how many on one event tells of all losses: each that names its claim is looked for among all.
const MANY: usize = 500;

/// After how much quiet a session that holds nothing is put to rest.
const QUIET: Duration = Duration::from_secs(1);

/// The longest pause before a session that could not be opened is tried again.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Claims to act on, with their keys.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) op: Op,
    pub(super) claims: Vec<(Key, Claim)>,
    pub(super) reply: oneshot::Sender<Vec<Result<Outcome>>>,
}

/// What came of one claim.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Granted(Token),
    Held(Held),
    /// Its release was here first.
    Cancelled,
    Renewed,
    Lost(LossReason),
    /// Whether there was something to release.
    Released(bool),
}

/// Which claim of which order.
type At = (usize, usize);
type Slots = Vec<Vec<Option<Result<Outcome>>>>;

/// The task's own.
#[derive(Debug)]
pub(super) struct SessionTask {
    connections: Connections,
    rule: KeyRule,
    events: mpsc::UnboundedSender<Event>,
    session: Option<Session>,
    /// A session that ended without our doing: the server may not know yet.
    earlier: Option<HolderId>,
    held: Claims,
    down: Option<(Instant, Error, u32)>,
}

impl SessionTask {
    pub(super) fn new(connections: Connections, rule: KeyRule, events: mpsc::UnboundedSender<Event>) -> Self {
        Self { connections, rule, events, session: None, earlier: None, held: Claims::default(), down: None }
    }

    /// Serves orders until the store is dropped.
    pub(super) async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        loop {
            let idle = self.held.own.is_empty() && self.session.as_ref().is_some_and(Session::is_limited);
            let told = async {
                match &mut self.session {
                    Some(session) => session.notes.recv().await,
                    None => std::future::pending().await,
                }
            };
            let first = tokio::select! {
                biased;
                note = told => {
                    match note {
                        Some(text) => self.asked_to_break(&text).await,
                        None => self.end(),
                    }
                    continue;
                }
                order = orders.recv() => match order {
                    Some(order) => order,
                    None => return,
                },
                () = tokio::time::sleep(QUIET), if idle => {
                    self.rest().await;
                    continue;
                }
            };
            let mut count = first.claims.len();
            let mut batch = vec![first];
            while count < GATHER
                && let Ok(order) = orders.try_recv()
            {
                count += order.claims.len();
                batch.push(order);
            }
            self.serve(batch).await;
        }
    }

    async fn serve(&mut self, batch: Vec<Order>) {
        let mut slots: Slots = batch.iter().map(|order| order.claims.iter().map(|_| None).collect()).collect();
        let mut left: Vec<At> =
            batch.iter().enumerate().flat_map(|(i, order)| (0..order.claims.len()).map(move |j| (i, j))).collect();
        while !left.is_empty() {
            left = self.round(&batch, &left, &mut slots).await;
        }
        for (order, slots) in batch.into_iter().zip(slots) {
            let answers =
                slots.into_iter().map(|slot| slot.unwrap_or_else(|| Err(unexpected_reply("too little")))).collect();
            // A caller that gave up no longer listens; the engine releases what was granted to it.
            let _ = order.reply.send(answers);
        }
    }

    /// Serves one claim of each key; the others are returned.
    async fn round(&mut self, batch: &[Order], left: &[At], slots: &mut Slots) -> Vec<At> {
        let plan = self.plan(batch, left, slots);
        let Plan { take, free, ping, later } = &plan;
        if take.is_empty() && free.is_empty() && ping.is_empty() {
            return plan.later;
        }
        let claim = |at: &At| &batch[at.0].claims[at.1];
        if let Err(error) = self.ready().await {
            take.iter().chain(free).chain(ping).for_each(|at| slots[at.0][at.1] = Some(Err(error.clone())));
            return plan.later;
        }
        let takes: Vec<Entry<'_>> = take.iter().map(|at| self.held.entry(claim(at), false)).collect();
        let frees: Vec<Entry<'_>> = free.iter().map(|at| self.held.entry(claim(at), true)).collect();
        let notes: Vec<&Note> = take.iter().map(|at| &*claim(at).1.note).collect();
        // A holder counts on the TTL it is answered with, also after a repeat or a renewal: that may be longer by now.
        let longest = take.iter().chain(ping).map(|at| claim(at).1.ttl).max();
        let exchanged = self.exchange(&takes, &frees, &notes, longest, !ping.is_empty()).await;
        let (taken, freed, alive) = match exchanged {
            Ok(exchanged) => exchanged,
            Err(error) => {
                self.end();
                take.iter().chain(free).for_each(|at| slots[at.0][at.1] = Some(Err(error.clone())));
                for at in ping {
                    let lost = batch[at.0].op == Op::Renew;
                    let answer = if lost { Ok(Outcome::Lost(LossReason::SessionEnded)) } else { Err(error.clone()) };
                    slots[at.0][at.1] = Some(answer);
                }
                return later.clone();
            }
        };
        for (i, at) in take.iter().enumerate() {
            let answer = taken.as_ref().map(|answers| answers[i].clone()).map_err(Clone::clone);
            slots[at.0][at.1] = Some(answer.and_then(|answer| self.held.taken(claim(at), answer)));
        }
        for (i, at) in free.iter().enumerate() {
            let answer = freed.as_ref().map(|freed| freed[i]).map_err(Clone::clone);
            slots[at.0][at.1] = Some(answer.map(|held| self.held.freed(claim(at), held)));
        }
        for at in ping {
            let (key, claim) = claim(at);
            let answer = alive.clone().map(|()| match self.held.find(*key, claim.holder) {
                Some(own) if batch[at.0].op == Op::Acquire => Outcome::Granted(own.token),
                Some(_) => Outcome::Renewed,
                None => Outcome::Lost(LossReason::Gone),
            });
            slots[at.0][at.1] = Some(answer);
        }
        plan.later
    }

    /// What has to be asked; everything else is answered here.
    fn plan(&mut self, batch: &[Order], left: &[At], slots: &mut Slots) -> Plan {
        let mut plan = Plan::default();
        let mut busy: HashSet<Key> = HashSet::with_capacity(left.len());
        for &at in left {
            let (key, claim) = &batch[at.0].claims[at.1];
            let own = self.held.find(*key, claim.holder).is_some();
            let answer = match batch[at.0].op {
                Op::Renew if own => {
                    plan.ping.push(at);
                    continue;
                }
                Op::Renew => Ok(Outcome::Lost(self.held.reason(claim.holder))),
                _ if busy.contains(key) => {
                    plan.later.push(at);
                    continue;
                }
                Op::Release if own => {
                    self.held.cancel(claim);
                    busy.insert(*key);
                    plan.free.push(at);
                    continue;
                }
                Op::Release => {
                    self.held.cancel(claim);
                    Ok(Outcome::Released(false))
                }
                Op::Acquire if self.held.is_cancelled(claim.holder) => Ok(Outcome::Cancelled),
                Op::Acquire => match self.held.own.get(key).and_then(|owns| owns.last()) {
                    _ if matches!(claim.mode, Mode::Permit { .. }) => Err(no_permits()),
                    _ if own => {
                        plan.ping.push(at);
                        continue;
                    }
                    Some(last) if !(last.shared && is_shared(claim)) => Ok(Outcome::Held(last.held())),
                    _ => {
                        busy.insert(*key);
                        plan.take.push(at);
                        continue;
                    }
                },
            };
            slots[at.0][at.1] = Some(answer);
        }
        plan
    }

    /// Both statements and the ping in one write; an error here is the end of the session.
    async fn exchange(
        &mut self,
        takes: &[Entry<'_>],
        frees: &[Entry<'_>],
        notes: &[&Note],
        longest: Option<Duration>,
        ping: bool,
    ) -> Result<(Result<Vec<Answer>>, Result<Vec<bool>>, Result<()>)> {
        let none = || Error::unavailable("there is no session").in_store("postgres");
        let forget = matches!(self.rule, KeyRule::Crc32 | KeyRule::Tooz | KeyRule::Raw);
        let session = self.session.as_mut().ok_or_else(none)?;
        session.has_locks(!self.held.own.is_empty());
        let lasts = if longest.is_some() { over(session.last(longest).await)? } else { Ok(()) };
        if let Err(error) = lasts
            && session.is_limited()
        {
            // The server would end the session before a holder expects it: no claim is told that it holds.
            let freed = if frees.is_empty() { Ok(Vec::new()) } else { over(session.free(frees, forget).await)? };
            return Ok((Err(error.clone()), freed, Err(error)));
        }
        let (freed, taken, alive) = tokio::join!(
            async { if frees.is_empty() { Ok(Vec::new()) } else { session.free(frees, forget).await } },
            async { if takes.is_empty() { Ok(Vec::new()) } else { session.take(takes, notes).await } },
            async { if ping { session.ping().await } else { Ok(()) } },
        );
        let (freed, taken, alive) = (over(freed)?, over(taken)?, over(alive)?);
        if taken.is_err() {
            // The locks outlive the statement that failed. If they cannot be given back, all go.
            over(session.undo(takes).await)??;
        }
        Ok((taken, freed, alive))
    }

    /// Opens a session, if there is none.
    async fn ready(&mut self) -> Result<()> {
        if self.session.is_some() {
            return Ok(());
        }
        let failures = match &self.down {
            Some((until, error, _)) if Instant::now() < *until => return Err(error.clone()),
            Some((_, _, failures)) => *failures,
            None => 0,
        };
        match Session::open(&self.connections).await {
            Ok(session) => {
                if let Some(earlier) = self.earlier.take() {
                    session.end_earlier(&self.connections, earlier).await;
                }
                self.down = None;
                self.session = Some(session);
                Ok(())
            }
            Err(error) => {
                let pause = Duration::from_millis(10).saturating_mul(1 << failures.min(8)).min(MAX_PAUSE);
                let until = Instant::now() + pause.mul_f64(0.5 + fastrand::f64() / 2.0);
                self.down = Some((until, error.clone(), failures + 1));
                Err(error)
            }
        }
    }

    /// The session is over: so is whatever it had.
    fn end(&mut self) {
        let Some(session) = self.session.take() else { return };
        self.earlier = Some(session.id());
        drop(session);
        let lost: Vec<HolderId> = self.held.own.drain().flat_map(|(_, owns)| owns).map(|own| own.holder).collect();
        if !lost.is_empty() {
            let locks = lost.len();
            crate::log::say(move || tracing::warn!(locks, "the session that held advisory locks has ended"));
        }
        for holder in &lost {
            self.held.remember(*holder, LossReason::SessionEnded);
        }
        if lost.len() > MANY {
            let _ = self.events.send(Event::SessionLost);
        } else {
            for holder in lost {
                // A store that is being dropped has no listener.
                let _ = self.events.send(Event::Lost(holder, LossReason::SessionEnded));
            }
        }
    }

    /// An operator wants a lock broken: `token:name in hexadecimal`. Only our own session can let go of it.
    async fn asked_to_break(&mut self, text: &str) {
        let Some((token, name)) = text.split_once(':').and_then(|(t, n)| Some((t.parse::<u64>().ok()?, unhex(n)?)))
        else {
            return;
        };
        let Ok(key) = self.rule.key_of(&name) else { return };
        let owns = self.held.own.get(&key).cloned().unwrap_or_default();
        for own in owns.into_iter().filter(|own| own.name == name && own.token.get() == token) {
            let Some(session) = &self.session else { return };
            let have = self.held.own.get(&key).is_some_and(|owns| owns.len() > 1);
            let entry = Entry { name: &own.name, key, shared: own.shared, have, holder: own.holder };
            match session.free(&[entry], true).await {
                Ok(_) => {
                    self.held.remove(key, own.holder);
                    self.held.remember(own.holder, LossReason::Broken);
                    let _ = self.events.send(Event::Lost(own.holder, LossReason::Broken));
                }
                Err(Fault::Over(_)) => self.end(),
                Err(Fault::Refused(error)) => {
                    let name = name.clone();
                    crate::log::say(move || tracing::warn!(lock = %name, %error, "a lock could not be broken"));
                }
            }
        }
    }

    /// Nothing is held: the session may be silent for as long as it likes.
    async fn rest(&mut self) {
        let Some(session) = &mut self.session else { return };
        if matches!(session.last(None).await, Err(Fault::Over(_))) {
            self.end();
        }
    }
}

/// A runtime that ends takes the session with it.
impl Drop for SessionTask {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Debug, Default)]
struct Plan {
    take: Vec<At>,
    free: Vec<At>,
    /// The session has to show that it lives.
    ping: Vec<At>,
    later: Vec<At>,
}

/// The end of the session as an error; what the server refused, inside.
fn over<T>(asked: Result<T, Fault>) -> Result<Result<T>> {
    match asked {
        Ok(answer) => Ok(Ok(answer)),
        Err(Fault::Refused(error)) => Ok(Err(error)),
        Err(Fault::Over(error)) => Err(error),
    }
}

fn no_permits() -> Error {
    Error::unsupported("advisory locks have no permits; mode=lease does").in_store("postgres")
}

fn unhex(text: &str) -> Option<LockName> {
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes = text.as_bytes().chunks(2).map(digits).collect::<Option<Vec<u8>>>()?;
    LockName::new(bytes).ok()
}
