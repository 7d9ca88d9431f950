//! PostgreSQL.

use super::url::Place;
use super::{Row, failure, tls};
use crate::exit::Failure;
use lockkeeper::ErrorKind;
use lockkeeper::fence::postgres as fence;
use lockkeeper::name::escape;
use std::path::PathBuf;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, NoTls};

pub(super) struct Base {
    client: Client,
    shown: String,
}

impl Base {
    pub(super) async fn open(place: &Place) -> Result<Self, Failure> {
        let mut config = Config::new();
        config.application_name("lockkeeper").port(place.port);
        match &place.socket {
            Some(socket) => config.host_path(socket),
            None if place.host.is_empty() => config.host_path(PathBuf::from("/var/run/postgresql")),
            None => config.host(&place.host),
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
            let (client, connection) = config.connect(tls).await.map_err(|e| map_err(&shown, &e))?;
            tokio::spawn(connection);
            client
        } else {
            config.ssl_mode(SslMode::Disable);
            let (client, connection) = config.connect(NoTls).await.map_err(|e| map_err(&shown, &e))?;
            tokio::spawn(connection);
            client
        };
        let base = Self { client, shown };
        if let Some(schema) = &place.schema {
            let path = "SELECT set_config('search_path', quote_ident($1), false)";
            base.client.query(path, &[schema]).await.map_err(|e| base.failed(&e))?;
        }
        let schema = base.client.query_one("SELECT current_schema()::text", &[]).await.map_err(|e| base.failed(&e))?;
        if schema.get::<_, Option<String>>(0).is_none() {
            let which = place.schema.as_ref().map_or_else(String::new, |s| format!(" '{}'", escape(s.as_bytes())));
            return Err(Failure::config(format!("{} has no such schema{which}; create it first", base.shown)));
        }
        Ok(base)
    }

    pub(super) async fn layout(&self) -> Result<Option<i64>, Failure> {
        match self.client.query_opt(fence::VERSION_SQL, &[]).await {
            Ok(row) => Ok(row.and_then(|row| row.try_get::<_, i32>(0).ok()).map(i64::from)),
            Err(e) if e.code().is_some_and(|code| code.code() == "42P01") => Ok(None),
            Err(e) => Err(self.failed(&e)),
        }
    }

    pub(super) async fn install(&self) -> Result<(), Failure> {
        self.client.batch_execute(fence::INSTALL_SQL).await.map_err(|e| self.failed(&e))
    }

    pub(super) async fn status(&self, resource: Option<&str>) -> Result<Vec<Row>, Failure> {
        let rows = self.client.query(fence::STATUS_SQL, &[&resource]).await.map_err(|e| self.failed(&e))?;
        let row = |row: &tokio_postgres::Row| {
            Ok(Row {
                resource: row.try_get(0)?,
                token: row.try_get(1)?,
                store: row.try_get(2)?,
                entered_at: row.try_get(3)?,
            })
        };
        rows.iter().map(row).collect::<Result<_, _>>().map_err(|e| self.failed(&e))
    }

    pub(super) async fn reset(&self, resource: Option<&str>) -> Result<u64, Failure> {
        self.client.execute(fence::RESET_SQL, &[&resource]).await.map_err(|e| self.failed(&e))
    }

    fn failed(&self, error: &tokio_postgres::Error) -> Failure {
        map_err(&self.shown, error)
    }
}

fn map_err(shown: &str, error: &tokio_postgres::Error) -> Failure {
    let code = error.code().map_or("", |code| code.code());
    let kind = match code {
        "42501" => ErrorKind::Denied,
        "3D000" => ErrorKind::InvalidConfig,
        "" => ErrorKind::Unavailable,
        _ if code.starts_with("28") => ErrorKind::Denied,
        _ if ["08", "53", "57"].iter().any(|class| code.starts_with(class)) => ErrorKind::Unavailable,
        _ => ErrorKind::Unexpected,
    };
    // The driver says what it was doing; its source, what went wrong.
    let why = match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(database), _) => database.message().to_owned(),
        (None, Some(source)) => source.to_string(),
        (None, None) => error.to_string(),
    };
    failure(kind, format!("{shown}: {}", escape(why.as_bytes())))
}
