//! How connections are opened, set up and closed.

use super::error::{no_tls, unreachable};
use super::options::{Options, SslMode};
use crate::error::Result;
use crate::stores::shared::server;
use crate::stores::shared::timing::CONNECT_LIMIT;
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a connection that is no longer needed may take to say good-bye.
const FAREWELL: Duration = Duration::from_millis(200);

/// How sessions are set up: what statements mean must not depend on the server's defaults. A transaction sees what was
/// committed before each of its statements. It waits one second for a row that another transaction has locked, the
/// shortest wait that every server knows.
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
    SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', autocommit = 1, \
    innodb_lock_wait_timeout = 1, lock_wait_timeout = 10, wait_timeout = 86400";

/// How connections are opened.
#[derive(Debug)]
pub(super) struct Dial {
    pub(super) options: Options,
    /// The server has no TLS to offer, and need not.
    plain: AtomicBool,
}

impl Dial {
    pub(super) fn new(options: Options) -> Self {
        Self { options, plain: AtomicBool::new(false) }
    }

    /// A new connection, set up.
    pub(super) async fn open(&self) -> Result<Conn> {
        let at = self.options.server();
        let silent = |_| server::silent(&at).in_store("mysql");
        let opened = tokio::time::timeout(CONNECT_LIMIT, self.open_now()).await.map_err(silent)?;
        let safe = self.tls() || self.options.opts(false).socket().is_some();
        opened.map_err(|error| unreachable(error, &at, safe))
    }

    /// Whether the next connection has TLS.
    fn tls(&self) -> bool {
        self.options.ssl_mode != SslMode::Disabled && !self.plain.load(Ordering::Relaxed)
    }

    async fn open_now(&self) -> mysql_async::Result<Conn> {
        let mode = self.options.ssl_mode;
        let mut conn = match Conn::new(self.options.opts(self.tls())).await {
            Err(error) if mode == SslMode::Preferred && no_tls(&error) => {
                self.plain.store(true, Ordering::Relaxed);
                Conn::new(self.options.opts(false)).await?
            }
            opened => opened?,
        };
        conn.query_drop(SESSION).await?;
        Ok(conn)
    }
}

/// Closes a connection without waiting for a server that may not answer.
pub(super) async fn hang_up(conn: Conn) {
    // A connection that is too slow is closed as well.
    let _ = tokio::time::timeout(FAREWELL, conn.disconnect()).await;
}
