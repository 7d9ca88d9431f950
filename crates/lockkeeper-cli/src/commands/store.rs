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
    // Makes a store where there is none; and if that was refused, it knows better why.
    let keeper = chosen.connect().await?;
    // MySQL refuses to make what is there, too; a keeper that has connected has seen that it is.
    if let Some(error) = refused.filter(|_| keeper.info().scheme != "mysql") {
        return Err(error.into());
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
