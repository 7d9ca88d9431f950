//! `store init`: makes what a store needs, with rights that its users need not have.

use crate::exit::Failure;
use crate::{output, store};
use lockkeeper::ErrorKind;
use lockkeeper::stores::mysql::MysqlStore;
use lockkeeper::stores::postgres::PostgresStore;

pub(crate) async fn init(flag: Option<&str>, url: Option<&str>) -> Result<u8, Failure> {
    if flag.is_some() && url.is_some() {
        return Err(Failure::usage("[URL] cannot be used together with --store <URL>"));
    }
    let chosen = store::choose(url.or(flag))?;
    let refused = match make(chosen.url()).await {
        Err(error) if error.kind() == ErrorKind::Denied => Some(error),
        made => made.map(|()| None)?,
    };
    // Creates the store if it is missing; if the server refuses, this error says why.
    let keeper = chosen.connect().await?;
    // MySQL also refuses to create what exists. A keeper that has connected has seen that it exists.
    if let Some(error) = refused.filter(|_| keeper.info().scheme != "mysql") {
        return Err(error.into());
    }
    output::print("the store is ready\n")?;
    Ok(0)
}

/// Creates the missing parts of an existing store.
async fn make(url: &str) -> lockkeeper::Result<()> {
    match url.split(':').next().unwrap_or_default().to_ascii_lowercase().as_str() {
        "postgres" | "postgresql" => PostgresStore::install(url).await,
        "mysql" | "mariadb" => MysqlStore::install(url).await,
        _ => Ok(()),
    }
}
