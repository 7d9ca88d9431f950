//! The steps that are possible, and what must hold after each.

use super::{Action, Candidate, Election, Message, Observer, Role, State, TTL, id};
use crate::claim;
use lockkeeper::clock::Stamp;
use lockkeeper::fence::Marks;
use lockkeeper::machine::slot::{At, Slot};
use lockkeeper::store::Renewal;
use stateright::{Model, Property};
use std::time::Duration;

impl Model for Election {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let candidate = Candidate { role: Role::Idle, paused: false, campaign: 0, term: 0, sequence: 0, stepped: None };
        vec![State {
            time: 0,
            now: Stamp::default().after(TTL),
            slot: Slot::default(),
            candidates: vec![candidate; self.terms.len()],
            network: Vec::new(),
            fence: Marks::default(),
            value: None,
            observer: Observer::new(),
            repeats: 0,
            renewals: 0,
            pauses: 0,
            step_downs: 0,
            grants: Vec::new(),
            term_fell: false,
            register_fell: false,
            value_fell: false,
            hasty: false,
            refused: false,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for (c, candidate) in (0u8..).zip(&s.candidates) {
            if candidate.paused {
                actions.push(Action::Resume(c));
                continue;
            }
            self.actions_of(s, c, candidate, actions);
            if s.pauses < self.pauses && matches!(candidate.role, Role::Proclaims(_) | Role::Leads(..)) {
                actions.push(Action::Pause(c));
            }
        }
        if s.observer.holder.is_some() {
            actions.push(Action::Read);
        } else if s.observer.looks < self.looks {
            actions.push(Action::Inspect);
        }
        let mut last = None;
        for &message in &s.network {
            let paused = message.to().is_some_and(|(c, _)| s.candidates[usize::from(c)].paused);
            if last.replace(message) != Some(message) && !paused {
                actions.push(Action::Deliver(message));
            }
        }
        if usize::from(s.time) < self.steps.len() {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        match action {
            Action::Tick => {
                s.now = s.now.after(Duration::from_millis(self.steps[usize::from(s.time)]));
                s.time += 1;
                (0..self.terms.len() as u8).for_each(|c| self.wake(&mut s, c));
            }
            Action::Deliver(message) => {
                let at = s.network.iter().position(|m| *m == message)?;
                s.network.remove(at);
                match message.to() {
                    Some(_) => self.at_candidate(&mut s, message),
                    None => self.at_store(&mut s, message),
                }
            }
            _ => self.take(&mut s, action),
        }
        s.tidy();
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one body believes that it leads", |_, s: &State| {
                let until = s.candidates.iter().filter_map(Candidate::believes_until);
                until.filter(|until| s.now < *until).count() <= 1
            }),
            Property::always("terms rise", |_, s: &State| !s.term_fell),
            Property::always("the register's term never falls", |_, s: &State| !s.register_fell),
            Property::always("a body that is not paused ends before its lease", |_, s: &State| {
                let over = |candidate: &Candidate| candidate.believes_until().is_some_and(|until| until <= s.now);
                !s.candidates.iter().any(|candidate| !candidate.paused && over(candidate))
            }),
            Property::always("the term of a body is proclaimed", |_, s: &State| {
                let proclaimed = s.value.as_ref().map_or(0, |value| value.term);
                s.candidates.iter().all(|c| c.believes_until().is_none() || c.term <= proclaimed)
            }),
            Property::always("the values of a term come in order", |m: &Election, s: &State| {
                !s.value_fell || !m.in_order
            }),
            Property::always("an observer never goes back", |_, s: &State| !s.observer.went_back),
            Property::always("a leader that is told has led since the look", |_, s: &State| !s.observer.misled),
            Property::always("a leader that stepped down lets another one lead", |_, s: &State| !s.hasty),
            Property::sometimes("every candidate leads", |_, s: &State| {
                (0u8..).zip(&s.candidates).all(|(c, _)| s.grants.iter().any(|(other, _)| *other == c))
            }),
            Property::sometimes("an observer tells of two terms", |m: &Election, s: &State| {
                m.looks < 2 || s.observer.terms > 1
            }),
            Property::sometimes("a value of an earlier term is refused", |m: &Election, s: &State| {
                s.refused || (m.repeats == 0 && m.pauses == 0)
            }),
            Property::sometimes("a paused body outlives its lease", |m: &Election, s: &State| {
                let over = |c: &Candidate| c.believes_until().is_some_and(|until| until <= s.now);
                m.pauses == 0 || s.candidates.iter().any(over)
            }),
            Property::sometimes("a leader that stepped down leads again", |m: &Election, s: &State| {
                let led = |c: u8| s.grants.iter().filter(|(other, _)| *other == c).count();
                m.step_downs == 0 || (s.step_downs > 0 && (0..m.terms.len() as u8).any(|c| led(c) > 1))
            }),
        ]
    }
}

impl Election {
    fn actions_of(&self, s: &State, c: u8, candidate: &Candidate, actions: &mut Vec<Action>) {
        match candidate.role {
            Role::Idle if candidate.campaign < self.terms[usize::from(c)] => actions.push(Action::Campaign(c)),
            Role::Waits if self.has_news(s, c) => actions.push(Action::KeepAlive(c)),
            Role::Proclaims(_) | Role::Leads(_, true) if s.repeats < self.repeats => actions.push(Action::Again(c)),
            Role::Leads(_, false) => {
                actions.push(Action::Resign(c));
                if s.step_downs < self.step_downs {
                    actions.push(Action::StepDown(c));
                }
                if candidate.sequence < self.values {
                    actions.push(Action::Proclaim(c));
                }
            }
            Role::Resigns(Some(_), _) => actions.push(Action::BodyEnds(c)),
            Role::Resigns(None, _) => actions.push(Action::GiveUp(c)),
            Role::LetsPass(_) if self.has_passed(s, c) => actions.push(Action::LookAfter(c)),
            _ => {}
        }
    }

    /// Whether a keep-alive of this waiting candidate would bring anything new.
    fn has_news(&self, s: &State, c: u8) -> bool {
        let campaign = s.candidates[usize::from(c)].campaign;
        let asked = |message: &Message| {
            matches!(message, Message::Renew(by, ..) if *by == c) || message.to() == Some((c, campaign))
        };
        let mut slot = s.slot.clone();
        let holders = slot.holders.clone();
        let at = At { now: s.now, wall_us: 0, keeper: 0 };
        let answer = slot.renew(&claim(id(c, campaign), TTL, s.now), at);
        let news = !matches!(answer, Ok(Renewal::Waiting(_))) || slot.holders != holders;
        news && !s.network.iter().any(asked)
    }
}

impl Message {
    /// The candidate and the campaign that it is an answer for.
    fn to(self) -> Option<(u8, u8)> {
        match self {
            Self::Yours(c, n, ..) | Self::InLine(c, n) | Self::Gone(c, n) | Self::Heard(c, n, ..) => Some((c, n)),
            Self::Acquire(..) | Self::Renew(..) | Self::Release(..) | Self::Proclaim(..) => None,
        }
    }
}

impl State {
    /// Forgets answers that their candidates do not wait for.
    fn tidy(&mut self) {
        let candidates = &self.candidates;
        self.network.retain(|message| {
            let Some((c, n)) = message.to() else { return true };
            let candidate = &candidates[usize::from(c)];
            candidate.campaign == n
                && match (candidate.role, message) {
                    (Role::Proclaims(_) | Role::Leads(_, true), Message::Heard(_, _, sequence, _)) => {
                        candidate.sequence == *sequence
                    }
                    (_, Message::Heard(..)) => false,
                    (Role::Asks, _) => true,
                    (Role::Waits | Role::Proclaims(_) | Role::Leads(..), _) => !matches!(message, Message::InLine(..)),
                    _ => false,
                }
        });
    }
}
