//! The server's clock: how far it is off, and whether it runs at the right speed.

use super::ask;
use crate::error::{Error, Result};
use crate::store::{Check, CheckState};
use crate::stores::redis::driver::connections::Connection;
use crate::stores::shared::checks::{ClockReading, Topic};
use std::time::{Duration, Instant, SystemTime};

const RATE: Topic = Topic {
    id: "redis-clock-rate",
    why: "Leases end by the server's clock. A clock that runs fast, or leaps, ends them before their holders expect \
          it.",
    fix: "Let NTP slew the server's clock; look for a virtual machine that was paused.",
};

/// Between the two readings of a clock whose speed is measured: long enough to see one percent on a usual network.
const BETWEEN: Duration = Duration::from_millis(500);

/// The server's clock, and the readings of our steady clock around it.
pub(super) type Moment = (ClockReading, i64, [Instant; 2]);

pub(super) async fn read_clock(connection: &mut Connection) -> Result<Moment> {
    let (began, before) = (Instant::now(), SystemTime::now());
    let answer = ask(connection, &["TIME"]).await?;
    let (ended, after) = (Instant::now(), SystemTime::now());
    let (seconds, micros): (i64, i64) = redis::from_redis_value(answer)
        .map_err(|_| Error::unsupported("the server answered no time").in_store("redis"))?;
    let server = seconds.saturating_mul(1_000_000).saturating_add(micros);
    Ok((ClockReading::new(before, server, after), server, [began, ended]))
}

/// Reads the clock once more, and compares how much time has passed for the server and for us.
pub(super) async fn rate(connection: &mut Connection, first: Moment) -> Check {
    tokio::time::sleep(BETWEEN).await;
    let second = match read_clock(connection).await {
        Ok(second) => second,
        Err(error) => return RATE.refused("TIME", &error),
    };
    let passed = second.1 - first.1;
    let ours = |from: Instant, to: Instant| i64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(0);
    let (least, most) = (ours(first.2[1], second.2[0]), ours(first.2[0], second.2[1]));
    // The server read its clock at some moment of each question: only what lies outside of all of them is an error.
    let off = passed < least - least / 100 || passed > most + most / 100;
    let shown = |micros: i64| format!("{}{} ms", if micros < 0 { "-" } else { "" }, micros.unsigned_abs() / 1000);
    RATE.bad_if(
        off,
        CheckState::Warn,
        format!("{} passed at the server while {} passed here", shown(passed), shown(most)),
    )
}
