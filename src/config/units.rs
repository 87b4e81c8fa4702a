//! Durations (`500ms`, `1m`, `1h30m`, `30d`) and sizes (`32MiB`) as people write them, in files and on the command
//! line, and back. Decides the spelling only; which length is sensible for a key is the key's own range. Durations are
//! read by `shards::duration`, as the periods of limits are.

use std::time::Duration;

use shards::duration::{DURATION_UNITS, parse_duration_ns};

/// What a message offers when text is no duration.
pub const DURATION_HINT: &str = "a duration such as 500ms, 10s, 1m, 24h or 30d";
/// What a message offers when text is no size.
pub const SIZE_HINT: &str = "a size such as 65536, 64KiB, 32MiB or 1GiB";

const SIZE_UNITS: [(&str, u64); 5] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Reads whole numbers with a unit each, biggest unit first. The text of the error says what is wrong with the text.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    parse_duration_ns(text).map(Duration::from_nanos)
}

/// Reads a count of bytes, with a binary unit or without one.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, unit) = split_at_non_digit(text);
    if digits.is_empty() {
        return Err(format!("`{text}` is no size"));
    }
    let unit_bytes = match SIZE_UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, unit_bytes)) => *unit_bytes,
        None if unit.is_empty() => 1,
        None => return Err(format!("`{text}` is no size: `{unit}` is no unit of bytes")),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(unit_bytes));
    bytes.ok_or_else(|| format!("`{text}` is more than 64 bits of bytes"))
}

/// The shortest spelling that [`parse_duration`] reads back: `1m30s`, `200ms`, `0s`.
pub fn format_duration(duration: Duration) -> String {
    // Days are left in hours below two of them, so that `24h` stays what was written.
    let mut rest_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    if rest_ns == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, unit_ns) in DURATION_UNITS {
        if unit == "d" && rest_ns < 2 * unit_ns {
            continue;
        }
        let count = rest_ns / unit_ns;
        if count > 0 {
            text.push_str(&format!("{count}{unit}"));
            rest_ns %= unit_ns;
        }
    }
    text
}

/// The largest unit that divides the size: `32MiB`, `1000B`.
pub fn format_size(bytes: u64) -> String {
    let whole = SIZE_UNITS.iter().find(|(_, unit_bytes)| bytes >= *unit_bytes && bytes.is_multiple_of(*unit_bytes));
    match whole {
        Some((unit, unit_bytes)) => format!("{}{unit}", bytes / unit_bytes),
        None => format!("{bytes}B"),
    }
}

fn split_at_non_digit(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_binary_and_say_so() {
        assert_eq!(parse_size("32MiB"), Ok(33_554_432));
        assert_eq!(parse_size("64KiB"), Ok(65_536));
        assert_eq!(parse_size("1000"), Ok(1_000));
        assert_eq!(parse_size("32MB").unwrap_err(), "`32MB` is no size: `MB` is no unit of bytes");
        assert_eq!(parse_size("99999999TiB").unwrap_err(), "`99999999TiB` is more than 64 bits of bytes");
        assert_eq!(parse_size("MiB").unwrap_err(), "`MiB` is no size");
    }

    #[test]
    fn what_is_written_back_reads_like_what_was_written() {
        for text in ["500ms", "1m", "24h", "30d", "1h30m", "90d", "200ms", "0s"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
        for text in ["32MiB", "64KiB", "1000B", "0B"] {
            assert_eq!(format_size(parse_size(text).unwrap()), text);
        }
    }

    proptest! {
        #[test]
        fn every_duration_comes_back_from_its_text(ns in 0u64..315_360_000_000_000_000) {
            let duration = Duration::from_nanos(ns);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn every_size_comes_back_from_its_text(bytes: u64) {
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }

        #[test]
        fn no_text_panics(text in ".{0,24}") {
            let _ = parse_duration(&text);
            let _ = parse_size(&text);
        }
    }
}
