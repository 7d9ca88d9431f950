//! Events as short lines for people: the time since the run began, which worker and operation, what happened.

use super::read::{Attempt, Did, History, Kv, Once};
use super::spells::Spell;
use crate::history::{Ending, Nanos, Op, Request, Served, Wanted, worker_of};

/// A line, not yet in its place.
pub(super) struct Line(Nanos, String);

/// The number of an operation, as people read it.
pub(super) fn who(op: Op) -> String {
    format!("worker {}, op {}", worker_of(op), op & u64::from(u32::MAX))
}

/// A time since the run began.
pub(super) fn time(history: &History, at: Nanos) -> String {
    let (sign, nanos) = match at.checked_sub(history.meta.began) {
        Some(after) => ('+', after),
        None => ('-', history.meta.began - at),
    };
    format!("{sign}{}.{:06}s", nanos / 1_000_000_000, nanos % 1_000_000_000 / 1_000)
}

/// Milliseconds with three places.
pub(super) fn millis(nanos: Nanos) -> String {
    format!("{}.{:03} ms", nanos / 1_000_000, nanos % 1_000_000 / 1_000)
}

/// Lines in the order of time, each event once.
pub(super) fn slice(history: &History, mut lines: Vec<Line>) -> Vec<String> {
    lines.sort_by_key(|line| line.0);
    let mut texts: Vec<String> =
        lines.into_iter().map(|Line(at, text)| format!("{} {text}", time(history, at))).collect();
    texts.dedup();
    texts
}

pub(super) fn note(at: Nanos, text: &str) -> Line {
    Line(at, text.to_owned())
}

fn line(at: Nanos, op: Op, text: String) -> Line {
    Line(at, format!("{}: {text}", who(op)))
}

pub(super) fn asked(attempt: &Attempt) -> Line {
    let wanted = match attempt.wanted {
        Wanted::Exclusive => "exclusive".to_owned(),
        Wanted::Shared => "shared".to_owned(),
        Wanted::Permit(limit) => format!("one of {limit} permits"),
    };
    line(attempt.asked, attempt.op, format!("asks for '{}', {wanted}", attempt.name))
}

/// The grant, if there is one.
pub(super) fn granted(history: &History, attempt: &Attempt) -> Vec<Line> {
    let said = |grant: &super::read::Grant| {
        let until = time(history, grant.valid_until);
        line(grant.at, attempt.op, format!("has '{}', token {}, until {until}", attempt.name, grant.token))
    };
    attempt.grant.iter().map(said).collect()
}

/// The last time that the guard said it was valid, if it was asked.
pub(super) fn kept(history: &History, attempt: &Attempt) -> Vec<Line> {
    let said = |(at, until): &(Nanos, Nanos)| {
        line(*at, attempt.op, format!("still has '{}', until {}", attempt.name, time(history, *until)))
    };
    attempt.kept.iter().map(said).collect()
}

/// How the hold ended, as far as its worker wrote it down.
pub(super) fn end(attempt: &Attempt) -> Vec<Line> {
    let (op, name) = (attempt.op, &attempt.name);
    let lost =
        attempt.lost.iter().map(|(at, reason)| line(*at, op, format!("is told that '{name}' is lost: {reason}")));
    let ending = attempt.ending.iter().map(|(at, how)| {
        let text = match how {
            Ending::Release => "releases",
            Ending::Drop => "drops the guard of",
            Ending::Forget => "forgets the guard of",
            Ending::Abort => "aborts, holding",
        };
        line(*at, op, format!("{text} '{name}'"))
    });
    lost.chain(ending).collect()
}

/// All of a hold: the grant, the last belief, the end.
pub(super) fn hold(history: &History, attempt: &Attempt) -> Vec<Line> {
    let mut lines = granted(history, attempt);
    lines.extend(kept(history, attempt));
    lines.extend(end(attempt));
    lines
}

pub(super) fn served(line: &Served) -> Line {
    let (token, seq, name) = (line.token, line.seq, &line.name);
    let said = |accepted: bool| if accepted { "accepted" } else { "refused" };
    let did = match &line.request {
        Request::Enter { accepted } => format!("enter {}", said(*accepted)),
        Request::Read { fenced, naked } => format!("reads fenced {fenced}, naked {naked}"),
        Request::Write { accepted, fenced_base, fenced_was, naked_base, naked_was } => format!(
            "write {}: fenced {fenced_base} read, {fenced_was} found; naked {naked_base} read, {naked_was} found",
            said(*accepted)
        ),
    };
    Line(line.at, format!("register '{name}' #{seq}: {}, token {token}: {did}", who(line.op)))
}

pub(super) fn kv(write: &Kv) -> Line {
    let base = write.base.as_deref().unwrap_or("nothing");
    let said = match write.accepted {
        Some(true) => "accepted",
        Some(false) => "refused",
        None => "no answer",
    };
    line(write.at, write.op, format!("writes '{}' over '{base}' in '{}': {said}", write.value, write.name))
}

pub(super) fn once(once: &Once) -> Line {
    let text = match once.did {
        Did::Runs(token) => format!("runs the work of '{}', token {token}", once.key),
        Did::Gave(result) => format!("has the result of '{}': that of {}", once.key, who(result)),
    };
    line(once.at, once.op, text)
}

pub(super) fn fault(history: &History, spell: &Spell<'_>) -> Line {
    let (fault, until) = (spell.fault, time(history, spell.until));
    let (id, class, target, detail) = (fault.id, fault.class.word(), &fault.target, &fault.detail);
    Line(fault.at, format!("fault {id} until {until}: {class}, {target}: {detail}"))
}
