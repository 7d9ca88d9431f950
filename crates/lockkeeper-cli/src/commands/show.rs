//! `show NAME`: who holds one lock, who waits for it in order, and how long a crash of the holder can cost at worst.

use crate::exit::Failure;
use crate::{output, store};
use lockkeeper::StoreInfo;
use lockkeeper::store::Record;
use serde_json::json;
use std::ffi::OsStr;
use std::time::Duration;

pub(crate) async fn show(store: Option<&str>, name: &OsStr, json: bool) -> Result<u8, Failure> {
    let name = output::lock_name(name)?;
    let chosen = store::choose(store)?;
    let keeper = chosen.connect().await?;
    let record = keeper.inspect(&name).await?.unwrap_or_else(|| Record::new(name));
    if json {
        let worst = worst_hand_over(&record, keeper.info());
        let mut object = output::record_json(&record);
        object["v"] = json!(output::JSON_VERSION);
        object["store"] = json!(keeper.info().scheme);
        object["worst_hand_over_ms"] = json!(worst.map(output::ms));
        output::print_json(&object)?;
    } else {
        let heading = format!("{} ({})", output::bold(&record.name.to_string()), keeper.info().scheme);
        output::print(&format!("{heading}\n{}", body(&record, keeper.info())))?;
    }
    Ok(0)
}

/// If the holder died now: until its lease ends, plus what the store may need to notice.
fn worst_hand_over(record: &Record, info: &StoreInfo) -> Option<Duration> {
    let longest = record.holders.iter().filter_map(|h| h.remaining).max()?;
    Some(info.worst_hand_over(longest))
}

/// Everything about a lock but its name.
pub(super) fn body(record: &Record, info: &StoreInfo) -> String {
    let mut text = String::new();
    if record.holders.is_empty() {
        text += "  not held\n";
    }
    for holder in &record.holders {
        text += &format!("  held by {}\n", output::who(holder.note.as_ref()));
        text += &format!("    mode      {}\n", holder.mode);
        text += &format!("    token     {}\n", holder.token.map_or_else(|| "-".to_owned(), |t| t.to_string()));
        text += &format!("    held for  {}\n", output::short(output::age(holder.since)));
        let renewed = if holder.remaining.is_some() { " unless renewed" } else { "" };
        text += &format!("    ends in   {}{renewed}\n", output::short(holder.remaining));
    }
    if let Some(remark) = &record.remark {
        text += &format!("  {remark}\n");
    }
    if let Some(worst) = worst_hand_over(record, info) {
        text += &format!(
            "  if a holder died now, the lock would be free in {} at the latest\n",
            lockkeeper::duration::short(worst)
        );
    }
    match record.waiting {
        0 => text += "  no waiters\n",
        n => text += &format!("  {n} waiting, next first\n"),
    }
    for (i, waiter) in record.waiters.iter().enumerate() {
        text += &format!("    {}. {} ({})\n", i + 1, output::who(waiter.note.as_ref()), waiter.mode);
    }
    text
}
