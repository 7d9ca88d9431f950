//! How much one token may ask for, so that one client cannot take the gateway from the others.

use crate::refused::{Answered, Refused};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Requests a second, in the long run and at once.
const RATE: f64 = 500.0;
const BURST: f64 = 1000.0;

/// Requests that wait, and streams.
const MOST_WAITS: usize = 1000;
const MOST_STREAMS: usize = 50;
/// Pages that are open, and programs that follow locks: people are many behind one token, or without tokens.
const MOST_VIEWS: usize = 500;

/// What a token has used.
#[derive(Debug)]
struct Used {
    left: f64,
    filled: Instant,
    waits: usize,
    streams: usize,
    views: usize,
}

impl Default for Used {
    fn default() -> Self {
        Self { left: BURST, filled: Instant::now(), waits: 0, streams: 0, views: 0 }
    }
}

/// By the id of the token; there are as many as the tokens file has.
#[derive(Debug, Default)]
pub(crate) struct Limits(Arc<Mutex<HashMap<Arc<str>, Used>>>);

/// What is counted as long as it lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lasting {
    Wait,
    Stream,
    View,
}

/// One of them; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    table: Arc<Mutex<HashMap<Arc<str>, Used>>>,
    caller: Arc<str>,
    what: Lasting,
}

fn open(table: &Mutex<HashMap<Arc<str>, Used>>) -> MutexGuard<'_, HashMap<Arc<str>, Used>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Used {
    fn lasting(&mut self, what: Lasting) -> (&mut usize, usize, &'static str) {
        match what {
            Lasting::Wait => (&mut self.waits, MOST_WAITS, "waiting requests"),
            Lasting::Stream => (&mut self.streams, MOST_STREAMS, "streams"),
            Lasting::View => (&mut self.views, MOST_VIEWS, "pages that are kept fresh"),
        }
    }
}

impl Limits {
    /// Counts a request.
    pub(crate) fn request(&self, caller: &Arc<str>) -> Answered<()> {
        let mut table = open(&self.0);
        let (used, now) = (table.entry(caller.clone()).or_default(), Instant::now());
        let gained = now.duration_since(used.filled).as_secs_f64() * RATE;
        (used.left, used.filled) = ((used.left + gained).min(BURST), now);
        if used.left < 1.0 {
            return Err(Refused::limited("requests"));
        }
        used.left -= 1.0;
        Ok(())
    }

    /// How many requests wait, and how many streams there are, those of views among them.
    pub(crate) fn lasting(&self) -> (usize, usize) {
        let add = |(waits, streams), used: &Used| (waits + used.waits, streams + used.streams + used.views);
        open(&self.0).values().fold((0, 0), add)
    }

    /// Counts what lasts.
    pub(crate) fn take(&self, caller: &Arc<str>, what: Lasting) -> Answered<Place> {
        let mut table = open(&self.0);
        let (count, most, name) = table.entry(caller.clone()).or_default().lasting(what);
        if *count >= most {
            return Err(Refused::limited(name));
        }
        *count += 1;
        Ok(Place { table: self.0.clone(), caller: caller.clone(), what })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(used) = open(&self.table).get_mut(&self.caller) {
            let (count, ..) = used.lasting(self.what);
            *count = count.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_its_own_share() {
        let (limits, ann, bob): (_, Arc<str>, Arc<str>) = (Limits::default(), "ann".into(), "bob".into());
        let streams: Vec<Place> =
            (0..MOST_STREAMS).map(|_| limits.take(&ann, Lasting::Stream).expect("room")).collect();
        assert_eq!(limits.take(&ann, Lasting::Stream).unwrap_err().problem.status, 429);
        assert!(limits.take(&bob, Lasting::Stream).is_ok() && limits.take(&ann, Lasting::Wait).is_ok());
        assert_eq!(limits.lasting(), (0, MOST_STREAMS));
        drop(streams);
        assert!(limits.take(&ann, Lasting::Stream).is_ok());
    }

    #[test]
    fn requests_beyond_the_burst_are_refused() {
        let (limits, ann): (_, Arc<str>) = (Limits::default(), "ann".into());
        // Some are gained meanwhile, far less than are asked for.
        let asked = (0..1_000_000).take_while(|_| limits.request(&ann).is_ok()).count();
        assert!((1000..1_000_000).contains(&asked), "{asked}");
    }
}
