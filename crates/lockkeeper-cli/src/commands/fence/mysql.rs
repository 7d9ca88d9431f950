//! MySQL and MariaDB.

use super::url::Place;
use super::{LOCK_PATIENCE, Row, failure, inside, tls, unreached};
use crate::exit::Failure;
use crate::store;
use lockkeeper::ErrorKind;
use lockkeeper::fence::mysql as fence;
use lockkeeper::name::escape;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, IoError, OptsBuilder, SslOpts};

/// Where Debian's servers listen.
const SOCKET: &str = "/run/mysqld/mysqld.sock";

pub(super) struct Base {
    connection: Conn,
    shown: String,
    at: String,
}

impl Base {
    pub(super) async fn open(place: &Place) -> Result<Self, Failure> {
        let user = place.user.clone().or_else(|| std::env::var("USER").ok());
        let mut options = OptsBuilder::default()
            .user(user)
            .pass(place.password.clone())
            .db_name(Some(place.database.clone()))
            .tcp_port(place.port)
            .prefer_socket(false);
        let at = match (&place.socket, place.host.as_str()) {
            (Some(socket), _) => {
                options = options.socket(Some(socket.to_string_lossy()));
                store::path(socket)
            }
            (None, "") => {
                options = options.socket(Some(SOCKET));
                SOCKET.to_owned()
            }
            (None, host) => {
                options = options.ip_or_hostname(host);
                place.address()
            }
        };
        // No TLS on a socket, as in libpq; the driver would ask for it.
        if place.tls && place.socket.is_none() && !place.host.is_empty() {
            // The driver takes the process's provider.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let roots = tls::authorities(place)?.into_iter().map(|c| c.to_vec().into()).collect();
            options = options.ssl_opts(SslOpts::default().with_root_certs(roots).with_disable_built_in_roots(true));
        }
        let failed = |e: Error| map_err(&place.shown, &at, &e);
        let mut connection = Conn::new(options).await.map_err(failed)?;
        // The server must not carry out a statement after we have given up on it.
        let patience = LOCK_PATIENCE.as_secs();
        // Procedures keep the SQL mode they were created in, and some modes parse SQL differently.
        let set = format!(
            "SET innodb_lock_wait_timeout = {patience}, lock_wait_timeout = {patience}, sql_mode = 'STRICT_ALL_TABLES'"
        );
        connection.query_drop(set).await.map_err(failed)?;
        Ok(Self { connection, shown: place.shown.clone(), at })
    }

    /// MySQL rather than MariaDB, whose versions begin at 10.
    pub(super) fn is_mysql(&self) -> bool {
        self.connection.server_version().0 < 10
    }

    pub(super) async fn layout(&mut self) -> Result<Option<i64>, Failure> {
        match self.connection.query_first(fence::VERSION_SQL).await {
            Ok(version) => Ok(version),
            // No such table.
            Err(Error::Server(e)) if e.code == 1146 => Ok(None),
            Err(e) => Err(self.failed(&e)),
        }
    }

    pub(super) async fn install(&mut self) -> Result<(), Failure> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.install_once().await {
                // Another installer has just made the procedure, or the column, that we were about to make.
                Err(Error::Server(e)) if matches!(e.code, 1304 | 1060) && tries < 10 => {}
                done => return done.map_err(|e| self.failed(&e)),
            }
        }
    }

    async fn install_once(&mut self) -> Result<(), Error> {
        for statement in fence::install_statements() {
            self.connection.query_drop(statement).await?;
        }
        Ok(())
    }

    pub(super) async fn status(&mut self, resource: Option<&str>) -> Result<Vec<Row>, Failure> {
        type Columns = (String, i64, Option<String>, Option<String>, i64);
        let rows: Result<Vec<Columns>, _> = self.connection.exec(fence::STATUS_SQL, (resource, resource)).await;
        let rows = rows.map_err(|e| self.failed(&e))?;
        let row = |(resource, token, store, entered_at, shared)| Row { resource, token, store, entered_at, shared };
        Ok(rows.into_iter().map(row).collect())
    }

    pub(super) async fn reset(&mut self, resource: Option<&str>) -> Result<u64, Failure> {
        let done = match resource {
            Some(resource) => self.connection.exec_drop(fence::RESET_SQL, (resource,)).await,
            None => self.connection.query_drop(fence::RESET_ALL_SQL).await,
        };
        done.map_err(|e| self.failed(&e))?;
        Ok(self.connection.affected_rows())
    }

    fn failed(&self, error: &Error) -> Failure {
        map_err(&self.shown, &self.at, error)
    }
}

fn map_err(shown: &str, at: &str, error: &Error) -> Failure {
    let (kind, why) = match error {
        Error::Server(e) => {
            let kind = match e.code {
                // Access denied: to the server, a database, a command, a column, a routine, or for lack of a privilege.
                1044 | 1045 | 1142 | 1143 | 1227 | 1370 | 1698 => ErrorKind::Denied,
                // From this host, with an expired password, a locked login, or without TLS.
                1130 | 1820 | 1862 | 3118 | 4151 | 3159 => ErrorKind::Denied,
                1049 => ErrorKind::InvalidConfig,
                // Too many connections, shutting down, read only, lock wait, deadlock, another member of a group.
                1040 | 1053 | 1290 | 1205 | 1213 | 3101 => ErrorKind::Unavailable,
                _ => ErrorKind::Unexpected,
            };
            (kind, if e.code == 1205 { inside() } else { e.message.clone() })
        }
        Error::Io(IoError::Io(e)) => (ErrorKind::Unavailable, unreached(at, e)),
        Error::Io(e) => (ErrorKind::Unavailable, e.to_string()),
        Error::Driver(e) => (ErrorKind::Unavailable, e.to_string()),
        other => (ErrorKind::Unexpected, other.to_string()),
    };
    failure(kind, format!("{shown}: {}", escape(why.as_bytes())))
}
