//! Taking the lock, and telling meanwhile who holds it: a live line on a terminal, sentences elsewhere.

use super::events::Voice;
use super::signals::Signals;
use crate::args::RunArgs;
use crate::exit::Failure;
use crate::output;
use lockkeeper::store::Record;
use lockkeeper::{ErrorKind, Guard, Keeper, Lock, LockName, Mode, Result};
use serde_json::json;
use std::io::IsTerminal;
use std::pin::pin;
use std::time::{Duration, Instant};
use unicode_width::UnicodeWidthChar;

/// Waiting shorter than this is not worth a word.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a waiter in a log says that it is still there.
const REMINDER: Duration = Duration::from_secs(60);

/// How taking the lock ended.
#[derive(Debug)]
pub(super) enum Answer {
    Got(Guard),
    Busy,
    Signalled(u8),
}

/// Takes the lock.
pub(super) async fn acquire(
    keeper: &Keeper,
    lock: &Lock,
    name: &LockName,
    args: &RunArgs,
    voice: &Voice,
    signals: &mut Signals,
) -> Result<Answer, Failure> {
    let started = Instant::now();
    let line = Line { shown: std::cell::Cell::new(false), live: !voice.json && std::io::stderr().is_terminal() };
    let mut taking = pin!(lock.acquire());
    let mut look = Box::pin(inspect(keeper, name, PATIENCE));
    let pause = if line.live { PATIENCE } else { REMINDER };
    let taken = loop {
        tokio::select! {
            biased;
            taken = &mut taking => break taken,
            number = signals.ending() => {
                line.clear();
                voice.tell("interrupted", "", output::named(name, json!({ "signal": number })));
                return Ok(Answer::Signalled(number));
            }
            seen = &mut look => {
                tell(&line, voice, name, &seen, started.elapsed());
                look = Box::pin(inspect(keeper, name, pause));
            }
        }
    };
    line.clear();
    match taken {
        Ok(guard) => {
            acquired(voice, &guard, started.elapsed());
            Ok(Answer::Got(guard))
        }
        Err(error) if error.kind() == ErrorKind::Busy => {
            let by = error.held().map_or_else(|| "somebody else".to_owned(), ToString::to_string);
            let after = match args.wait {
                Some(wait) if !args.nonblock => format!("still held after {}", lockkeeper::duration::short(wait)),
                _ => "held".to_owned(),
            };
            let fields = json!({
                "host": error.held().and_then(|h| h.holder.as_ref()).map(|n| &n.host),
                "pid": error.held().and_then(|h| h.holder.as_ref()).map(|n| n.pid),
                "label": error.held().and_then(|h| h.holder.as_ref()).map(|n| &n.label),
                "remaining_ms": error.held().and_then(|h| h.remaining).map(output::ms),
                "code": args.busy_code,
            });
            // A code of 0 says that this is as good as done: cron would mail the words.
            let sentence = if args.busy_code == 0 { String::new() } else { format!("'{name}' is {after} by {by}") };
            voice.tell("busy", &sentence, output::named(name, fields));
            Ok(Answer::Busy)
        }
        Err(error) => Err(error.into()),
    }
}

fn acquired(voice: &Voice, guard: &Guard, waited: Duration) {
    let lease = guard.lease();
    let token = matches!(lease.mode(), Mode::Exclusive).then(|| guard.token().get());
    let fields = json!({
        "mode": output::mode_word(lease.mode()),
        "token": token,
        "ttl_ms": output::ms(lease.ttl()),
        "waited_ms": output::ms(waited),
    });
    voice.tell("acquired", "", output::named(guard.name(), fields));
}

/// Looks at the lock after a pause: for people, the claim itself does not depend on it.
async fn inspect(keeper: &Keeper, name: &LockName, pause: Duration) -> Result<Option<Record>> {
    tokio::time::sleep(pause).await;
    keeper.inspect(name).await
}

fn tell(line: &Line, voice: &Voice, name: &LockName, seen: &Result<Option<Record>>, waited: Duration) {
    let seen_record = seen.as_ref().ok().and_then(Option::as_ref);
    let by = match (seen, seen_record) {
        (_, Some(record)) => format!("held by {}", output::holders(record)),
        (Err(error), _) => format!("out of sight ({error})"),
        _ => "about to be free".to_owned(),
    };
    let place = seen_record.and_then(place);
    if line.live {
        let place = place.map_or_else(String::new, |(i, n)| format!(" (place {i} of {n})"));
        let by = seen_record.and_then(brief).unwrap_or(by);
        return line.show(&format!("waiting {} for '{name}'{place}: {by}", lockkeeper::duration::short(waited)));
    }
    let place = place.map_or_else(String::new, |(i, n)| format!("; place {i} of {n} in line"));
    let text = format!("waiting for '{name}', {by}{place}");
    let record = seen_record.map(output::record_json);
    let fields = json!({ "waited_ms": output::ms(waited), "lock": record });
    voice.tell("waiting", &text, output::named(name, fields));
}

/// The first holder for a narrow line: what may be cut off comes last.
fn brief(record: &Record) -> Option<String> {
    let holder = record.holders.first()?;
    let held = output::short(output::age(holder.since));
    let left = output::short(holder.remaining);
    let more = if record.holders.len() > 1 { format!(" and {} more", record.holders.len() - 1) } else { String::new() };
    Some(format!("held {held}, {left} left, by {}{more}", output::who(holder.note.as_ref())))
}

/// Our place in line and the line's length: a waiter with our process id on our machine is us.
fn place(record: &Record) -> Option<(usize, u32)> {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let us = |note: &lockkeeper::Note| note.pid == std::process::id() && note.host == host;
    let at = record.waiters.iter().position(|w| w.note.as_ref().is_some_and(us))?;
    Some((at + 1, record.waiting))
}

/// As much of `text` as fits into so many columns: a line that wraps could not be written over.
fn fitting(text: &str, columns: usize) -> &str {
    let mut used = 0;
    let too_far = |(_, c): &(usize, char)| {
        used += c.width().unwrap_or(0);
        used > columns
    };
    let end = text.char_indices().find(too_far).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

/// A line that is written over again and again.
struct Line {
    live: bool,
    shown: std::cell::Cell<bool>,
}

impl Line {
    fn show(&self, text: &str) {
        let stderr = std::io::stderr();
        let columns = rustix::termios::tcgetwinsize(&stderr).map_or(0, |size| usize::from(size.ws_col));
        let columns = if columns == 0 { 80 } else { columns };
        // One column is left free: a full line would scroll on some terminals.
        let room = columns.max(20).saturating_sub("lockkeeper: ".len() + 1);
        let text = fitting(text, room);
        crate::stderr::write(format!("\r\x1b[Klockkeeper: {text}"));
        self.shown.set(true);
    }

    fn clear(&self) {
        if self.shown.replace(false) {
            crate::stderr::write("\r\x1b[K".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_by_its_width_on_the_screen() {
        assert_eq!(fitting("abcdef", 3), "abc");
        assert_eq!(fitting("部署中", 5), "部署");
        assert_eq!(fitting("部", 5), "部");
    }
}
