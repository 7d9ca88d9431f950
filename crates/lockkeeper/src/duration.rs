//! Durations as people write and read them.

use crate::error::{Error, Result};
use std::time::Duration;

/// Reads `250ms`, `30s`, `10m`, `2h`, `1d` or a sum such as `1m30s`; a bare number is refused, `0` excepted.
///
/// # Errors
/// `InvalidConfig` with a sentence that shows what is allowed.
pub fn parse(text: &str) -> Result<Duration> {
    let bad = |why: &str| {
        Error::invalid_config(format!(
            "'{}' is not a duration: {why}; write a number with a unit, such as 250ms, 30s, 10m, 2h or 1d",
            crate::name::escape(text.as_bytes())
        ))
    };
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(bad("it is empty"));
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(|| bad("the unit is missing"))?;
        let number: u64 = rest[..digits].parse().map_err(|_| bad("a number is missing or too large"))?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        let micros = match &rest[..letters] {
            "us" | "µs" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "m" | "min" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => 86_400_000_000,
            "" => return Err(bad("the unit is missing")),
            _ => return Err(bad("the unit is unknown")),
        };
        rest = &rest[letters..];
        let part = number.checked_mul(micros).map(Duration::from_micros).ok_or_else(|| bad("it is too long"))?;
        total = total.checked_add(part).ok_or_else(|| bad("it is too long"))?;
    }
    Ok(total)
}

/// Two units at most, for people: `1m30s`, `2h5m`, `3.2s`, `140ms`.
pub fn short(d: Duration) -> String {
    let s = d.as_secs();
    match s {
        0 if d.is_zero() => "0s".to_owned(),
        0 if d.as_millis() == 0 => format!("{}µs", d.as_micros()),
        0 => format!("{}ms", d.as_millis()),
        1..=9 => format!("{}.{}s", s, d.subsec_millis() / 100),
        10..=59 => format!("{s}s"),
        60..=3599 => pair(s / 60, "m", s % 60, "s"),
        3600..=86_399 => pair(s / 3600, "h", s % 3600 / 60, "m"),
        _ => pair(s / 86_400, "d", s % 86_400 / 3600, "h"),
    }
}

fn pair(a: u64, unit_a: &str, b: u64, unit_b: &str) -> String {
    if b == 0 { format!("{a}{unit_a}") } else { format!("{a}{unit_a}{b}{unit_b}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse("1m30s").unwrap(), Duration::from_secs(90));
        assert_eq!(parse("250ms").unwrap(), Duration::from_millis(250));
        assert_eq!(parse("0").unwrap(), Duration::ZERO);
        let tiny = Duration::from_micros(7);
        assert_eq!(parse(&short(tiny)).unwrap(), tiny, "what is printed can be read");
        for bad in ["", "30", "30x", "s", "-1s", "1.5s", "99999999999999999999s", "1000000000000000d"] {
            assert!(parse(bad).unwrap_err().to_string().contains("such as"), "{bad}");
        }
    }

    #[test]
    fn short_is_short() {
        let shown: Vec<_> =
            [140, 3_200, 59_000, 90_000, 7_500_000, 90_000_000].map(|ms| short(Duration::from_millis(ms))).into();
        assert_eq!(shown, ["140ms", "3.2s", "59s", "1m30s", "2h5m", "1d1h"]);
    }
}
