//! What a caller does next: `recipes::once`, from its first look to its result.

use super::{Action, LIMIT, Message, OnceKey, Run, State, Step, Variant, pass, record, terms, text};
use lockkeeper::Token;
use lockkeeper::recipes::once::record::{Record, Verdict, judge};

impl OnceKey {
    /// A caller gets an answer of the register.
    pub(super) fn at_caller(&self, s: &mut State, message: Message) {
        match message {
            Message::Value(c, value) if s.callers[c].step == Step::Looks => {
                s.callers[c].step = match read(value.as_deref()) {
                    Verdict::Settled(answer) => settled(answer),
                    Verdict::Open { .. } => Step::InLine,
                };
            }
            Message::Entered(c, value) if s.callers[c].step == Step::Enters => {
                let value = if self.variant == Variant::NoSecondLook { None } else { value };
                match read(value.as_deref()) {
                    Verdict::Settled(answer) => s.callers[c].step = settled(answer),
                    Verdict::Open { attempt, left } => self.begin(s, c, attempt, left),
                }
            }
            Message::Written(c, written) => self.written(s, c, &written),
            Message::Stale(c) => s.callers[c].step = Step::Out,
            _ => {}
        }
    }

    fn begin(&self, s: &mut State, c: usize, attempt: u32, left: bool) {
        let token = Token::new(s.callers[c].token).expect("a small token");
        let hidden = self.variant == Variant::LeftForgotten;
        let record = text(&Record::running(token, attempt, left && !hidden, &terms()));
        s.callers[c].step = Step::Begins(Run { record: record.clone(), taken_over: left });
        s.send(Message::Write(c, record));
    }

    fn written(&self, s: &mut State, c: usize, written: &str) {
        let token = s.callers[c].token;
        s.callers[c].step = match &s.callers[c].step {
            Step::Begins(run) if run.record == written => {
                s.ran_again |= s.failed.is_some_and(|failed| failed < token);
                let left = |other: &u64| *other < token && !s.ended.contains(other);
                s.untold |= !run.taken_over && s.begun.iter().any(left);
                s.begun.push(token);
                s.begun.sort_unstable();
                Step::Works(run.clone(), false)
            }
            Step::Stores(own, succeeded) if own == written => {
                s.failed = s.failed.or((self.keep_failures && !succeeded).then_some(token));
                match (succeeded, read(Some(written))) {
                    (true, Verdict::Settled(answer)) => settled(answer),
                    _ => Step::Out,
                }
            }
            _ => return,
        };
    }

    /// The work has ended.
    fn end(&self, s: &mut State, c: usize, succeeds: bool) {
        let Step::Works(run, _) = &s.callers[c].step else { return };
        let (own, result) = (record(&run.record), s.callers[c].token as u32);
        let record = if succeeds {
            own.done(&result, LIMIT)
        } else {
            own.failed(&"the bank is closed", self.keep_failures && self.variant != Variant::FailureForgotten)
        };
        let text = text(&record);
        let answered = self.variant == Variant::AnsweredUnstored && succeeds;
        s.callers[c].step = if answered { Step::Has(result) } else { Step::Stores(text.clone(), succeeds) };
        s.send(Message::Write(c, text));
    }

    /// The effect, in one transaction with its fence. The work looks for an earlier one only if it was told to.
    fn effect(&self, s: &mut State, c: usize) {
        let Step::Works(run, done) = &mut s.callers[c].step else { return };
        *done = true;
        let found = run.taken_over && s.effects > 0 && self.variant != Variant::EffectNotLookedFor;
        let token = s.callers[c].token;
        if self.variant == Variant::UnfencedEffect || s.resource.enter(&crate::NAME, &pass(c, token)).expect("one lock")
        {
            s.effects += u8::from(!found);
        } else {
            s.callers[c].step = Step::Out;
        }
    }

    /// The request that a caller waits for, if it may be sent again.
    pub(super) fn repeatable(&self, s: &State, c: usize) -> Option<Message> {
        match &s.callers[c].step {
            Step::Looks => Some(Message::Read(c)),
            Step::Enters => Some(Message::Enter(c)),
            Step::Begins(run) if record(&run.record).settles() || self.variant == Variant::RunningRepeated => {
                Some(Message::Write(c, run.record.clone()))
            }
            Step::Stores(text, _) if record(text).settles() => Some(Message::Write(c, text.clone())),
            _ => None,
        }
    }

    pub(super) fn take(&self, s: &mut State, action: &Action) {
        match *action {
            Action::Call(c) => {
                s.callers[c].step = Step::Looks;
                s.send(Message::Read(c));
            }
            Action::Grant(c) => {
                s.tokens += 1;
                (s.callers[c].token, s.callers[c].step) = (s.tokens, Step::Enters);
                s.send(Message::Enter(c));
            }
            Action::Effect(c) => self.effect(s, c),
            Action::Succeed(c) => self.end(s, c, true),
            Action::Fail(c) => {
                s.failures += 1;
                self.end(s, c, false);
            }
            Action::Again(c) => {
                s.repeats += 1;
                if let Some(message) = self.repeatable(s, c) {
                    s.send(message);
                }
            }
            Action::GiveUp(c) => s.callers[c].step = Step::Out,
            Action::Kill(c) => {
                s.kills += 1;
                s.callers[c].step = Step::Out;
            }
            Action::Deliver(_) | Action::Lose(_) => {}
        }
    }
}

fn read(value: Option<&str>) -> Verdict<u32> {
    judge(value.map(record).as_ref(), &terms())
}

fn settled(answer: lockkeeper::Result<u32>) -> Step {
    answer.map_or(Step::Out, Step::Has)
}
