//! Durations as people write them in files and on command lines: `500ms`, `1m`, `1h30m`, `30d`.
//!
//! Decides the spelling only; which length is sensible is the key's own range. The one reader for limits' periods, for
//! every other key and for the command line.

/// Ten years. Longer is a slip of the finger, and everything below adds up in 64-bit nanoseconds.
pub const DURATION_MAX_NS: u64 = 3_650 * 86_400_000_000_000;

/// Unit and its length in nanoseconds, longest first: the order in which a compound duration is written.
pub const DURATION_UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Nanoseconds of whole numbers with a unit each, biggest unit first. Zero is a duration. The text of the error says what
/// is wrong with the text.
pub fn parse_duration_ns(text: &str) -> Result<u64, String> {
    let mut rest = text;
    let mut total_ns: u64 = 0;
    let mut smallest = None;
    if text.is_empty() {
        return Err("a duration cannot be empty".to_owned());
    }
    while !rest.is_empty() {
        let (digits, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        let (unit, after) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        if digits.is_empty() {
            return Err(format!("`{text}` is no duration"));
        }
        if unit.is_empty() {
            return Err(format!("`{text}` has no unit"));
        }
        let known = DURATION_UNITS.iter().enumerate().find(|(_, (name, _))| *name == unit);
        let Some((index, (_, unit_ns))) = known else {
            return Err(format!("`{text}` is no duration: `{unit}` is no unit of time"));
        };
        if smallest.is_some_and(|smallest| index <= smallest) {
            return Err(format!("`{text}` is no duration: its units must go from the longest to the shortest"));
        }
        smallest = Some(index);
        let part_ns = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(*unit_ns));
        total_ns = part_ns
            .and_then(|part_ns| total_ns.checked_add(part_ns))
            .filter(|total_ns| *total_ns <= DURATION_MAX_NS)
            .ok_or_else(|| format!("`{text}` is longer than ten years"))?;
        rest = after;
    }
    Ok(total_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_the_contract_writes_them() {
        for (text, ms) in
            [("500ms", 500), ("1m", 60_000), ("24h", 86_400_000), ("30d", 2_592_000_000), ("1h30m", 5_400_000)]
        {
            assert_eq!(parse_duration_ns(text), Ok(ms * 1_000_000), "{text}");
        }
        assert_eq!(parse_duration_ns("0s"), Ok(0));
    }

    #[test]
    fn a_duration_that_could_mean_two_things_is_refused() {
        for (text, why) in [
            ("", "a duration cannot be empty"),
            ("10", "`10` has no unit"),
            ("1m30", "`1m30` has no unit"),
            ("10 s", "`10 s` is no duration: ` s` is no unit of time"),
            ("s", "`s` is no duration"),
            ("-1s", "`-1s` is no duration"),
            ("1.5s", "`1.5s` is no duration: `.` is no unit of time"),
            ("1s1m", "`1s1m` is no duration: its units must go from the longest to the shortest"),
            ("1s1s", "`1s1s` is no duration: its units must go from the longest to the shortest"),
            ("99999999999999999999s", "`99999999999999999999s` is longer than ten years"),
            ("3651d", "`3651d` is longer than ten years"),
        ] {
            assert_eq!(parse_duration_ns(text).unwrap_err(), why);
        }
    }
}
