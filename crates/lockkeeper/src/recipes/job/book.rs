//! What a job keeps in its register: the last window, the run under way, and the last runs. Bounded by construction.

use super::history::{Ended, History, RunRecord};
use super::terms::Begun;
use super::window::{Millis, time};
use crate::store::Note;
use crate::token::Token;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The longest text of one run, in bytes.
pub(super) const MAX_TEXT: usize = 200;

/// The longest name of a machine that is kept, in bytes: what Linux allows.
const MAX_HOST: usize = 64;

/// The most runs that fit into a register of 64 KiB, when every text is as long as it may be and needs escapes.
pub(super) const MAX_RUNS: usize = 50;

/// The value of the register.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    pub(super) last_window: Option<Millis>,
    pub(super) running: Option<Start>,
    history: Vec<Line>,
}

/// A run that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) window: Option<Millis>,
    #[serde(with = "number")]
    pub(super) token: Token,
    started: Millis,
    host: String,
    pid: u32,
    label: String,
    /// Whether it repeats a run that was interrupted. It is not repeated once more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) again: bool,
}

/// A run that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Line {
    #[serde(flatten)]
    start: Start,
    took: Option<Millis>,
    ended: Ended,
    text: String,
}

impl Book {
    /// Whether the run under way is the one with this token.
    pub fn is_of(&self, token: Option<Token>) -> bool {
        token.is_some() && self.running.as_ref().map(|run| run.token) == token
    }

    /// Whether a run is written down that has not ended.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// The run with this token as it began, if it has not ended.
    pub fn under_way(&self, token: Token) -> Option<Begun> {
        let run = self.running.as_ref().filter(|run| run.token == token)?;
        // What a run finds interrupted stands right below it.
        let before = self.history.first().filter(|line| line.ended == Ended::Interrupted);
        Some(Begun { window: run.window, interrupted: before.map(Line::record) })
    }

    /// How the run with this token has ended, if it has.
    pub fn ended(&self, token: Token) -> Option<Ended> {
        self.history.iter().find(|line| line.start.token == token).map(|line| line.ended)
    }

    /// The token of the latest run.
    pub fn latest(&self) -> Option<Token> {
        let running = self.running.as_ref().map(|run| run.token);
        running.or_else(|| self.history.first().map(|line| line.start.token))
    }

    /// Closes the run under way at `now`, by the wall clock that has seen it begin.
    pub fn end_at(&mut self, now: Millis, ended: Ended, text: &str, keep: usize) {
        let began = self.running.as_ref().map_or(now, |run| run.started);
        self.end(Duration::from_millis(now.saturating_sub(began)), ended, text, keep);
    }

    /// Opens a run; the one before it, if it never ended, goes into the history.
    pub(super) fn begin(&mut self, start: Start, keep: usize) -> Option<RunRecord> {
        let interrupted = self.running.take().map(|start| {
            let line = Line { start, took: None, ended: Ended::Interrupted, text: String::new() };
            let record = line.record();
            self.add(line, keep);
            record
        });
        self.last_window = self.last_window.max(start.window);
        self.running = Some(start);
        interrupted
    }

    /// Closes the run under way.
    pub(super) fn end(&mut self, took: Duration, ended: Ended, text: &str, keep: usize) {
        let Some(start) = self.running.take() else { return };
        let took = Millis::try_from(took.as_millis()).ok();
        self.add(Line { start, took, ended, text: clip(text, MAX_TEXT) }, keep);
    }

    fn add(&mut self, line: Line, keep: usize) {
        self.history.insert(0, line);
        self.history.truncate(keep.min(MAX_RUNS));
    }

    /// The history. A run that is not `alive` was interrupted, although no later run has found it yet.
    pub(super) fn history(&self, alive: bool) -> History {
        let last_window = self.last_window.map(time);
        let mut runs: Vec<RunRecord> = self.history.iter().map(Line::record).collect();
        let mut running = self.running.as_ref().map(Start::record);
        if let Some(dead) = running.take_if(|_| !alive) {
            runs.insert(0, RunRecord { ended: Some(Ended::Interrupted), ..dead });
        }
        History { last_window, running, runs }
    }
}

impl Start {
    pub(super) fn new(window: Option<Millis>, token: Token, started: Millis, who: &Note, again: bool) -> Self {
        let (host, label) = (clip(&who.host, MAX_HOST), clip(&who.label, Note::MAX_LABEL));
        Self { window, token, started, host, pid: who.pid, label, again }
    }

    pub(super) fn record(&self) -> RunRecord {
        RunRecord {
            window: self.window.map(time),
            who: Note::new(&self.host, self.pid, &self.label),
            token: self.token,
            started: time(self.started),
            took: None,
            ended: None,
            text: String::new(),
        }
    }
}

impl Line {
    fn record(&self) -> RunRecord {
        RunRecord {
            took: self.took.map(Duration::from_millis),
            ended: Some(self.ended),
            text: self.text.clone(),
            ..self.start.record()
        }
    }
}

/// At most `most` bytes of a text, on one line. Without control characters JSON needs at most two bytes for each.
pub(super) fn clip(text: &str, most: usize) -> String {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A token as its number.
mod number {
    use crate::token::Token;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(token: &Token, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(token.get())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Token, D::Error> {
        Token::new(u64::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::register::MAX_VALUE;
    use proptest::prelude::*;

    fn start(window: Millis, who: &Note) -> Start {
        Start::new(Some(window), Token::MAX, Millis::MAX, who, true)
    }

    fn size(book: &Book) -> usize {
        serde_json::to_vec(book).unwrap().len()
    }

    #[test]
    fn the_fullest_book_fits_into_a_register() {
        for worst in ["\"", "\\", "\u{1}", "\n", "\u{7f}", "ü", "\u{2028}"] {
            let who = Note::new(worst.repeat(1000), u32::MAX, worst.repeat(1000));
            let mut book = Book::default();
            for run in 0..2 * MAX_RUNS as u64 {
                book.begin(start(Millis::MAX - run, &who), usize::MAX);
                book.end(Duration::MAX, Ended::Interrupted, &worst.repeat(1000), usize::MAX);
            }
            book.begin(start(Millis::MAX, &who), usize::MAX);
            assert_eq!(book.history.len(), MAX_RUNS);
            assert!(size(&book) <= MAX_VALUE, "{worst:?}: {}", size(&book));
        }
    }

    #[test]
    fn a_run_that_never_ended_goes_into_the_history_when_the_next_one_begins() {
        let who = Note::new("host", 7, "label");
        let mut book = Book::default();
        assert_eq!(book.begin(start(100, &who), 20), None);
        assert_eq!((book.history(true).running.is_some(), book.history(true).runs.len()), (true, 0));
        let dead = book.history(false);
        assert_eq!((dead.running, dead.runs[0].ended), (None, Some(Ended::Interrupted)));
        let found = book.begin(start(200, &who), 20).unwrap();
        assert_eq!((found.window, found.ended), (Some(time(100)), Some(Ended::Interrupted)));
        book.end(Duration::from_secs(2), Ended::Done, "42 rows", 20);
        let history = book.history(true);
        let ends: Vec<_> = history.runs.iter().map(|run| (run.ended, run.took, &run.text[..])).collect();
        let done = (Some(Ended::Done), Some(Duration::from_secs(2)), "42 rows");
        assert_eq!(ends, [done, (Some(Ended::Interrupted), None, "")]);
        assert_eq!((history.last_window, history.running), (Some(time(200)), None));
        assert_eq!(history.runs[0].who, who);
    }

    #[test]
    fn a_run_is_found_by_its_token() {
        let token = |number| Token::new(number).unwrap();
        let open = |number| Start::new(Some(number * 100), token(number), 1000, &Note::default(), false);
        let mut book = Book::default();
        assert_eq!((book.latest(), book.under_way(token(1)), book.ended(token(1))), (None, None, None));
        book.begin(open(1), 20);
        assert_eq!(book.under_way(token(1)), Some(Begun { window: Some(100), interrupted: None }));
        let interrupted = book.begin(open(2), 20);
        assert!(interrupted.is_some());
        // A request that comes again is told the same.
        assert_eq!(book.under_way(token(2)), Some(Begun { window: Some(200), interrupted }));
        assert_eq!((book.under_way(token(1)), book.ended(token(1))), (None, Some(Ended::Interrupted)));
        book.end_at(1500, Ended::Failed, "", 20);
        assert_eq!(
            (book.ended(token(2)), book.latest(), book.is_running()),
            (Some(Ended::Failed), Some(token(2)), false)
        );
        assert_eq!(book.history(false).runs[0].took, Some(Duration::from_millis(500)));
        book.begin(open(3), 20);
        assert_eq!(book.under_way(token(3)).unwrap().interrupted, None, "the run before it has ended");
        book.end_at(900, Ended::Done, "", 20);
        assert_eq!(book.history(false).runs[0].took, Some(Duration::ZERO), "another machine's clock is ahead");
    }

    #[test]
    fn an_older_window_never_moves_the_last_one_back() {
        let mut book = Book::default();
        for window in [300, 200] {
            book.begin(start(window, &Note::default()), 0);
            book.end(Duration::ZERO, Ended::Done, "", 0);
        }
        assert_eq!((book.last_window, book.history.len()), (Some(300), 0));
    }

    #[test]
    fn a_book_is_readable_and_takes_fields_of_versions_to_come() {
        let mut book = Book::default();
        book.begin(Start::new(Some(900), Token::new(7).unwrap(), 901, &Note::new("h", 3, ""), false), 20);
        let running = r#"{"window":900,"token":7,"started":901,"host":"h","pid":3,"label":""}"#;
        let text = format!(r#"{{"last_window":900,"running":{running},"history":[]}}"#);
        assert_eq!(serde_json::to_string(&book).unwrap(), text);
        assert_eq!(serde_json::from_str::<Book>(&text.replace("\"pid\"", "\"new\":1,\"pid\"")).unwrap(), book);
        assert!(serde_json::from_str::<Book>(&text.replace("\"token\":7", "\"token\":0")).is_err());
        book.end(Duration::from_millis(5), Ended::Failed, "no disk", 20);
        assert_eq!(serde_json::from_slice::<Book>(&serde_json::to_vec(&book).unwrap()).unwrap(), book);
    }

    proptest! {
        #[test]
        fn a_clipped_text_is_short_and_on_one_line(text in ".{0,300}", most in 0usize..250) {
            let clipped = clip(&text, most);
            prop_assert!(clipped.len() <= most && !clipped.chars().any(char::is_control));
        }
    }
}
