//! Spans of time as people write and read them: `10m`, `1h30m`, `500ms`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Units, longest first, in milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads a span: numbers with a unit each, one after the other.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let bad = || format!("a time is a number with d, h, m, s or ms, such as 10m or 1h30m, not {text:?}");
    let mut rest = text;
    let mut sum = 0u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let number: u64 = number.parse().map_err(|_| bad())?;
        let (_, ms) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
        sum = number.checked_mul(*ms).and_then(|ms| ms.checked_add(sum)).ok_or_else(bad)?;
        rest = tail;
    }
    if text.is_empty() { Err(bad()) } else { Ok(Duration::from_millis(sum)) }
}

/// A span in its largest unit, rounded down: good enough for how old something is.
pub(crate) fn short(ms: u64) -> String {
    let unit = UNITS.iter().find(|(_, unit)| ms >= *unit);
    unit.map_or_else(|| "0s".to_owned(), |(name, unit)| format!("{}{name}", ms / unit))
}

/// A span exactly as [`parse`] reads it.
pub(crate) fn exact(mut ms: u64) -> String {
    let mut text = String::new();
    for (name, unit) in UNITS {
        if ms >= unit {
            text += &format!("{}{name}", ms / unit);
            ms %= unit;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// How long ago a moment in Unix milliseconds was, by this machine's clock.
pub(crate) fn since(unix_ms: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    now.saturating_sub(unix_ms)
}

/// When a moment in Unix milliseconds is, by this machine's clock: `in 23h`, or `past`.
pub(crate) fn until(unix_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    match unix_ms.saturating_sub(now) {
        0 => "past".to_owned(),
        ms => format!("in {}", short(ms)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_as_they_are_written() {
        for (text, ms) in
            [("5s", 5_000), ("10m", 600_000), ("7d", 604_800_000), ("500ms", 500), ("1h30m", 5_400_000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
            assert_eq!(exact(ms), text);
        }
        for bad in ["", "5", "m", "5x", "1.5h", "-1s", "5 s", "99999999999999999999s", "213503982335d"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_age_is_one_number() {
        let ages = [0, 999, 1_000, 61_000, 7_200_000, 90_000_000].map(short);
        assert_eq!(ages, ["0s", "999ms", "1s", "1m", "2h", "1d"]);
    }
}
