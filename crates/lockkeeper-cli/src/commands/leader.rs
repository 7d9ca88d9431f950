//! `leader NAME`: who leads an election, as it proclaimed itself.

use crate::exit::{self, Failure};
use crate::{output, store};
use lockkeeper::name::escape;
use lockkeeper::recipes::election::Leader;
use serde_json::json;
use std::ffi::OsStr;

pub(crate) async fn leader(store: Option<&str>, name: &OsStr, json: bool) -> Result<u8, Failure> {
    let name = output::lock_name(name)?;
    let chosen = store::choose(store)?;
    let keeper = chosen.connect().await?;
    let leader = keeper.election(&name).leader().await?;
    if json {
        let fields = json!({
            "v": output::JSON_VERSION,
            "store": keeper.info().scheme,
            "leader": leader.as_ref().map(|leader| json!({
                "term": leader.term.get(),
                "value": leader.value,
                "host": leader.holder.host,
                "pid": leader.holder.pid,
                "label": leader.holder.label,
            })),
        });
        output::print_json(&output::named(&name, fields))?;
    } else if let Some(leader) = &leader {
        output::print(&page(&name.to_string(), keeper.info().scheme, leader))?;
    } else {
        output::say(&format!("no candidate leads '{name}'"));
    }
    Ok(if leader.is_some() { 0 } else { exit::NOT_HELD })
}

fn page(name: &str, scheme: &str, leader: &Leader) -> String {
    let mut text = format!("{} ({scheme})\n", output::bold(name));
    text += &format!("  led by {}\n", output::who(Some(&leader.holder)));
    text += &format!("    term   {}\n", leader.term);
    if !leader.value.is_empty() {
        text += &format!("    value  {}\n", escape(leader.value.as_bytes()));
    }
    text
}
