//! What is on the screen, and what keys do to it. Knows neither the store nor the terminal.

use super::keys::Key;
use super::look::{Pace, Seen};
use crate::commands::ls;
use crate::output;
use lockkeeper::store::Record;
use lockkeeper::{LockName, Result, StoreInfo, Token};
use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

/// What the program is to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Nothing,
    Quit,
    /// Look at this lock closely, or at none.
    Look(Option<LockName>),
    Break(LockName, Token),
}

/// Which locks come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Most waiters, then the longest held.
    Waiting,
    /// The longest held.
    Age,
    Name,
}

impl Order {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiters",
            Self::Age => "age",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Waiting => Self::Age,
            Self::Age => Self::Name,
            Self::Name => Self::Waiting,
        }
    }
}

/// What an operator types, if anything.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typing {
    Nothing,
    Filter,
    /// The token of the holder to remove from this lock.
    Token(LockName, String),
}

/// A line of the table: a holder, or a lock that is only waited for.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: LockName,
    pub(super) token: Option<Token>,
    pub(super) cells: Vec<String>,
}

#[derive(Debug)]
pub(super) struct View {
    pub(super) store: String,
    pub(super) rate: Option<f64>,
    pub(super) order: Order,
    pub(super) filter: String,
    pub(super) typing: Typing,
    /// A lock that is looked at closely, and its page once it is there.
    pub(super) page: Option<(LockName, Option<String>)>,
    /// What is to be said below the table.
    pub(super) message: Option<String>,
    pub(super) rows: Vec<Row>,
    /// The number of waiters of the locks in `rows`.
    pub(super) waiting: u64,
    /// The chosen row.
    pub(super) at: usize,
    records: Vec<Record>,
    pace: Pace,
    /// Whether the store did not answer the last look.
    away: bool,
}

impl View {
    pub(super) fn new(info: &StoreInfo) -> Self {
        let servers = if info.servers.is_empty() { String::new() } else { format!(" at {}", info.servers) };
        Self {
            store: format!("{}{servers}, guarantee {}", info.scheme, info.guarantee.as_str()),
            rate: None,
            order: Order::Waiting,
            filter: String::new(),
            typing: Typing::Nothing,
            page: None,
            message: None,
            rows: Vec::new(),
            waiting: 0,
            at: 0,
            records: Vec::new(),
            pace: Pace::default(),
            away: false,
        }
    }

    /// Takes what a look has found. A store that does not answer leaves what was seen last.
    pub(super) fn looked(&mut self, seen: Result<Seen>) -> Wish {
        match seen {
            Ok(mut seen) => {
                self.rate = self.pace.count(&seen);
                if let (Some((name, page)), Some((of, text))) = (&mut self.page, seen.page.take())
                    && *name == of
                {
                    *page = Some(text);
                }
                self.records = seen.records;
                if std::mem::take(&mut self.away) {
                    self.message = None;
                }
                self.arrange();
            }
            Err(error) => {
                self.away = true;
                self.message = Some(format!("as seen before; the store does not answer: {error}"));
            }
        }
        Wish::Nothing
    }

    pub(super) fn say(&mut self, message: String) -> Wish {
        self.message = Some(message);
        Wish::Look(self.page.as_ref().map(|(name, _)| name.clone()))
    }

    pub(super) fn key(&mut self, key: Key) -> Wish {
        self.message = None;
        match &mut self.typing {
            Typing::Nothing => self.command(key),
            Typing::Filter => {
                match key {
                    Key::Char(c) => self.filter.push(c),
                    Key::Backspace => _ = self.filter.pop(),
                    Key::Escape => {
                        self.filter.clear();
                        self.typing = Typing::Nothing;
                    }
                    Key::Enter => self.typing = Typing::Nothing,
                    Key::Up | Key::Down => {}
                }
                self.arrange();
                Wish::Nothing
            }
            Typing::Token(name, text) => {
                match key {
                    Key::Char(c) => text.push(c),
                    Key::Backspace => _ = text.pop(),
                    Key::Escape => self.typing = Typing::Nothing,
                    Key::Enter => {
                        let (name, token) = (name.clone(), text.trim().parse().ok().and_then(|n| Token::new(n).ok()));
                        self.typing = Typing::Nothing;
                        if let Some(token) = token {
                            return Wish::Break(name, token);
                        }
                        self.message =
                            Some("a token is a whole number, as in the table: nothing was broken".to_owned());
                    }
                    Key::Up | Key::Down => {}
                }
                Wish::Nothing
            }
        }
    }

    fn command(&mut self, key: Key) -> Wish {
        match key {
            Key::Char('q') => return Wish::Quit,
            Key::Char('b') => {
                let chosen = self.rows.get(self.at).map(|row| &row.name);
                if let Some(name) = self.page.as_ref().map(|(name, _)| name).or(chosen) {
                    self.typing = Typing::Token(name.clone(), String::new());
                }
            }
            Key::Escape | Key::Enter if self.page.is_some() => {
                self.page = None;
                return Wish::Look(None);
            }
            Key::Enter => {
                if let Some(row) = self.rows.get(self.at) {
                    self.page = Some((row.name.clone(), None));
                    return Wish::Look(Some(row.name.clone()));
                }
            }
            _ if self.page.is_some() => {}
            Key::Up => self.at = self.at.saturating_sub(1),
            Key::Down => self.at = (self.at + 1).min(self.rows.len().saturating_sub(1)),
            Key::Char('/') => self.typing = Typing::Filter,
            Key::Char('s') => {
                self.order = self.order.next();
                self.arrange();
            }
            #[cfg(debug_assertions)]
            Key::Char('!') if std::env::var_os("LOCKKEEPER_TEST_PANIC").is_some() => panic!("a test asked for it"),
            _ => {}
        }
        Wish::Nothing
    }

    /// Makes the rows anew. The chosen one stays chosen wherever it has moved.
    fn arrange(&mut self) {
        let chosen = self.rows.get(self.at).map(|row| (row.name.clone(), row.token));
        let oldest = |record: &Record| record.holders.iter().filter_map(|h| h.since).min();
        let age = |record: &Record| Reverse(oldest(record).map_or(Duration::ZERO, passed));
        let (order, names) = (self.order, |a: &Record, b: &Record| a.name.as_bytes().cmp(b.name.as_bytes()));
        // One clock for the whole sort: an age that grew meanwhile would contradict itself.
        let mut sorted: Vec<_> = self.records.iter().map(|record| (age(record), record)).collect();
        sorted.sort_by(|(age_a, a), (age_b, b)| match order {
            Order::Waiting => b.waiting.cmp(&a.waiting).then(age_a.cmp(age_b)).then_with(|| names(a, b)),
            Order::Age => age_a.cmp(age_b).then_with(|| names(a, b)),
            Order::Name => names(a, b),
        });
        (self.rows, self.waiting) = (Vec::new(), 0);
        for (_, record) in sorted {
            let before = self.rows.len();
            for (cells, holder) in ls::rows(record).into_iter().zip(0..) {
                // The name, the mode, the holder and the label.
                if cells[..4].iter().any(|cell| cell.contains(&self.filter)) {
                    let token = record.holders.get(holder).and_then(|h: &lockkeeper::store::HolderRecord| h.token);
                    self.rows.push(Row { name: record.name.clone(), token, cells });
                }
            }
            if self.rows.len() > before {
                self.waiting += u64::from(record.waiting);
            }
        }
        let again = |row: &Row| chosen.as_ref().is_some_and(|(name, token)| row.name == *name && row.token == *token);
        let last = self.rows.len().saturating_sub(1);
        self.at = self.rows.iter().position(again).unwrap_or(self.at.min(last));
    }

    /// The frame of a program that runs once.
    pub(super) fn once(&self, columns: Option<usize>) -> String {
        let rows = self.rows.iter().map(|row| row.cells.clone()).collect();
        format!("{}\n{}", super::draw::head(self), ls::table(rows, columns))
    }
}

fn passed(since: SystemTime) -> Duration {
    output::age(Some(since)).unwrap_or_default()
}
