//! `store init`: makes what a store needs, with rights that its users need not have.

use crate::exit::Failure;
use crate::{output, store};

pub(crate) async fn init(flag: Option<&str>, url: Option<&str>) -> Result<u8, Failure> {
    // Connecting makes what is missing.
    drop(store::choose(url.or(flag))?.connect().await?);
    output::print("the store is ready\n")?;
    Ok(0)
}
