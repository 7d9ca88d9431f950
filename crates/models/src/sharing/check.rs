//! The steps that are possible, and what must hold after each.

use super::store::{agree, modes};
use super::{Action, Call, Client, Message, Role, Sharing, State, TTL};
use lockkeeper::Mode;
use lockkeeper::clock::Stamp;
use lockkeeper::machine::hold;
use lockkeeper::machine::slot::Slot;
use stateright::{Model, Property};
use std::time::Duration;

/// Leases that pass at the end: one for the claims of the dead, one for what was handed over to them.
const AGES: u8 = 2;

impl Model for Sharing {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = Client {
            alive: true,
            role: Role::Idle,
            task: 0,
            key: 0,
            stamp: Stamp::default(),
            sent: 0,
            answered: 0,
            upkeep: 0,
        };
        vec![State {
            time: 0,
            ages: 0,
            now: Stamp::default().after(TTL),
            slot: Slot::default(),
            clients: vec![client; self.tasks.len()],
            network: Vec::new(),
            repeats: 0,
            deaths: 0,
            top: (0, 0),
            fell: false,
            overtaken: false,
            refused: false,
            late: false,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for (c, client) in (0u8..).zip(&s.clients).filter(|(_, client)| client.alive) {
            match client.role {
                Role::Idle => {
                    if self.mode(s, c).is_some() && !self.follows(s, c) {
                        actions.push(Action::Start(c));
                    }
                }
                Role::Trying if s.repeats < self.repeats => actions.push(Action::Repeat(c)),
                Role::Waiting if !s.asks(c) && self.has_news(s, c) => actions.push(Action::KeepAlive(c)),
                Role::Held(_) => actions.push(Action::Finish(c)),
                Role::Trying | Role::Waiting => {}
            }
            if s.deaths < self.deaths && matches!(client.role, Role::Waiting | Role::Held(_)) {
                actions.push(Action::Die(c));
            }
        }
        let mut last = None;
        for &message in &s.network {
            if last.replace(message) != Some(message) {
                actions.push(Action::Deliver(message));
            }
        }
        if actions.is_empty() && s.ages < AGES && s.waits() {
            actions.push(Action::Age);
        }
        if usize::from(s.time) < self.steps.len() {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        match action {
            Action::Start(c) => self.begin(&mut s, c),
            Action::Repeat(c) => {
                s.repeats += 1;
                self.ask(&mut s, c, Call::Acquire);
            }
            Action::KeepAlive(c) => self.ask(&mut s, c, Call::Renew),
            Action::Finish(c) => self.hold(&mut s, c, hold::Input::Release),
            Action::Die(c) => {
                s.deaths += 1;
                s.client(c).alive = false;
            }
            Action::Tick => {
                s.now = s.now.after(Duration::from_millis(self.steps[usize::from(s.time)]));
                s.time += 1;
                for c in 0..self.tasks.len() as u8 {
                    if s.clients[usize::from(c)].alive {
                        self.wake(&mut s, c);
                    }
                }
            }
            Action::Age => {
                s.ages += 1;
                let end = s.now.after(TTL);
                let living: Vec<_> = (0u8..).zip(&s.clients).filter(|(_, client)| client.alive).collect();
                let living: Vec<_> = living.into_iter().map(|(c, _)| s.id(c).holder()).collect();
                let waiters = s.slot.waiters.iter_mut().filter(|w| living.contains(&w.id));
                waiters.for_each(|w| (w.stamp, w.expires) = (end, end.after(TTL)));
                s.now = end;
            }
            Action::Deliver(message) => {
                let at = s.network.iter().position(|m| *m == message)?;
                s.network.remove(at);
                match message {
                    Message::Ask(id, call, mode, stamp) => self.at_store(&mut s, id, call, mode, stamp),
                    Message::Answer(id, _, said, stamp) => self.at_client(&mut s, id, said, stamp),
                }
            }
        }
        self.tidy(&mut s);
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never more Permits than the limit", |m: &Sharing, s: &State| {
                let holders = m.believed(s);
                holders.iter().any(|mode| !matches!(mode, Mode::Permit { .. })) || agree(&holders)
            }),
            Property::always("never Exclusive beside another", |m: &Sharing, s: &State| {
                let holders = m.believed(s);
                !holders.contains(&Mode::Exclusive) || agree(&holders)
            }),
            Property::always("the store's holders agree", |_, s: &State| agree(&modes(&s.slot, s.now))),
            Property::always("tokens rise", |_, s: &State| !s.fell),
            Property::always("the line is kept", |_, s: &State| !s.overtaken),
            Property::always("only what does not fit waits", |_, s: &State| !s.refused),
            Property::always("nothing is left behind", |m: &Sharing, s: &State| {
                s.deaths > 0 || s.slot.holders.iter().all(|h| h.expires <= s.now) || !m.is_over(s)
            }),
            Property::always("no living client waits for ever", |m: &Sharing, s: &State| !s.waits() || !m.is_over(s)),
            Property::sometimes("as many hold as may", |m: &Sharing, s: &State| {
                let most = match m.tasks[0][0] {
                    Mode::Permit { limit } => limit as usize,
                    _ => m.tasks.iter().filter(|tasks| tasks.contains(&Mode::Shared)).count().max(1),
                };
                m.believed(s).len() == most
            }),
            Property::sometimes("every client is served", |m: &Sharing, s: &State| {
                (0u8..).zip(&s.clients).all(|(c, _)| m.mode(s, c).is_none())
            }),
            Property::sometimes("a client gets a place of a dead one", |m: &Sharing, s: &State| {
                let last = s.clients.iter().any(|client| client.alive && matches!(client.role, Role::Held(_)));
                m.deaths == 0 || (s.deaths > 0 && s.ages > 0 && last)
            }),
            Property::sometimes("a release comes after its lease", |m: &Sharing, s: &State| {
                s.late || m.steps.iter().sum::<u64>() < 2000
            }),
        ]
    }
}

impl State {
    /// Whether a living client waits.
    fn waits(&self) -> bool {
        self.clients.iter().any(|client| client.alive && matches!(client.role, Role::Trying | Role::Waiting))
    }

    /// Whether a call of this client is under way.
    fn asks(&self, c: u8) -> bool {
        self.network.iter().any(|message| match message {
            Message::Ask(id, Call::Renew, ..) => *id == self.id(c),
            Message::Answer(id, ..) => *id == self.id(c),
            Message::Ask(..) => false,
        })
    }
}

impl Sharing {
    /// Clients that want the same are alike, so they come in order: whether one before this has yet to come.
    fn follows(&self, s: &State, c: u8) -> bool {
        let c = usize::from(c);
        s.clients[c].key == 0 && (0..c).any(|other| s.clients[other].key == 0 && self.tasks[other] == self.tasks[c])
    }

    /// Nothing more can happen, but that the clock moves on.
    fn is_over(&self, s: &State) -> bool {
        let mut actions = Vec::new();
        self.actions(s, &mut actions);
        actions.iter().all(|action| *action == Action::Tick)
    }
}
