//! PostgreSQL.

use super::url::Place;
use super::{LOCK_PATIENCE, Row, failure, inside, tls, unreached};
use crate::exit::Failure;
use crate::store;
use lockkeeper::ErrorKind;
use lockkeeper::fence::postgres as fence;
use lockkeeper::name::escape;
use std::path::PathBuf;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Error, NoTls};

/// Where Debian's servers listen.
const DIRECTORY: &str = "/var/run/postgresql";

pub(super) struct Base {
    client: Client,
    shown: String,
    at: String,
    settings: String,
}

impl Base {
    pub(super) async fn open(place: &Place) -> Result<Self, Failure> {
        let mut config = Config::new();
        config.application_name("lockkeeper").port(place.port);
        let directory = match &place.socket {
            None if place.host.is_empty() => Some(PathBuf::from(DIRECTORY)),
            // A host that begins with a slash is the directory of a socket.
            None => Some(PathBuf::from(&place.host)).filter(|host| host.has_root()),
            socket => socket.clone(),
        };
        let at = match directory {
            Some(directory) => {
                config.host_path(&directory);
                store::path(&directory.join(format!(".s.PGSQL.{}", place.port)))
            }
            None => {
                config.host(&place.host);
                place.address()
            }
        };
        if let Some(user) = &place.user {
            config.user(user);
        }
        if let Some(password) = &place.password {
            config.password(password);
        }
        if !place.database.is_empty() {
            config.dbname(&place.database);
        }
        let shown = place.shown.clone();
        let client = if place.tls {
            config.ssl_mode(SslMode::Require);
            let tls = tokio_postgres_rustls::MakeRustlsConnect::new(tls::config(place)?);
            let (client, connection) = config.connect(tls).await.map_err(|e| map_err(&shown, &at, &e))?;
            tokio::spawn(connection);
            client
        } else {
            config.ssl_mode(SslMode::Disable);
            let (client, connection) = config.connect(NoTls).await.map_err(|e| map_err(&shown, &at, &e))?;
            tokio::spawn(connection);
            client
        };
        // Set for each transaction, not for the session: a pooler may give the session to another client next.
        let mut settings = format!("SET LOCAL lock_timeout = '{}s'", LOCK_PATIENCE.as_secs());
        if let Some(schema) = &place.schema {
            settings += &format!("; SET LOCAL search_path = \"{}\"", schema.replace('"', "\"\""));
        }
        let mut base = Self { client, shown, at, settings };
        let rows = base.ask("SELECT current_schema()::text", &[]).await.map_err(|e| base.failed(&e))?;
        if rows.first().and_then(|row| row.get::<_, Option<String>>(0)).is_none() {
            let which = place.schema.as_ref().map_or_else(String::new, |s| format!(" '{}'", escape(s.as_bytes())));
            return Err(Failure::config(format!("{} has no such schema{which}; create it first", base.shown)));
        }
        Ok(base)
    }

    /// Asks in a transaction of its own.
    async fn ask(
        &mut self,
        text: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<tokio_postgres::Row>, Error> {
        let transaction = self.client.transaction().await?;
        transaction.batch_execute(&self.settings).await?;
        let rows = transaction.query_typed(text, params).await?;
        transaction.commit().await?;
        Ok(rows)
    }

    pub(super) async fn layout(&mut self) -> Result<Option<i64>, Failure> {
        match self.ask(fence::VERSION_SQL, &[]).await {
            Ok(rows) => Ok(rows.first().and_then(|row| row.try_get::<_, i32>(0).ok()).map(i64::from)),
            Err(e) if e.code().is_some_and(|code| code.code() == "42P01") => Ok(None),
            Err(e) => Err(self.failed(&e)),
        }
    }

    pub(super) async fn install(&self) -> Result<(), Failure> {
        // The script has a BEGIN of its own, which then has no effect.
        let text = format!("BEGIN; {}; {}", self.settings, fence::INSTALL_SQL);
        self.client.batch_execute(&text).await.map_err(|e| self.failed(&e))
    }

    pub(super) async fn status(&mut self, resource: Option<&str>) -> Result<Vec<Row>, Failure> {
        let rows = self.ask(fence::STATUS_SQL, &[(&resource, Type::TEXT)]).await.map_err(|e| self.failed(&e))?;
        let row = |row: &tokio_postgres::Row| {
            Ok(Row {
                resource: row.try_get(0)?,
                token: row.try_get(1)?,
                store: row.try_get(2)?,
                entered_at: row.try_get(3)?,
                shared: row.try_get(4)?,
            })
        };
        rows.iter().map(row).collect::<Result<_, _>>().map_err(|e| self.failed(&e))
    }

    pub(super) async fn reset(&mut self, resource: Option<&str>) -> Result<u64, Failure> {
        let text = format!("WITH gone AS ({} RETURNING 1) SELECT count(*) FROM gone", fence::RESET_SQL);
        let rows = self.ask(&text, &[(&resource, Type::TEXT)]).await.map_err(|e| self.failed(&e))?;
        let count = rows.first().and_then(|row| row.try_get::<_, i64>(0).ok()).unwrap_or_default();
        Ok(u64::try_from(count).unwrap_or_default())
    }

    fn failed(&self, error: &tokio_postgres::Error) -> Failure {
        map_err(&self.shown, &self.at, error)
    }
}

/// The driver has a message for this error, but no code.
fn lacks_password(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.to_string().contains("password missing"))
}

fn map_err(shown: &str, at: &str, error: &tokio_postgres::Error) -> Failure {
    let code = error.code().map_or("", |code| code.code());
    let kind = match code {
        "42501" => ErrorKind::Denied,
        "3D000" => ErrorKind::InvalidConfig,
        // A server that is a standby, or a role whose transactions are read-only.
        "25006" | "55P03" => ErrorKind::Unavailable,
        "" if lacks_password(error) => ErrorKind::Denied,
        "" => ErrorKind::Unavailable,
        _ if code.starts_with("28") => ErrorKind::Denied,
        _ if ["08", "53", "57"].iter().any(|class| code.starts_with(class)) => ErrorKind::Unavailable,
        _ => ErrorKind::Unexpected,
    };
    // The driver says what it was doing; its source, what went wrong.
    let why = match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(_), _) if code == "55P03" => inside(),
        (Some(database), _) => database.message().to_owned(),
        (None, _) if lacks_password(error) => {
            "the server asks for a password, and none was given: use password_file= or PGPASSWORD".to_owned()
        }
        (None, Some(source)) => source.downcast_ref().map_or_else(|| source.to_string(), |io| unreached(at, io)),
        (None, None) => error.to_string(),
    };
    failure(kind, format!("{shown}: {}", escape(why.as_bytes())))
}
