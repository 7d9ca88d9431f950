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
    match make(chosen.url()).await {
        Err(error) if error.kind() != ErrorKind::Denied => return Err(error.into()),
        // Connecting makes a store where there is none, and tells whether one can be used: then nothing was missing.
        _ => drop(chosen.connect().await?),
    }
    output::print("the store is ready\n")?;
    Ok(0)
}

/// Makes what has gone missing of a store that is there.
async fn make(url: &str) -> lockkeeper::Result<()> {
    match url.split(':').next().unwrap_or_default().to_ascii_lowercase().as_str() {
        "postgres" | "postgresql" => PostgresStore::install(url).await,
        "mysql" | "mariadb" => MysqlStore::install(url).await,
        _ => Ok(()),
    }
}
