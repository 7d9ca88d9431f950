//! A connection, and how long the server waits there for a row that somebody else has locked.

use super::lines::Work;
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;

/// How long a step should wait for its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Whoever asks has patience.
    Long,
    /// It will be asked again before long, and others go out with it: those have their rows locked meanwhile, and a server
    /// does not stop when its caller gives up.
    Brief,
    /// As it comes.
    Any,
}

#[derive(Debug)]
pub(super) struct Line {
    pub(super) conn: Conn,
    brief: bool,
}

impl Line {
    /// A new connection waits long.
    pub(super) fn new(conn: Conn) -> Self {
        Self { conn, brief: false }
    }

    /// Makes the session wait as this work wants it. Renewals have their own connections most of the time, so it stays.
    pub(super) async fn adapt(&mut self, works: &[&Work]) -> mysql_async::Result<()> {
        let Some(brief) = wanted(works).filter(|brief| *brief != self.brief) else { return Ok(()) };
        let seconds = if brief { 1 } else { 5 };
        self.conn.query_drop(format!("SET SESSION innodb_lock_wait_timeout = {seconds}")).await?;
        self.brief = brief;
        Ok(())
    }
}

/// Whether these steps must not wait for long; `None` where it does not matter.
fn wanted(works: &[&Work]) -> Option<bool> {
    let (mut count, mut brief) = (0, false);
    for step in works.iter().flat_map(|work| work.steps().unwrap_or_default()) {
        if step.wait == Wait::Long {
            return Some(false);
        }
        (count, brief) = (count + 1, brief || step.wait == Wait::Brief);
    }
    (count > 1 && brief).then_some(true)
}
