//! Waiting for a lock, and telling meanwhile who holds it: a live line on a terminal, sentences elsewhere.

mod line;

use crate::exit::Failure;
use crate::output;
use crate::supervise::{Held, Signals};
use crate::voice::Voice;
use line::{Line, Sight, Words};
use lockkeeper::store::Record;
use lockkeeper::{Error, ErrorKind, Keeper, LockName, Note, Result};
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

/// How often most commands report that they still wait.
pub(crate) const REMINDER: Duration = Duration::from_secs(60);

/// What is waited for.
#[derive(Debug)]
pub(crate) struct Wait<'a> {
    pub(crate) keeper: &'a Keeper,
    /// The locks; never empty.
    pub(crate) names: &'a [LockName],
    pub(crate) voice: &'a Voice,
    /// How often to report that it still waits, without a terminal.
    pub(crate) reminder: Duration,
}

/// What there is to say about a wait that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct After {
    time: Duration,
    /// For how long the store had not answered at the end, if that was told.
    away: Option<Duration>,
}

impl After {
    /// How long it took.
    pub(crate) fn time(&self) -> Duration {
        self.time
    }
}

impl Wait<'_> {
    /// Waits for `taking`, and tells who holds the lock.
    ///
    /// # Errors
    /// When a signal ended the wait.
    pub(crate) async fn until<T>(
        &self,
        signals: &mut Signals,
        taking: impl Future<Output = T>,
    ) -> Result<(T, After), Failure> {
        let started = Instant::now();
        let line = Line::new(!self.voice.json && std::io::stderr().is_terminal());
        let mut sight = Sight::new(self.reminder);
        let mut taking = pin!(taking);
        let mut look = Box::pin(self.look(PATIENCE));
        let pause = if line.live { PATIENCE } else { LOOK };
        let came = loop {
            tokio::select! {
                biased;
                came = &mut taking => break came,
                number = signals.ending() => {
                    line.clear();
                    self.voice.tell("interrupted", "", output::named(&self.names[0], json!({ "signal": number })));
                    return Err(Failure::signalled(number));
                }
                (name, seen) = &mut look => {
                    tell(&line, &mut sight, self.voice, name, &seen, started.elapsed());
                    look = Box::pin(self.look(pause));
                }
            }
        };
        line.clear();
        let away = sight.away_for(started.elapsed()).filter(|_| !line.live);
        Ok((came, After { time: started.elapsed(), away }))
    }

    /// Looks at the locks after a pause: the first one that another client holds. Only the messages need this, not the
    /// claim.
    async fn look(&self, pause: Duration) -> (&LockName, Result<Option<Record>>) {
        tokio::time::sleep(pause).await;
        let mut first = None;
        for name in self.names {
            let seen = self.keeper.inspect(name).await;
            let another = |record: &Record| record.holders.iter().any(|h| !h.note.as_ref().is_some_and(is_us));
            if !matches!(&seen, Ok(record) if !record.as_ref().is_some_and(another)) {
                return (name, seen);
            }
            first.get_or_insert((name, seen));
        }
        first.unwrap_or((&self.names[0], Ok(None)))
    }

    /// Tells that the locks are held.
    pub(crate) fn acquired(&self, held: &Held, after: After) {
        let (voice, lease) = (self.voice, &held.lease);
        let fields = json!({
            "mode": output::mode_word(lease.mode()),
            "token": held.token().map(lockkeeper::Token::get),
            "ttl_ms": output::ms(lease.ttl()),
            "waited_ms": output::ms(after.time),
        });
        // After a report that the store does not answer, report that it answers again.
        let back =
            after.away.map_or_else(String::new, |away| format!("{}'{}' is ours", line::back(away), lease.name()));
        voice.tell("acquired", &back, output::named(lease.name(), fields));
    }

    /// What an error of taking the locks comes to. When another client holds one, that is told, and the exit code is
    /// `code`; `limit` is how long it was waited for.
    pub(crate) async fn failure(&self, error: Error, limit: Option<Duration>, code: u8) -> Failure {
        if error.kind() != ErrorKind::Busy {
            return error.into();
        }
        let name = self.names.iter().find(|name| error.lock() == Some(name)).unwrap_or(&self.names[0]);
        let holder = error.held().and_then(|held| held.holder.as_ref());
        let fields = json!({
            "host": holder.map(|n| &n.host),
            "pid": holder.map(|n| n.pid),
            "label": holder.map(|n| &n.label),
            "remaining_ms": error.held().and_then(|held| held.remaining).map(output::ms),
            "code": code,
        });
        // With code 0 a busy lock counts as success, and cron would mail a message.
        let mute = code == 0 || self.voice.json;
        let sentence = if mute { String::new() } else { self.why_busy(name, limit, &error).await };
        self.voice.tell("busy", &sentence, output::named(name, fields));
        Failure::told(code)
    }

    /// Why the lock was busy. The error names one holder; its mode and the other holders need a look at the store.
    async fn why_busy(&self, name: &LockName, limit: Option<Duration>, error: &Error) -> String {
        let looked = tokio::time::timeout(LAST_LOOK, self.keeper.inspect(name)).await;
        let record = looked.ok().and_then(Result::ok).flatten();
        let holders = record.map_or_else(Vec::new, |record| record.holders);
        let manner = holders.first().map_or_else(String::new, |holder| output::manner(holder.mode));
        let after = match limit.filter(|limit| !limit.is_zero()) {
            Some(limit) => format!("still held{manner} after {}", lockkeeper::duration::short(limit)),
            None => format!("held{manner}"),
        };
        let by = error.held().map_or_else(|| "another holder".to_owned(), ToString::to_string);
        let more = if holders.len() > 1 { format!(", and by {} more", holders.len() - 1) } else { String::new() };
        format!("'{name}' is {after} by {by}{more}")
    }
}

/// Whether a note in the store is this process's.
fn is_us(note: &Note) -> bool {
    note.pid == std::process::id() && note.host == rustix::system::uname().nodename().to_string_lossy()
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
