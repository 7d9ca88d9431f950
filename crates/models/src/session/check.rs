//! The steps that are possible, and what must hold after each.

use super::{Action, Call, Id, Keeper, Life, Message, Role, Said, Server, Sessions, State, TTL, Variant};
use lockkeeper::Mode;
use lockkeeper::clock::Stamp;
use lockkeeper::machine::hold;
use lockkeeper::machine::queue::{Input, Queue, Task};
use stateright::{Model, Property};
use std::time::Duration;

impl Model for Sessions {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            time: 0,
            now: Stamp::default().after(TTL),
            server: Server::default(),
            keepers: Vec::new(),
            network: Vec::new(),
            losses: 0,
            cancels: 0,
            revokes: 0,
            removals: 0,
            taken: Vec::new(),
        };
        let now = state.now;
        for (k, tasks) in (0u8..).zip(&self.tasks) {
            state.server.sessions.push((k, 0, now.after(TTL)));
            state.keepers.push(Keeper {
                session: 0,
                acked: now,
                sent: now,
                upkeep: 0,
                queue: Queue::default(),
                tasks: vec![Life::New; usize::from(*tasks)],
                claim: None,
                keys: 0,
            });
        }
        vec![state]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if usize::from(s.time) < self.steps.len() {
            actions.push(Action::Tick);
        }
        for (k, keeper) in (0u8..).zip(&s.keepers) {
            if keeper.tasks.contains(&Life::New) {
                actions.push(Action::Start(k));
            }
            for (task, life) in (0u8..).zip(&keeper.tasks) {
                match life {
                    Life::Wants if s.cancels < self.cancels => actions.push(Action::Cancel(k, task)),
                    Life::Has => actions.push(Action::Finish(k)),
                    _ => {}
                }
            }
            actions.extend(self.upkeep(s, k).map(|call| Action::Upkeep(k, call)));
        }
        for &(keeper, session, until) in &s.server.sessions {
            if until <= s.now {
                actions.push(Action::Expire(keeper, session));
            }
        }
        if s.revokes < self.revokes {
            actions.extend(s.server.sessions.iter().map(|(keeper, session, _)| Action::Revoke(*keeper, *session)));
        }
        if s.removals < self.removals {
            actions.extend(s.server.line.iter().map(|node| Action::Remove(node.id)));
        }
        let mut last = None;
        for &message in &s.network {
            if last.replace(message) != Some(message) {
                actions.push(Action::Deliver(message));
                if self.variant == Variant::OneMember && matches!(message, Message::Ask(_, Call::KeepAlive, _)) {
                    actions.push(Action::Mislead(message));
                }
                if s.losses < self.losses {
                    actions.push(Action::Lose(message));
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        match action {
            Action::Tick => {
                s.now = s.now.after(Duration::from_millis(self.steps[usize::from(s.time)]));
                s.time += 1;
                (0..self.tasks.len() as u8).for_each(|k| self.wake(&mut s, k));
            }
            Action::Start(k) => {
                let tasks = &mut s.keeper(k).tasks;
                let task = tasks.iter().position(|life| *life == Life::New)?;
                tasks[task] = Life::Wants;
                let task = Task { id: task as u64, mode: Mode::Exclusive, waits: true, granted: None };
                self.step(&mut s, k, Input::Enter(task));
            }
            Action::Cancel(k, task) => {
                s.cancels += 1;
                s.keeper(k).tasks[usize::from(task)] = Life::Over;
                self.step(&mut s, k, Input::Leave(task.into()));
            }
            Action::Finish(k) => self.hold(&mut s, k, hold::Input::Release),
            Action::Upkeep(k, call) => s.ask(k, call, None),
            Action::Expire(keeper, session) => {
                let told = s.server.end(keeper, session);
                s.tell(told);
            }
            Action::Revoke(keeper, session) => {
                s.revokes += 1;
                s.take(|id| (id.keeper, id.session) == (keeper, session));
                let told = s.server.end(keeper, session);
                s.tell(told);
            }
            Action::Remove(id) => {
                s.removals += 1;
                s.take(|other| other == id);
                let told = s.server.delete(id);
                s.tell(told);
            }
            Action::Deliver(message) | Action::Mislead(message) | Action::Lose(message) => {
                let at = s.network.iter().position(|m| *m == message)?;
                s.network.remove(at);
                match message {
                    _ if matches!(action, Action::Lose(_)) => s.losses += 1,
                    Message::Ask(id, _, stamp) if matches!(action, Action::Mislead(_)) => {
                        s.send(Message::Answer(id, stamp, Said::Alive(true)));
                    }
                    Message::Ask(id, call, stamp) => self.at_server(&mut s, id, call, stamp),
                    Message::Answer(id, stamp, said) => self.at_keeper(&mut s, id, stamp, said),
                    Message::Event(id, told) => self.hint(&mut s, id, told),
                }
            }
        }
        s.tidy();
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("only the line grants", |_, s: &State| {
                s.believed().all(|id| s.server.turns.contains(&id))
            }),
            // What an operator takes from its holder is only told, not prevented: that is what tokens are for.
            Property::always("one holder", |_, s: &State| s.believed().filter(|id| !s.taken.contains(id)).count() <= 1),
            Property::always("tokens rise", |_, s: &State| s.server.grants.is_sorted_by(|(_, a), (_, b)| a < b)),
            Property::always("a loss is told at the deadline", |_, s: &State| {
                let overdue = |role: Role| matches!(role, Role::Held(hold) if s.now >= hold.deadline());
                !s.keepers.iter().any(|k| k.claim.is_some_and(|(_, role)| overdue(role)))
            }),
            Property::always("no stall", |m: &Sessions, s: &State| {
                let waits = s.keepers.iter().any(|k| k.tasks.contains(&Life::Wants));
                !waits || s.believed().next().is_some() || !m.is_quiet(s)
            }),
            Property::always("the end of a key is told", |m: &Sessions, s: &State| {
                let mut claims = (0u8..).zip(&s.keepers).filter(|(_, k)| k.claim.is_some()).map(|(k, _)| s.id(k, None));
                claims.all(|id| s.server.has(id)) || !m.is_quiet(s)
            }),
            Property::sometimes("all tasks get it", |m: &Sessions, s: &State| {
                s.server.grants.len() >= m.tasks.iter().map(|n| usize::from(*n)).sum()
            }),
            Property::sometimes("another gets it when the holder's session has died", |m: &Sessions, s: &State| {
                let dead = |k: u8| s.server.grants.iter().any(|(id, _)| id.keeper != k && !s.server.is_alive(*id));
                !m.sessions_end() || s.believed().any(|id| dead(id.keeper))
            }),
            Property::sometimes("a session dies while its claim waits", |m: &Sessions, s: &State| {
                let waits = |k: &Keeper| matches!(k.claim, Some((_, Role::Waiting(_))));
                let mut waiting = (0u8..).zip(&s.keepers).filter(|(_, k)| waits(k)).map(|(k, _)| s.id(k, None));
                !m.sessions_end() || waiting.any(|id| !s.server.is_alive(id))
            }),
            Property::sometimes("a leftover is swept", |m: &Sessions, s: &State| {
                let left = |id: Id, bits: u32| bits & !(1 << s.id(id.keeper, None).key) != 0;
                let swept =
                    |message: &Message| matches!(message, Message::Answer(id, _, Said::Keys(b)) if left(*id, *b));
                m.cancels + m.losses == 0 || s.network.iter().any(swept)
            }),
        ]
    }
}

impl State {
    /// An operator takes the lock from those of its holders.
    fn take(&mut self, whose: impl Fn(Id) -> bool) {
        let held = self.server.line.iter().filter(|node| node.token.is_some() && whose(node.id));
        self.taken.extend(held.map(|node| node.id));
    }
}

impl Sessions {
    /// Nothing more will happen by itself.
    fn is_quiet(&self, s: &State) -> bool {
        let mut actions = Vec::new();
        self.actions(s, &mut actions);
        !actions.iter().any(Action::is_due)
    }

    fn sessions_end(&self) -> bool {
        self.steps.iter().sum::<u64>() >= 2000 || self.revokes > 0
    }
}
