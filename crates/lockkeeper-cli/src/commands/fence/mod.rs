//! `fence install|status|reset`: the fence in your own database, which the applications there enter.
//!
//! `url` chooses the database; `postgres`, `mysql` and `sqlite` speak to it, each by the texts of `lockkeeper::fence`.

mod mysql;
mod postgres;
mod sqlite;
mod tls;
mod url;

use crate::args::{FenceCommand, FencePlace};
use crate::exit::{self, Failure};
use crate::output;
use lockkeeper::fence::{self, LAYOUT};
use lockkeeper::name::escape;
use lockkeeper::{Error, ErrorKind};
use serde_json::json;
use std::time::Duration;
use url::{Kind, Place};

/// How long one question may take. Waiting for a lock of the database is part of it.
const PATIENCE: Duration = Duration::from_secs(15);

/// How long a database waits for one of its own locks. It is less than our own limit, so that the database changes
/// nothing after we have reported failure.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// One fence.
#[derive(Debug)]
struct Row {
    resource: String,
    token: i64,
    store: Option<String>,
    entered_at: Option<String>,
    /// The highest Shared token that entered; 0: none has.
    shared: i64,
}

/// A connection.
enum Base {
    Postgres(postgres::Base),
    Mysql(mysql::Base),
    Sqlite(sqlite::Base),
}

impl Base {
    async fn open(place: &Place) -> Result<Self, Failure> {
        Ok(match place.kind {
            Kind::Postgres => Self::Postgres(limit(place, postgres::Base::open(place)).await?),
            Kind::Mysql => Self::Mysql(limit(place, mysql::Base::open(place)).await?),
            Kind::Sqlite => Self::Sqlite(sqlite::Base::open(place)?),
        })
    }

    /// The installed layout.
    async fn layout(&mut self) -> Result<Option<i64>, Failure> {
        match self {
            Self::Postgres(base) => base.layout().await,
            Self::Mysql(base) => base.layout().await,
            Self::Sqlite(base) => base.layout(),
        }
    }

    async fn install(&mut self) -> Result<(), Failure> {
        match self {
            Self::Postgres(base) => base.install().await,
            Self::Mysql(base) => base.install().await,
            Self::Sqlite(base) => base.install(),
        }
    }

    /// What the user must restore after an installation that replaced an older one.
    fn took_away(&self) -> Option<&'static str> {
        match self {
            Self::Mysql(base) if base.is_mysql() => {
                Some("MySQL dropped the rights to call the fence: grant EXECUTE on both procedures again")
            }
            _ => None,
        }
    }

    async fn status(&mut self, resource: Option<&str>) -> Result<Vec<Row>, Failure> {
        match self {
            Self::Postgres(base) => base.status(resource).await,
            Self::Mysql(base) => base.status(resource).await,
            Self::Sqlite(base) => base.status(resource),
        }
    }

    async fn reset(&mut self, resource: Option<&str>) -> Result<u64, Failure> {
        match self {
            Self::Postgres(base) => base.reset(resource).await,
            Self::Mysql(base) => base.reset(resource).await,
            Self::Sqlite(base) => base.reset(resource),
        }
    }
}

pub(crate) async fn fence(command: FenceCommand) -> Result<u8, Failure> {
    match command {
        FenceCommand::Install { place, print: true, .. } => print(&place),
        FenceCommand::Install { place, json, .. } => install(&choose(&place)?, json).await,
        FenceCommand::Status { place, resource, json } => status(&choose(&place)?, resource.as_deref(), json).await,
        FenceCommand::Reset { place, resource, all: _, json } => {
            reset(&choose(&place)?, resource.as_deref(), json).await
        }
    }
}

fn choose(place: &FencePlace) -> Result<Place, Failure> {
    let (url, notices) = url::choose(place.database.as_deref())?;
    notices.iter().for_each(|notice| output::say(notice));
    url::parse(&url)
}

fn print(place: &FencePlace) -> Result<u8, Failure> {
    let (url, _) = url::choose(place.database.as_deref())?;
    output::print(match url::kind(&url)? {
        Kind::Postgres => fence::postgres::INSTALL_SQL,
        Kind::Mysql => fence::mysql::INSTALL_SQL,
        Kind::Sqlite => fence::sqlite::INSTALL_SQL,
    })?;
    Ok(0)
}

async fn install(place: &Place, json: bool) -> Result<u8, Failure> {
    let mut base = Base::open(place).await?;
    let found = limit(place, base.layout()).await?;
    let changed = found.is_none_or(|layout| layout < LAYOUT);
    refuse_newer(place, found)?;
    if changed {
        limit(place, base.install()).await?;
    }
    if json {
        let database = place.kind.word();
        output::print_json(
            &json!({ "v": output::JSON_VERSION, "database": database, "layout": LAYOUT, "changed": changed }),
        )?;
    } else {
        let done = match found {
            None => "is installed",
            Some(_) if changed => "is brought up to date",
            Some(_) => "was installed already",
        };
        output::print(&format!("the fence {done} in {} (layout {LAYOUT})\n", place.shown))?;
    }
    if let Some(notice) = base.took_away().filter(|_| changed && found.is_some()) {
        output::say(notice);
    }
    Ok(0)
}

async fn status(place: &Place, resource: Option<&str>, json: bool) -> Result<u8, Failure> {
    let (mut base, layout) = installed(place).await?;
    if layout < LAYOUT {
        let text = "which keeps its tokens and rights";
        let old = format!("the fence in {} has layout {layout}; first: lockkeeper fence install, {text}", place.shown);
        return Err(Failure::config(old));
    }
    let rows = limit(place, base.status(resource)).await?;
    if json {
        let fences: Vec<_> = rows.iter().map(row_json).collect();
        let database = place.kind.word();
        output::print_json(
            &json!({ "v": output::JSON_VERSION, "database": database, "layout": LAYOUT, "fences": fences }),
        )?;
    } else if rows.is_empty() {
        output::say(&resource.map_or_else(
            || "no holder has entered a fence in this database yet".to_owned(),
            |resource| format!("no holder has entered the fence of '{}' yet", escape(resource.as_bytes())),
        ));
    } else {
        let dash = || "-".to_owned();
        let mut lines = vec![["RESOURCE", "TOKEN", "SHARED", "STORE", "ENTERED"].map(str::to_owned).to_vec()];
        lines.extend(rows.into_iter().map(|row| {
            let store = row.store.map_or_else(dash, |store| escape(store.as_bytes()));
            let mark = |token: i64| if token == 0 { dash() } else { token.to_string() };
            let (token, shared) = (mark(row.token), mark(row.shared));
            vec![escape(row.resource.as_bytes()), token, shared, store, row.entered_at.unwrap_or_else(dash)]
        }));
        output::print(&output::columns(&lines, &[1, 2]))?;
    }
    Ok(0)
}

fn row_json(row: &Row) -> serde_json::Value {
    json!({
        "resource": row.resource,
        "token": row.token,
        "shared": row.shared,
        "store": row.store,
        "entered_at": row.entered_at,
    })
}

async fn reset(place: &Place, resource: Option<&str>, json: bool) -> Result<u8, Failure> {
    // Works in every layout: a deleted row takes both its marks with it.
    let (mut base, _) = installed(place).await?;
    let count = limit(place, base.reset(resource)).await?;
    let what = resource.map_or_else(|| "all fences".to_owned(), |r| format!("the fence of '{}'", escape(r.as_bytes())));
    if json {
        output::print_json(&json!({ "v": output::JSON_VERSION, "reset": count }))?;
    } else if count > 0 {
        output::print(&format!("reset {what} ({count}): any next token is accepted\n"))?;
    } else {
        let what = if resource.is_some() { what } else { "a fence in this database".to_owned() };
        output::say(&format!("no holder has entered {what} yet: there is nothing to reset"));
    }
    Ok(if count > 0 { 0 } else { exit::NOT_HELD })
}

/// An open database with a fence, and its layout.
async fn installed(place: &Place) -> Result<(Base, i64), Failure> {
    let mut base = Base::open(place).await?;
    let found = limit(place, base.layout()).await?;
    refuse_newer(place, found)?;
    let absent = || Failure::config(format!("there is no fence in {}; first: lockkeeper fence install", place.shown));
    found.map(|layout| (base, layout)).ok_or_else(absent)
}

fn refuse_newer(place: &Place, found: Option<i64>) -> Result<(), Failure> {
    match found {
        Some(layout) if layout > LAYOUT => Err(failure(
            ErrorKind::Foreign,
            format!("the fence in {} has layout {layout}, of a newer lockkeeper; this one knows {LAYOUT}", place.shown),
        )),
        _ => Ok(()),
    }
}

fn failure(kind: ErrorKind, text: impl Into<String>) -> Failure {
    Failure::from(Error::new(kind, text))
}

/// Why the connection to a server failed, with the server's address.
fn unreached(at: &str, error: &std::io::Error) -> String {
    match error.kind() {
        // `NotFound`: there is no such socket.
        std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound => format!("nothing listens at {at}"),
        _ => format!("the connection to {at} failed: {error}"),
    }
}

/// The sentence for a database lock that was not granted in time.
fn inside() -> String {
    format!("a transaction inside a fence has not finished within {}s; nothing was changed", LOCK_PATIENCE.as_secs())
}

/// Gives up on a server that does not answer.
async fn limit<T>(place: &Place, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = |_| {
        let text = format!("{} has not answered as {} does within 15s", place.shown, place.kind.title());
        failure(ErrorKind::Unavailable, text)
    };
    tokio::time::timeout(PATIENCE, work).await.map_err(late)?
}
