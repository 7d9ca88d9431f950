//! Looks at the store, one after another, and how much changed between two of them.

use super::Happened;
use crate::commands::{ls, show};
use lockkeeper::store::Record;
use lockkeeper::{Keeper, LockName, Result};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// What one look found.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) at: Instant,
    pub(super) records: Vec<Record>,
    /// The lock that an operator looks at closely, as `show` tells of it.
    pub(super) page: Option<(LockName, String)>,
}

/// One look.
pub(super) async fn look(keeper: &Keeper, prefix: &[u8], closely: Option<LockName>) -> Result<Seen> {
    let page = match closely {
        None => None,
        Some(name) => {
            let record = keeper.inspect(&name).await?.unwrap_or_else(|| Record::new(name.clone()));
            Some((name, show::body(&record, keeper.info())))
        }
    };
    Ok(Seen { at: Instant::now(), records: ls::all(keeper, prefix).await?, page })
}

/// Looks again and again, and at once when another lock is to be seen closely.
pub(super) async fn keep_looking(
    keeper: Keeper,
    prefix: Vec<u8>,
    every: Duration,
    mut watching: watch::Receiver<Option<LockName>>,
    into: mpsc::UnboundedSender<Happened>,
) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            changed = watching.changed() => if changed.is_err() { return },
        }
        let closely = watching.borrow_and_update().clone();
        if into.send(Happened::Looked(look(&keeper, &prefix, closely).await)).is_err() {
            return;
        }
    }
}

/// How many holders came or went, a second.
#[derive(Debug, Default)]
pub(super) struct Pace {
    before: Option<(Instant, HashSet<String>)>,
}

impl Pace {
    /// Counts from the look before; `None` at the first one.
    pub(super) fn count(&mut self, seen: &Seen) -> Option<f64> {
        let now: HashSet<String> = seen.records.iter().flat_map(holders).collect();
        let rate = self.before.as_ref().map(|(at, before)| {
            let changes = f64::from(u32::try_from(now.symmetric_difference(before).count()).unwrap_or(u32::MAX));
            // Two looks are never at the same moment, but a clock may be coarse.
            changes / seen.at.duration_since(*at).as_secs_f64().max(0.001)
        });
        self.before = Some((seen.at, now));
        rate
    }
}

/// What tells holders apart. Holder ids are not shown to operators; the token and the start are.
fn holders(record: &Record) -> impl Iterator<Item = String> {
    let tell = |holder: &lockkeeper::store::HolderRecord| {
        let since = holder.token.map_or_else(|| format!("{:?}", holder.since), |token| token.to_string());
        format!("{:?} {since} {:?}", record.name.as_bytes(), holder.note)
    };
    record.holders.iter().map(tell)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::store::HolderRecord;
    use lockkeeper::{Mode, Token};

    #[test]
    fn holders_that_came_or_went_are_counted() {
        let start = Instant::now();
        let seen = |seconds, tokens: &[u64]| {
            let mut record = Record::new(LockName::new("x").unwrap());
            for token in tokens {
                let mut holder = HolderRecord::new(Mode::Shared);
                holder.token = Token::new(*token).ok();
                record.holders.push(holder);
            }
            Seen { at: start + Duration::from_secs(seconds), records: vec![record], page: None }
        };
        let mut pace = Pace::default();
        assert_eq!(pace.count(&seen(0, &[1, 2])), None);
        assert_eq!(pace.count(&seen(1, &[1, 2])), Some(0.0));
        // One went and two came, in two seconds.
        assert_eq!(pace.count(&seen(3, &[2, 3, 4])), Some(1.5));
    }
}
