//! A second connection that waits for the end of the session, so that its holders are told at once.

use super::session::{News, Session};
use crate::stores::mysql::calls;
use crate::stores::mysql::connect::hang_up;
use crate::stores::mysql::values::number;
use crate::token::HolderId;
use std::time::Duration;
use tokio::sync::Mutex;

/// How long one wait for the end of the session lasts, in seconds.
const WATCH: u64 = 60;

/// How long the answer may take: a connection that is dead without a word must not be waited on for ever.
const WATCH_LIMIT: Duration = Duration::from_secs(WATCH + 15);

/// Waits for the end of each session, and tells of it.
pub(super) async fn run(session: &Mutex<Session>, news: &News) {
    let mut open = news.open.subscribe();
    let mut conn = None;
    let dial = session.lock().await.dial().clone();
    loop {
        let id = *open.borrow_and_update();
        let Some(id) = id else {
            if open.changed().await.is_err() {
                return;
            }
            continue;
        };
        let mut watching = match conn.take() {
            Some(watching) => watching,
            None => match dial.open().await {
                Ok(watching) => watching,
                Err(_) => {
                    probe(session, id).await;
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    continue;
                }
            },
        };
        let alive = Session::alive_key(id);
        let mut rows = Vec::new();
        let text = format!("SELECT GET_LOCK({alive}, {WATCH}); DO RELEASE_LOCK({alive})");
        let waited = tokio::time::timeout(WATCH_LIMIT, calls::run(&mut watching, &text, &mut rows)).await;
        match (waited, rows.first().map(|row| number(row, 0))) {
            (Ok(Ok(())), Some(Ok(Some(1)))) => {
                let mut session = session.lock().await;
                if session.id == id {
                    session.end().await;
                }
                conn = Some(watching);
            }
            (Ok(Ok(())), _) => conn = Some(watching),
            _ => {
                hang_up(watching).await;
                probe(session, id).await;
            }
        }
    }
}

/// The watch was cut off; perhaps the session was, too.
async fn probe(session: &Mutex<Session>, id: HolderId) {
    let mut session = session.lock().await;
    if session.id == id {
        let longest = session.longest(std::iter::empty());
        // A session that is over ends itself.
        drop(session.ask("DO 0", longest).await);
    }
}
