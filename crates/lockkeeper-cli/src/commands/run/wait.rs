//! Taking the lock, and telling meanwhile who holds it: a live line on a terminal, sentences elsewhere.

mod line;

use super::events::Voice;
use super::signals::Signals;
use crate::args::RunArgs;
use crate::exit::Failure;
use crate::output;
use line::{Line, Sight, Words};
use lockkeeper::store::Record;
use lockkeeper::{Error, ErrorKind, Guard, Keeper, Lock, LockName, Mode, Result};
use serde_json::json;
use std::io::IsTerminal;
use std::pin::pin;
use std::time::{Duration, Instant};

/// A shorter wait is not reported. Also the pause between two writes of a live line.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a waiter without a terminal checks the lock, so that it can report a store that does not answer. Its
/// keep-alives ask the store more often.
const LOOK: Duration = Duration::from_secs(5);
/// How long the last look at a busy lock may take: it only adds detail to the message.
const LAST_LOOK: Duration = Duration::from_secs(1);

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
    let line = Line::new(!voice.json && std::io::stderr().is_terminal());
    let mut sight = Sight::default();
    let mut taking = pin!(lock.acquire());
    let mut look = Box::pin(inspect(keeper, name, PATIENCE));
    let pause = if line.live { PATIENCE } else { LOOK };
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
                tell(&line, &mut sight, voice, name, &seen, started.elapsed());
                look = Box::pin(inspect(keeper, name, pause));
            }
        }
    };
    line.clear();
    match taken {
        Ok(guard) => {
            acquired(voice, &guard, started.elapsed(), sight.away_for(started.elapsed()).filter(|_| !line.live));
            Ok(Answer::Got(guard))
        }
        Err(error) if error.kind() == ErrorKind::Busy => {
            let fields = json!({
                "host": error.held().and_then(|h| h.holder.as_ref()).map(|n| &n.host),
                "pid": error.held().and_then(|h| h.holder.as_ref()).map(|n| n.pid),
                "label": error.held().and_then(|h| h.holder.as_ref()).map(|n| &n.label),
                "remaining_ms": error.held().and_then(|h| h.remaining).map(output::ms),
                "code": args.busy_code,
            });
            // With code 0 a busy lock counts as success, and cron would mail a message.
            let mute = args.busy_code == 0 || voice.json;
            let sentence = if mute { String::new() } else { busy(keeper, name, args, &error).await };
            voice.tell("busy", &sentence, output::named(name, fields));
            Ok(Answer::Busy)
        }
        Err(error) => Err(error.into()),
    }
}

/// Why the lock was busy. The error names one holder; its mode and the other holders need a look at the store.
async fn busy(keeper: &Keeper, name: &LockName, args: &RunArgs, error: &Error) -> String {
    let looked = tokio::time::timeout(LAST_LOOK, keeper.inspect(name)).await;
    let record = looked.ok().and_then(Result::ok).flatten();
    let holders = record.map_or_else(Vec::new, |record| record.holders);
    let manner = holders.first().map_or_else(String::new, |holder| output::manner(holder.mode));
    let after = match args.wait {
        Some(wait) if !args.nonblock => format!("still held{manner} after {}", lockkeeper::duration::short(wait)),
        _ => format!("held{manner}"),
    };
    let by = error.held().map_or_else(|| "another holder".to_owned(), ToString::to_string);
    let more = if holders.len() > 1 { format!(", and by {} more", holders.len() - 1) } else { String::new() };
    format!("'{name}' is {after} by {by}{more}")
}

fn acquired(voice: &Voice, guard: &Guard, waited: Duration, away: Option<Duration>) {
    let lease = guard.lease();
    let token = matches!(lease.mode(), Mode::Exclusive).then(|| guard.token().get());
    let fields = json!({
        "mode": output::mode_word(lease.mode()),
        "token": token,
        "ttl_ms": output::ms(lease.ttl()),
        "waited_ms": output::ms(waited),
    });
    // After a report that the store does not answer, report that it answers again.
    let back = away.map_or_else(String::new, |away| format!("{}'{}' is ours", line::back(away), guard.name()));
    voice.tell("acquired", &back, output::named(guard.name(), fields));
}

/// Looks at the lock after a pause. Only the messages need this, not the claim.
async fn inspect(keeper: &Keeper, name: &LockName, pause: Duration) -> Result<Option<Record>> {
    tokio::time::sleep(pause).await;
    keeper.inspect(name).await
}

fn tell(
    line: &Line,
    sight: &mut Sight,
    voice: &Voice,
    name: &LockName,
    seen: &Result<Option<Record>>,
    waited: Duration,
) {
    let answers = !seen.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable);
    let news = sight.saw(answers, waited);
    let words = Words { name, seen, waited, news };
    if line.live {
        return line.show(&words);
    }
    if news.is_due {
        let record = seen.as_ref().ok().and_then(Option::as_ref).map(output::record_json);
        let error = seen.as_ref().err().map(ToString::to_string);
        let fields = json!({ "waited_ms": output::ms(waited), "lock": record, "error": error });
        voice.tell("waiting", &words.sentence(), output::named(name, fields));
    }
}
