//! G: callers of one key of the recipe `once`. Leases protect nothing here: a caller that has the lock may be paused for
//! ever, and another one is granted it with a higher token. Requests to the register are delayed, reordered and lost,
//! and callers are killed at any point.
//!
//! The register keeps the record as the text that ships, `recipes::once::record` writes and judges it, and the rule of
//! fences is `Marks`. What a caller does between two answers is written again here, in `caller`.

mod caller;
mod check;

use lockkeeper::fence::Marks;
use lockkeeper::recipes::once::record::{Record, Terms};
use lockkeeper::{HolderId, Pass, Token};

/// What ships, or a way to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As it is.
    Shipped,
    /// The register takes a result from every runner.
    UnfencedResult,
    /// A caller that gets the lock reads the register and does not raise its fence.
    ReadOnly,
    /// A caller that gets the lock goes by its look before the wait.
    NoSecondLook,
    /// The write that says "running" is repeated when its answer is missing.
    RunningRepeated,
    /// A failure that is to be kept is stored like one that may be tried again.
    FailureForgotten,
    /// A failure hides that a runner before it never ended.
    LeftForgotten,
    /// The result is the runner's as soon as the work has ended, also when it was not stored.
    AnsweredUnstored,
    /// The work does not look for an earlier effect, though it was told of an earlier runner.
    EffectNotLookedFor,
    /// The resource does not compare tokens.
    UnfencedEffect,
}

/// The model and its bounds.
#[derive(Clone, Debug)]
pub struct OnceKey {
    /// Which one.
    pub variant: Variant,
    /// How many callers there are, each with one call.
    pub callers: usize,
    /// Failures are kept, rather than tried again.
    pub keep_failures: bool,
    /// How many runs may fail.
    pub failures: u8,
    /// How many callers may be killed.
    pub kills: u8,
    /// How many messages may be lost.
    pub losses: u8,
    /// How many requests may be repeated because no answer came.
    pub repeats: u8,
}

/// Where a caller stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Has not called.
    New,
    /// Looks before it waits.
    Looks,
    /// Waits for the lock.
    InLine,
    /// Has the lock, and enters the register.
    Enters,
    /// Says "running".
    Begins(Run),
    /// Runs the work; whether the effect has happened.
    Works(Run, bool),
    /// Stores what came out: this text, of a run that succeeded or failed.
    Stores(String, bool),
    /// Has this result.
    Has(u32),
    /// Has an error, was killed, or was told of a kept failure.
    Out,
}

/// What a runner knows of its run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The record in the register: "running".
    record: String,
    /// `Running::taken_over`.
    taken_over: bool,
}

/// One caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    step: Step,
    /// 0 before the lock was granted.
    token: u64,
}

/// A message on its way, and the caller that it is from or for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// To the register: a plain read.
    Read(usize),
    /// To the register: raise the fence, then read.
    Enter(usize),
    /// To the register: write this.
    Write(usize, String),
    /// From the register, to a reader.
    Value(usize, Option<String>),
    /// From the register, to one that entered.
    Entered(usize, Option<String>),
    /// From the register: this was written.
    Written(usize, String),
    /// From the register: a later holder has been here.
    Stale(usize),
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    tokens: u64,
    callers: Vec<Caller>,
    network: Vec<Message>,
    fence: Marks,
    value: Option<String>,
    failures: u8,
    kills: u8,
    losses: u8,
    repeats: u8,
    /// The resource of the work: its fence, and how often the effect has happened.
    resource: Marks,
    effects: u8,
    /// The runs whose work began, and those whose end is stored, by token.
    begun: Vec<u64>,
    ended: Vec<u64>,
    /// What must not happen, and did.
    undone: bool,
    untold: bool,
    ran_again: bool,
    /// The run whose failure is to be kept, once it is stored.
    failed: Option<u64>,
    /// A late runner's record was refused.
    refused: bool,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A caller calls.
    Call(usize),
    /// A caller in line is granted the lock. Whether the lease before has ended does not matter.
    Grant(usize),
    /// The work's effect happens, unless the resource refuses it or it is found there.
    Effect(usize),
    /// The work succeeds.
    Succeed(usize),
    /// The work fails, without an effect of its own.
    Fail(usize),
    /// No answer came: the request is sent again.
    Again(usize),
    /// No answer came, and the caller gives up.
    GiveUp(usize),
    /// The caller's process is killed.
    Kill(usize),
    /// A message arrives.
    Deliver(Message),
    /// A message is lost.
    Lose(Message),
}

/// What tells the record of a run that has not ended.
const RUNNING: &str = r#""state":"running""#;

/// The largest result, far above what these callers have.
const LIMIT: usize = 100;

fn pass(caller: usize, token: u64) -> Pass {
    let token = Token::new(token).expect("a small token");
    Pass::new(crate::NAME.clone(), token, HolderId::from_u128(caller as u128 + 1))
}

fn terms() -> Terms {
    Terms::default()
}

fn text(record: &Record) -> String {
    serde_json::to_string(record).expect("a record is JSON")
}

fn record(text: &str) -> Record {
    serde_json::from_str(text).expect("what was written")
}

impl State {
    fn send(&mut self, message: Message) {
        self.network.push(message);
        self.network.sort_unstable();
    }

    /// What the register does with a message, and answers.
    fn at_register(&mut self, message: Message, variant: Variant) {
        let name = &*crate::NAME;
        match message {
            Message::Read(caller) => self.send(Message::Value(caller, self.value.clone())),
            Message::Enter(caller) => {
                let pass = pass(caller, self.callers[caller].token);
                let answer = match variant {
                    Variant::ReadOnly => Message::Entered(caller, self.value.clone()),
                    _ if self.fence.enter(name, &pass).expect("one lock") => {
                        Message::Entered(caller, self.value.clone())
                    }
                    _ => Message::Stale(caller),
                };
                self.send(answer);
            }
            Message::Write(caller, text) => {
                let token = self.callers[caller].token;
                let unfenced = variant == Variant::UnfencedResult && record(&text).settles();
                if !unfenced && !self.fence.enter(name, &pass(caller, token)).expect("one lock") {
                    self.refused = true;
                    return self.send(Message::Stale(caller));
                }
                self.undone |= self.value.as_ref().is_some_and(|old| *old != text && record(old).settles());
                if !text.contains(RUNNING) {
                    self.ended.push(token);
                    self.ended.sort_unstable();
                    self.ended.dedup();
                }
                self.value = Some(text.clone());
                self.send(Message::Written(caller, text));
            }
            Message::Value(..) | Message::Entered(..) | Message::Written(..) | Message::Stale(_) => {}
        }
    }
}
