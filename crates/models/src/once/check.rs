//! The steps that are possible, and what must hold after each.

use super::{Action, Caller, Message, OnceKey, State, Step, Variant, record};
use lockkeeper::fence::Marks;
use stateright::{Model, Property};

impl Model for OnceKey {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            tokens: 0,
            callers: vec![Caller { step: Step::New, token: 0 }; self.callers],
            network: Vec::new(),
            fence: Marks::default(),
            value: None,
            failures: 0,
            kills: 0,
            losses: 0,
            repeats: 0,
            resource: Marks::default(),
            effects: 0,
            begun: Vec::new(),
            ended: Vec::new(),
            undone: false,
            untold: false,
            ran_again: false,
            failed: None,
            refused: false,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        // Callers are alike: they call in order.
        let new = s.callers.iter().position(|caller| caller.step == Step::New);
        actions.extend(new.map(Action::Call));
        for (c, caller) in s.callers.iter().enumerate() {
            match &caller.step {
                Step::InLine => actions.push(Action::Grant(c)),
                Step::Works(_, false) => {
                    actions.push(Action::Effect(c));
                    if s.failures < self.failures {
                        actions.push(Action::Fail(c));
                    }
                }
                Step::Works(_, true) => actions.push(Action::Succeed(c)),
                Step::Enters | Step::Begins(_) | Step::Stores(..) => actions.push(Action::GiveUp(c)),
                Step::New | Step::Looks | Step::Has(_) | Step::Out => {}
            }
            if s.repeats < self.repeats && self.repeatable(s, c).is_some() {
                actions.push(Action::Again(c));
            }
            if s.kills < self.kills && matches!(caller.step, Step::Works(..)) {
                actions.push(Action::Kill(c));
            }
        }
        let mut last = None;
        for message in &s.network {
            if last.replace(message) != Some(message) {
                actions.push(Action::Deliver(message.clone()));
                if s.losses < self.losses {
                    actions.push(Action::Lose(message.clone()));
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        match &action {
            Action::Deliver(message) | Action::Lose(message) => {
                let at = s.network.iter().position(|m| m == message)?;
                s.network.remove(at);
                match message {
                    _ if matches!(action, Action::Lose(_)) => s.losses += 1,
                    Message::Read(_) | Message::Enter(_) | Message::Write(..) => {
                        s.at_register(message.clone(), self.variant);
                    }
                    _ => self.at_caller(&mut s, message.clone()),
                }
            }
            _ => self.take(&mut s, &action),
        }
        s.tidy();
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("what settled the key stays", |_, s: &State| !s.undone),
            Property::always("every caller gets the kept result", |_, s: &State| {
                s.callers.iter().all(|caller| match caller.step {
                    Step::Has(result) => s.kept() == Some(result),
                    _ => true,
                })
            }),
            Property::always("a run is told of one before it that never ended", |_, s: &State| !s.untold),
            Property::always("an effect that is looked for when told happens once", |_, s: &State| s.effects <= 1),
            Property::always("what has failed for good does not run again", |_, s: &State| !s.ran_again),
            Property::sometimes("all callers get the result", |m: &OnceKey, s: &State| {
                m.keep_failures || s.callers.iter().all(|caller| matches!(caller.step, Step::Has(_)))
            }),
            Property::sometimes("a caller gets the result of another one", |m: &OnceKey, s: &State| {
                let others = |c: &Caller| matches!(c.step, Step::Has(result) if u64::from(result) != c.token);
                m.callers < 2 || s.callers.iter().any(others)
            }),
            Property::sometimes("a late runner is refused", |m: &OnceKey, s: &State| s.refused || m.callers < 2),
            Property::sometimes("a killed runner is taken over", |m: &OnceKey, s: &State| {
                let takes_over = |c: &Caller| matches!(&c.step, Step::Works(run, _) if run.taken_over);
                m.kills == 0 || (s.kills > 0 && s.callers.iter().any(takes_over))
            }),
            Property::sometimes("the effect of a killed runner is found", |m: &OnceKey, s: &State| {
                let found = |c: &Caller| matches!(&c.step, Step::Works(run, true) if run.taken_over);
                m.kills == 0 || m.variant != Variant::Shipped || (s.effects == 1 && s.callers.iter().any(found))
            }),
        ]
    }
}

impl State {
    /// The result in the register.
    fn kept(&self) -> Option<u32> {
        let text = self.value.as_deref().filter(|text| record(text).settles())?;
        let value: serde_json::Value = serde_json::from_str(text).ok()?;
        u32::try_from(value.get("result")?.as_u64()?).ok()
    }

    /// Forgets answers that their callers do not wait for.
    fn tidy(&mut self) {
        let callers = &self.callers;
        self.network.retain(|message| match message {
            Message::Read(_) | Message::Enter(_) | Message::Write(..) => true,
            Message::Value(c, _) => callers[*c].step == Step::Looks,
            Message::Entered(c, _) => callers[*c].step == Step::Enters,
            Message::Written(c, text) => match &callers[*c].step {
                Step::Begins(run) => run.record == *text,
                Step::Stores(own, _) => own == text,
                _ => false,
            },
            Message::Stale(c) => matches!(callers[*c].step, Step::Enters | Step::Begins(_) | Step::Stores(..)),
        });
    }
}
