//! E: keepers with one session each, in line for one lock whose keys live as long as their sessions (etcd, ZooKeeper,
//! Consul). Sessions end at the server by its clock, whatever keepers believe, and operators end sessions and delete keys.
//! Messages are delayed, lost and reordered.
//!
//! A release is sent once here: what it leaves on a living session only the sweep ends. The timers of upkeep are not
//! modelled one by one: what they would find is asked for when there is something to find and nothing under way.

mod check;
mod server;

use lockkeeper::Token;
use lockkeeper::clock::Stamp;
use lockkeeper::machine::hold::{self, Hold, Phase, deadline};
use lockkeeper::machine::queue::{self, Queue};
use lockkeeper::store::{Grant, LossReason};
pub use server::{Id, Node, Said, Server, Told};
use std::time::Duration;

/// What ships, or a way to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As it is on etcd: the token is the revision at which the turn was taken.
    Shipped,
    /// As it is on ZooKeeper: the token is the revision at which the key was created.
    TokenAtCreation,
    /// A turn has come when nobody is before the claim, whether or not its own key is still there.
    NoRecheck,
    /// The end of the key right before it is the grant.
    GrantedByEvent,
    /// Keys that no claim owns are left alone.
    NoSweep,
    /// A sweep goes by the claims there were when it began.
    SweepByOldList,
    /// A claim's own key is neither watched nor read: only the end of the one before it, and of the session, is noticed.
    PredecessorOnly,
    /// The lease counts from when the keep-alive's answer was received.
    FromReceipt,
    /// A grant counts from the call that found it, though that did not prolong the session.
    GrantFromLook,
    /// The token is the key's number in a directory that begins anew when it was empty.
    NumberAsToken,
}

/// The model and its bounds.
#[derive(Clone, Debug)]
pub struct Sessions {
    /// Which one.
    pub variant: Variant,
    /// How many tasks each keeper has.
    pub tasks: Vec<u8>,
    /// How many seconds pass.
    pub time: u8,
    /// Keep-alives per keeper, beside those that have something to find.
    pub upkeep: u8,
    /// How many messages may be lost.
    pub losses: u8,
    /// How many tasks may give up.
    pub cancels: u8,
    /// How many sessions or keys an operator ends.
    pub operator: u8,
}

const TTL: Duration = Duration::from_secs(3);

/// A task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    /// Not started.
    New,
    /// Wants the lock.
    Wants,
    /// Has it.
    Has,
    /// Released or lost it, or gave up.
    Over,
}

/// What a keeper does with its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Its acquire has not been answered.
    Trying,
    /// In line since this revision.
    Waiting(u64),
    /// Granted.
    Held(Hold),
}

/// One keeper.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keeper {
    session: u8,
    /// The stamp of the last keep-alive that was acknowledged, and of the last that was sent.
    acked: Stamp,
    sent: Stamp,
    upkeep: u8,
    queue: Queue,
    tasks: Vec<Life>,
    claim: Option<(u8, Role)>,
    keys: u8,
}

/// What a keeper asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// Join the line.
    Create,
    /// See whether the turn has come, and take it. In line since this revision.
    Look(u64),
    /// Prolong the session, and see whether the key is there.
    KeepAlive,
    /// Remove the key.
    Delete,
    /// Read the keys of the session.
    List,
}

/// A message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// To the server: from whom, what, when it was sent.
    Ask(Id, Call, Stamp),
    /// From the server: to whom, the call's stamp, what.
    Answer(Id, Stamp, Said),
    /// A watch.
    Event(Id, Told),
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    time: u8,
    server: Server,
    keepers: Vec<Keeper>,
    network: Vec<Message>,
    losses: u8,
    cancels: u8,
    operator: u8,
    /// What an operator took from its holder.
    taken: Vec<Id>,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A second passes.
    Tick,
    /// A task of a keeper arrives.
    Start(u8),
    /// A task gives up: keeper, task.
    Cancel(u8, u8),
    /// A keeper's task is done with the lock.
    Finish(u8),
    /// A keeper's timer asks this, and there is something to find.
    Upkeep(u8, Call),
    /// A session ends by the server's clock: keeper, session.
    Expire(u8, u8),
    /// An operator ends a session.
    Revoke(u8, u8),
    /// An operator deletes a key.
    Remove(Id),
    /// A message arrives.
    Deliver(Message),
    /// A message is lost.
    Lose(Message),
}

impl Action {
    /// Whether it happens sooner or later by itself.
    fn is_due(&self) -> bool {
        matches!(self, Self::Upkeep(..) | Self::Expire(..) | Self::Deliver(_))
    }
}

impl State {
    fn now(&self) -> Stamp {
        Stamp::default().after(Duration::from_secs(1 + u64::from(self.time)))
    }

    fn keeper(&mut self, k: u8) -> &mut Keeper {
        &mut self.keepers[usize::from(k)]
    }

    /// The claim of a keeper, on its session.
    fn id(&self, k: u8, key: Option<u8>) -> Id {
        let keeper = &self.keepers[usize::from(k)];
        let own = keeper.claim.map_or(0, |(key, _)| key);
        Id { keeper: k, session: keeper.session, key: key.unwrap_or(own) }
    }

    fn send(&mut self, message: Message) {
        self.network.push(message);
        self.network.sort_unstable();
    }

    fn ask(&mut self, k: u8, call: Call, key: Option<u8>) {
        let now = self.now();
        if call == Call::KeepAlive {
            self.keeper(k).sent = now;
        }
        self.send(Message::Ask(self.id(k, key), call, now));
    }

    fn tell(&mut self, told: Vec<(Id, Told)>) {
        told.into_iter().for_each(|(id, told)| self.send(Message::Event(id, told)));
    }

    fn is_fresh(&self, k: u8) -> bool {
        self.now() < deadline(self.keepers[usize::from(k)].acked, TTL)
    }

    /// The claims whose keepers believe that they hold.
    fn believed(&self) -> impl Iterator<Item = Id> + '_ {
        (0u8..).zip(&self.keepers).filter_map(|(k, keeper)| match keeper.claim {
            Some((_, Role::Held(hold))) if !matches!(hold.phase(), Phase::Lost(_)) && self.now() < hold.deadline() => {
                Some(self.id(k, None))
            }
            _ => None,
        })
    }

    /// Forgets what nobody listens to.
    fn tidy(&mut self) {
        let keepers = &self.keepers;
        self.network.retain(|m| match m {
            Message::Ask(..) => true,
            Message::Answer(id, _, Said::Alive(_) | Said::NoSession | Said::Keys(_)) => {
                keepers[usize::from(id.keeper)].session == id.session
            }
            Message::Answer(id, ..) | Message::Event(id, _) => {
                let keeper = &keepers[usize::from(id.keeper)];
                let own = keeper.claim.filter(|(key, _)| (keeper.session, *key) == (id.session, id.key));
                match own.map(|(_, role)| role) {
                    None => false,
                    Some(Role::Held(_)) => matches!(m, Message::Event(_, Told::Gone)),
                    Some(Role::Trying | Role::Waiting(_)) => true,
                }
            }
        });
    }
}

impl Sessions {
    /// One step of the queue, and what follows from it.
    fn step(&self, s: &mut State, k: u8, input: queue::Input) {
        let fresh = u64::from(s.keeper(k).keys + 1);
        for output in s.keeper(k).queue.step(input, fresh) {
            match output {
                queue::Output::Try { claim, .. } => {
                    let keeper = s.keeper(k);
                    keeper.keys = keeper.keys.max(claim as u8);
                    keeper.claim = Some((claim as u8, Role::Trying));
                    let call = if s.is_fresh(k) { Call::Create } else { Call::KeepAlive };
                    s.ask(k, call, None);
                }
                queue::Output::Grant { task, .. } => {
                    s.keeper(k).tasks[task as usize] = Life::Has;
                    self.step(s, k, queue::Input::Taken(task));
                }
                queue::Output::Drop(claim) => {
                    s.keeper(k).claim.take_if(|(key, _)| u64::from(*key) == claim);
                    s.ask(k, Call::Delete, Some(claim as u8));
                }
                queue::Output::Busy(_) => {}
            }
        }
    }

    /// The claim is not in the store any more.
    fn gone(&self, s: &mut State, k: u8) {
        match s.keeper(k).claim {
            Some((_, Role::Held(_))) => self.hold(s, k, hold::Input::Gone(LossReason::Gone)),
            Some((key, _)) => {
                s.keeper(k).claim = None;
                self.step(s, k, queue::Input::Answer(key.into(), queue::Answer::Gone));
            }
            None => {}
        }
    }

    fn granted(&self, s: &mut State, k: u8, token: u64, called: Stamp) {
        let now = s.now();
        let keeper = s.keeper(k);
        let Some((key, _)) = keeper.claim else { return };
        let stamp = if self.variant == Variant::GrantFromLook { called } else { keeper.acked };
        let grant = Grant { token: Token::new(token).expect("a small token"), stamp, lease: TTL };
        let hold = Hold::new(&grant, TTL, None);
        if hold.deadline() <= now {
            // Too late to be worth anything.
            s.ask(k, Call::Delete, None);
            return self.gone(s, k);
        }
        keeper.claim = Some((key, Role::Held(hold)));
        self.step(s, k, queue::Input::Answer(key.into(), queue::Answer::Granted));
    }

    fn hold(&self, s: &mut State, k: u8, input: hold::Input) {
        let (now, most) = (s.now(), self.upkeep);
        let keeper = s.keeper(k);
        let Some((key, Role::Held(hold))) = &mut keeper.claim else { return };
        let key = *key;
        let outputs = hold.step(now, input);
        let renew = outputs.iter().any(|o| matches!(o, hold::Output::Renew { .. }));
        if renew && keeper.upkeep == most {
            hold.step(now, hold::Input::Failed);
        }
        let over = matches!(hold.phase(), Phase::Lost(_));
        if renew && keeper.upkeep < most {
            keeper.upkeep += 1;
            s.ask(k, Call::KeepAlive, None);
        }
        if outputs.contains(&hold::Output::Release) {
            s.ask(k, Call::Delete, None);
        }
        if over {
            let keeper = s.keeper(k);
            keeper.claim = None;
            keeper.tasks.iter_mut().filter(|t| **t == Life::Has).for_each(|t| *t = Life::Over);
            self.step(s, k, queue::Input::Ended(key.into()));
        }
    }

    /// What the keeper's thread does when it looks at the clock.
    fn wake(&self, s: &mut State, k: u8) {
        let now = s.now();
        let keeper = s.keeper(k);
        match &keeper.claim {
            Some((_, Role::Held(hold))) if hold.wake_at().is_some_and(|at| at <= now) => {
                self.hold(s, k, hold::Input::Tick);
            }
            Some((_, Role::Waiting(_))) if keeper.sent.after(TTL / 3) <= now && keeper.upkeep < self.upkeep => {
                keeper.upkeep += 1;
                s.ask(k, Call::KeepAlive, None);
            }
            _ => {}
        }
    }

    /// What the keeper's timers would ask, if it brings anything new.
    fn upkeep(&self, s: &State, k: u8) -> Option<Call> {
        let keeper = &s.keepers[usize::from(k)];
        let id = s.id(k, None);
        let whose = |m: &Message| match m {
            Message::Ask(id, ..) | Message::Answer(id, ..) | Message::Event(id, _) => id.keeper,
        };
        if s.network.iter().any(|m| whose(m) == k) {
            return None;
        }
        let call = match keeper.claim.map(|(_, role)| role) {
            None => None,
            Some(Role::Trying) if s.is_fresh(k) => Some(Call::Create),
            Some(Role::Trying) => Some(Call::KeepAlive),
            Some(Role::Waiting(created)) => match s.server.clone().look(id, created, self.variant) {
                Said::Waits(_) => None,
                Said::NoSession => Some(Call::KeepAlive),
                Said::Missing if self.variant == Variant::PredecessorOnly => None,
                _ => Some(Call::Look(created)),
            },
            Some(Role::Held(_)) => {
                let noticed = !s.server.has(id) && self.variant != Variant::PredecessorOnly;
                (noticed || !s.server.is_alive(id)).then_some(Call::KeepAlive)
            }
        };
        let left = match s.server.keys(id) {
            Said::Keys(bits) => bits & !(1 << id.key),
            _ => 0,
        };
        call.or((left != 0 && self.variant != Variant::NoSweep).then_some(Call::List))
    }

    fn at_server(&self, s: &mut State, id: Id, call: Call, stamp: Stamp) {
        let said = match call {
            Call::Create => s.server.create(id, self.variant),
            Call::Look(created) => s.server.look(id, created, self.variant),
            Call::KeepAlive => {
                let until = s.now().after(TTL);
                s.server.keep_alive(id, until)
            }
            Call::List => s.server.keys(id),
            Call::Delete => {
                let told = s.server.delete(id);
                return s.tell(told);
            }
        };
        s.send(Message::Answer(id, stamp, said));
    }

    fn at_keeper(&self, s: &mut State, id: Id, stamp: Stamp, said: Said) {
        let (k, now) = (id.keeper, s.now());
        let own = s.id(k, None);
        let keeper = s.keeper(k);
        if keeper.session != id.session {
            return;
        }
        match (said, keeper.claim.map(|(_, role)| role)) {
            (Said::NoSession, _) => {
                keeper.session += 1;
                (keeper.acked, keeper.sent) = (now, now);
                let session = (k, keeper.session, now.after(TTL));
                s.server.sessions.push(session);
                s.server.sessions.sort_unstable();
                self.gone(s, k);
            }
            (Said::Alive(there), role) => {
                let stamp = if self.variant == Variant::FromReceipt { now } else { stamp };
                keeper.acked = keeper.acked.max(stamp);
                match role {
                    Some(Role::Held(_)) if id != own => {}
                    Some(Role::Held(_)) if there || self.variant == Variant::PredecessorOnly => {
                        self.hold(s, k, hold::Input::Renewed { stamp, lease: TTL });
                    }
                    Some(Role::Held(_)) => self.gone(s, k),
                    _ => {}
                }
            }
            (Said::Keys(bits), _) => {
                // A claim is known here before its key can be there, so what is in no claim now is a leftover.
                let owned = if self.variant == Variant::SweepByOldList { id.key } else { own.key };
                for key in (1..=keeper.keys).filter(|key| bits & (1 << key) != 0 && *key != owned) {
                    s.ask(k, Call::Delete, Some(key));
                }
            }
            (_, Some(role)) if id == own => match (said, role) {
                (Said::Holds(token), Role::Trying | Role::Waiting(_)) => self.granted(s, k, token, stamp),
                (Said::Waits(created), Role::Trying) => {
                    keeper.claim = Some((id.key, Role::Waiting(created)));
                    self.step(s, k, queue::Input::Answer(id.key.into(), queue::Answer::Held));
                }
                (Said::Missing, Role::Waiting(_)) => self.gone(s, k),
                _ => {}
            },
            _ => {}
        }
    }

    fn hint(&self, s: &mut State, id: Id, told: Told) {
        let Some((_, role)) = s.keeper(id.keeper).claim.filter(|_| s.id(id.keeper, None) == id) else { return };
        match (told, role) {
            (Told::Gone, _) if self.variant != Variant::PredecessorOnly => self.gone(s, id.keeper),
            (Told::Wake, Role::Waiting(_)) if self.variant == Variant::GrantedByEvent => {
                let (token, now) = (s.server.revision, s.now());
                self.granted(s, id.keeper, token, now);
            }
            (Told::Wake, Role::Waiting(created)) => s.ask(id.keeper, Call::Look(created), None),
            _ => {}
        }
    }
}
