//! Small histories written by hand, in milliseconds, with a TTL of one second.

use super::logs::{self, Remark};
use super::{Finding, History, Property, Verdict, check};
use crate::history::{Class, Ending, Event, Fault, Forgets, Meta, Nanos, Op, Request, Served, Wanted, What};
use std::collections::HashMap;

pub(super) const MS: Nanos = 1_000_000;

/// A history in the making. Operations below 2^32 are of worker 0.
pub(super) struct Sample {
    pub(super) meta: Meta,
    pub(super) events: Vec<Event>,
    pub(super) served: Vec<Served>,
    pub(super) faults: Vec<Fault>,
    remarks: Vec<Remark>,
    wanted: HashMap<Op, Wanted>,
    holder: Option<String>,
}

/// A run of 1,000 seconds whose faults, if any, are healed at its end.
pub(crate) fn meta() -> Meta {
    Meta {
        mode: "sample".to_owned(),
        subject: "lockkeeper".into(),
        seeds: vec![1],
        commit: "abc".to_owned(),
        versions: vec!["sample 1.0".to_owned()],
        workers: 1,
        setup: None,
        ttl_ms: 1_000,
        bound_ms: 500,
        max_hold_ms: 0,
        excuses: Vec::new(),
        fifo: false,
        forgets: Forgets::By(Vec::new()),
        began: 0,
        calm_until: 0,
        healed: 1_000_000 * MS,
        ended: 1_000_000 * MS,
        leftovers: Vec::new(),
        crashed: Vec::new(),
    }
}

/// A run of ten seconds with something of everything.
pub(crate) fn short() -> History {
    let mut s = Sample::new();
    (s.meta.calm_until, s.meta.healed, s.meta.ended) = (2_000 * MS, 8_000 * MS, 10_000 * MS);
    for op in 0..9 {
        s.held(op, "a", (op * 1_000, op * 1_000 + 10, op * 1_000 + 500), op + 1);
    }
    s.lost(4, 4_400, "gone");
    s.event(5_000, What::Chaos { kind: "a guard forgotten".to_owned() });
    s.fault(1, Class::PauseNode, "node 1", "SIGSTOP", (4_000, 6_000));
    s.history()
}

impl Sample {
    pub(super) fn new() -> Self {
        let wanted = HashMap::new();
        let (events, served, faults, remarks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { meta: meta(), events, served, faults, remarks, wanted, holder: None }
    }

    pub(super) fn history(&self) -> History {
        let mut history = History::new(self.meta.clone());
        history.add(0, self.events.clone()).unwrap();
        history.served = self.served.clone();
        history.faults = self.faults.clone();
        history.remarks = self.remarks.clone();
        history.arrange();
        history
    }

    pub(super) fn verdict(&self) -> Verdict {
        check(&self.history())
    }

    fn event(&mut self, at: u64, what: What) -> &mut Self {
        self.events.push(Event { at: at * MS, what });
        self
    }

    /// Which face of the product worker 0 uses.
    pub(super) fn started(&mut self, kind: &str) {
        self.event(0, What::Started { worker: 0, pid: 1, kind: kind.to_owned() });
    }

    /// How the operation will ask.
    pub(super) fn wants(&mut self, op: Op, _name: &str, wanted: Wanted) -> &mut Self {
        self.wanted.insert(op, wanted);
        self
    }

    pub(super) fn asked(&mut self, op: Op, at: u64, name: &str) -> &mut Self {
        let wanted = self.wanted.get(&op).copied().unwrap_or(Wanted::Exclusive);
        self.event(at, What::Asked { op, name: name.to_owned(), wanted, ttl_ms: 0 })
    }

    /// Valid for a TTL.
    pub(super) fn granted(&mut self, op: Op, at: u64, token: u64) -> &mut Self {
        let (holder, valid_until) = (format!("holder-{op}"), (at + 1_000) * MS);
        self.event(at, What::Granted { op, token, holder, valid_until })
    }

    /// The answer is read after the end of the lease.
    pub(super) fn granted_late(&mut self, op: Op, at: u64, token: u64) {
        let (holder, valid_until) = (format!("holder-{op}"), at * MS - 1);
        self.event(at, What::Granted { op, token, holder, valid_until });
    }

    pub(super) fn refused(&mut self, op: Op, at: u64, kind: &str) {
        self.event(at, What::Refused { op, kind: kind.to_owned(), said: String::new() });
    }

    pub(super) fn kept(&mut self, op: Op, at: u64, until: u64) {
        self.event(at, What::Kept { op, valid_until: until * MS });
    }

    /// Looks at its guard as tasks do.
    pub(super) fn looks(&mut self, op: Op, (from, until): (u64, u64), valid: u64) {
        (from..until).step_by(250).for_each(|at| self.kept(op, at, valid));
    }

    pub(super) fn lost(&mut self, op: Op, at: u64, reason: &str) {
        self.event(at, What::Lost { op, reason: reason.to_owned() });
    }

    pub(super) fn ending(&mut self, op: Op, at: u64, how: Ending) {
        self.event(at, What::Ending { op, how });
    }

    pub(super) fn ended(&mut self, op: Op, at: u64, outcome: &str) {
        self.event(at, What::Ended { op, outcome: outcome.to_owned() });
    }

    /// Asked, granted and released at these moments.
    pub(super) fn held(&mut self, op: Op, name: &str, (asked, granted, released): (u64, u64, u64), token: u64) {
        self.asked(op, asked, name).granted(op, granted, token);
        self.ending(op, released, Ending::Release);
        self.ended(op, released, "released");
    }

    /// The holder that the next line of the register server names.
    pub(super) fn served_by(&mut self, holder: &str) -> &mut Self {
        self.holder = Some(holder.to_owned());
        self
    }

    fn serve(&mut self, op: Op, at: u64, token: u64, request: Request) {
        let holder = self.holder.take().unwrap_or_else(|| format!("holder-{op}"));
        let seq = self.served.len() as u64 + 1;
        self.served.push(Served { at: at * MS, seq, op, name: "a".to_owned(), token, holder, request });
    }

    pub(super) fn enter(&mut self, op: Op, at: u64, token: u64, accepted: bool) {
        self.serve(op, at, token, Request::Enter { accepted });
    }

    pub(super) fn read(&mut self, op: Op, at: u64, token: u64, fenced: u64, naked: u64) {
        self.serve(op, at, token, Request::Read { fenced, naked });
    }

    /// Pairs of what was read and what was found.
    pub(super) fn write(&mut self, op: Op, at: u64, token: u64, accepted: bool, fenced: (u64, u64), naked: (u64, u64)) {
        let ((fenced_base, fenced_was), (naked_base, naked_was)) = (fenced, naked);
        let request = Request::Write { accepted, fenced_base, fenced_was, naked_base, naked_was };
        self.serve(op, at, token, request);
    }

    /// Sent a millisecond before its answer.
    pub(super) fn kv(&mut self, op: Op, at: u64, base: Option<&str>, value: &str, accepted: Option<bool>) {
        let (name, base, value) = ("a".to_owned(), base.map(str::to_owned), value.to_owned());
        self.event(at, What::Kv { op, name, base, value, accepted, sent: (at - 1) * MS });
    }

    pub(super) fn once_runs(&mut self, op: Op, at: u64, token: u64) {
        self.event(at, What::OnceRuns { op, key: "k".to_owned(), token });
    }

    pub(super) fn once_gave(&mut self, op: Op, at: u64, result: Op) {
        self.event(at, What::OnceGave { op, key: "k".to_owned(), result });
    }

    pub(super) fn uses(&mut self, at: u64, fds: u32, threads: u32) {
        self.event(at, What::Uses { fds, threads, rss_kb: 1_000, tasks: None });
    }

    pub(super) fn stopped(&mut self, at: u64, held: usize, releasing: usize) {
        self.event(at, What::Stopped { held, releasing });
    }

    pub(super) fn fault(&mut self, id: u64, class: Class, target: &str, detail: &str, (begin, end): (u64, u64)) {
        for (at, begins) in [(begin, true), (end, false)] {
            let (target, detail) = (target.to_owned(), detail.to_owned());
            self.faults.push(Fault { at: at * MS, id, class, target, detail, begins });
        }
    }

    pub(super) fn log(&mut self, file: &str, text: &str) {
        logs::look(file, text, &mut self.remarks);
    }
}

/// The findings as text: a sentence, then its slice.
pub(super) fn findings(verdict: &Verdict) -> String {
    let one = |finding: &Finding| {
        let slice: String = finding.slice.iter().map(|line| format!("| {line}\n")).collect();
        format!("({}) {}\n{slice}", finding.property.letter(), finding.sentence)
    };
    verdict.findings.iter().map(one).collect()
}

/// Only the findings of one property.
pub(super) fn of(verdict: &Verdict, property: Property) -> Verdict {
    let findings = verdict.findings.iter().filter(|finding| finding.property == property).cloned().collect();
    Verdict { findings, counts: verdict.counts.clone() }
}
