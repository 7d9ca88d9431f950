//! `break NAME --token N`: takes a lock away from the holder an operator saw, and from no other.

use crate::exit::{self, Failure};
use crate::{output, store};
use lockkeeper::Token;
use serde_json::json;
use std::ffi::OsStr;

pub(crate) async fn break_lock(store: Option<&str>, name: &OsStr, token: Token, json: bool) -> Result<u8, Failure> {
    let name = output::lock_name(name)?;
    let chosen = store::choose(store)?;
    let keeper = chosen.connect().await?;
    let above = keeper.break_lock(&name, token).await?;
    if json {
        let fields = json!({
            "v": output::JSON_VERSION,
            "token": token.get(),
            "broken": above.is_some(),
            "next_token": above.map(Token::get),
        });
        output::print_json(&output::named(&name, fields))?;
    } else if above.is_some() {
        output::print(&format!(
            "'{name}' was taken from the holder with token {token}; a fence refuses that token once a later holder has entered\n"
        ))?;
    } else {
        let now = keeper.inspect(&name).await?.filter(|r| !r.holders.is_empty());
        let now = now.map_or_else(
            || "it is not held now".to_owned(),
            |r| {
                let tokens: Vec<_> = r.holders.iter().filter_map(|h| h.token).map(|t| t.to_string()).collect();
                format!("it is held with token {} by {}", tokens.join(", "), output::holders(&r))
            },
        );
        output::say(&format!("no holder has '{name}' with token {token}: {now}"));
    }
    Ok(if above.is_some() { 0 } else { exit::NOT_HELD })
}
