//! Small spellings of the wire: Go durations, plain decimals, JSON strings, structured-field strings.
//!
//! Everything is appended to the caller's buffer without `format!`, because the success headers are written on every
//! request. Decides nothing. Called by the refusal and header writers beside it and by the admin pages.

use jiff::Timestamp;
use jiff::tz::Offset;

use crate::units::WallMs;

/// Appends a whole number. Most of a row's are small, and small ones are digits put there one by one.
#[inline]
pub fn integer(value: u64, out: &mut Vec<u8>) {
    match value {
        0..10 => out.push(b'0' + value as u8),
        10..100 => out.extend_from_slice(&[b'0' + (value / 10) as u8, b'0' + (value % 10) as u8]),
        _ => larger(value, out),
    }
}

fn larger(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends nanoseconds as Go prints a duration: `0s`, `12ms`, `1.5s`, `6m0s`, `24h0m0s`.
pub fn go_duration(ns: u64, out: &mut Vec<u8>) {
    const SECOND_NS: u64 = 1_000_000_000;
    if ns == 0 {
        return out.extend_from_slice(b"0s");
    }
    if ns < SECOND_NS {
        let (unit_ns, unit): (u64, &str) = match ns {
            0..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "µs"),
            _ => (1_000_000, "ms"),
        };
        decimal(ns / unit_ns, ns % unit_ns, unit_ns, out);
        return out.extend_from_slice(unit.as_bytes());
    }
    let (minutes, rest_ns) = (ns / (60 * SECOND_NS), ns % (60 * SECOND_NS));
    if minutes >= 60 {
        integer(minutes / 60, out);
        out.push(b'h');
    }
    if minutes > 0 {
        integer(minutes % 60, out);
        out.push(b'm');
    }
    decimal(rest_ns / SECOND_NS, rest_ns % SECOND_NS, SECOND_NS, out);
    out.push(b's');
}

/// Appends nano-USD as plain USD, never with an exponent: 12,600 is `0.0000126`, 500,000,000,000 is `500`.
pub fn usd(nano_usd: u64, out: &mut Vec<u8>) {
    const NANO: u64 = 1_000_000_000;
    decimal(nano_usd / NANO, nano_usd % NANO, NANO, out);
}

/// `whole` and, behind a point and without trailing zeros, `part / scale`. `scale` is a power of ten.
fn decimal(whole: u64, mut part: u64, scale: u64, out: &mut Vec<u8>) {
    integer(whole, out);
    if part == 0 {
        return;
    }
    out.push(b'.');
    let mut place = scale / 10;
    while part > 0 {
        out.push(b'0' + (part / place) as u8); // part < place × 10 by construction, so this is one digit
        part %= place;
        place /= 10;
    }
}

/// Appends an instant as RFC 3339 in UTC with whole seconds, rounded up: nobody is told to come too early.
/// An instant outside the calendar's years (a fault in stored data) is written as the calendar's end.
pub fn rfc3339(wall: WallMs, out: &mut Vec<u8>) {
    let second = wall.0.div_euclid(1_000) + i64::from(wall.0.rem_euclid(1_000) > 0);
    let instant = Timestamp::from_second(second).unwrap_or(if second < 0 { Timestamp::MIN } else { Timestamp::MAX });
    let at = Offset::UTC.to_datetime(instant); // plain arithmetic: no time zone data, no allocation
    let mut padded = |value: i16, width: usize, before: &[u8]| {
        out.extend_from_slice(before);
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(value).as_bytes();
        out.extend(std::iter::repeat_n(b'0', width.saturating_sub(digits.len())));
        out.extend_from_slice(digits);
    };
    padded(at.year(), 4, b"");
    padded(at.month().into(), 2, b"-");
    padded(at.day().into(), 2, b"-");
    padded(at.hour().into(), 2, b"T");
    padded(at.minute().into(), 2, b":");
    padded(at.second().into(), 2, b":");
    out.push(b'Z');
}

/// Whether a JSON string may hold `text` as it is: no quote, no backslash, no control character. Nearly every text of ours
/// is, so eight bytes are looked at at a time.
pub(crate) fn is_plain(text: &str) -> bool {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const TOP: u64 = EACH << 7;
    // A top bit for each byte that may not stand there. Others may be set above a right one, never alone.
    let marks = |word: &[u8; 8]| {
        let word = u64::from_le_bytes(*word);
        let (quote, backslash) = (word ^ (EACH * 0x22), word ^ (EACH * 0x5c));
        let below_space = word.wrapping_sub(EACH * 0x20) & !word;
        (below_space | quote.wrapping_sub(EACH) & !quote | backslash.wrapping_sub(EACH) & !backslash) & TOP
    };
    let bytes = text.as_bytes();
    match bytes.last_chunk::<8>() {
        Some(last) => bytes.as_chunks::<8>().0.iter().fold(marks(last), |found, word| found | marks(word)) == 0,
        None => bytes.iter().all(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20)),
    }
}

/// Appends a JSON string with its quotes.
pub fn json_string(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    if is_plain(text) {
        out.extend_from_slice(text.as_bytes());
        return out.push(b'"');
    }
    for &byte in text.as_bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..0x20 => {
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("these writers write UTF-8")
    }

    #[test]
    fn every_length_of_a_number_is_written() {
        let number = |value| written(|out| integer(value, out));
        assert_eq!([0, 9, 10, 99, 100, 101].map(number), ["0", "9", "10", "99", "100", "101"].map(String::from));
        for value in (100..100_000).step_by(7).chain([999, 1_000, 9_999, 10_000, u64::MAX]) {
            assert_eq!(number(value), value.to_string());
        }
    }

    #[test]
    fn durations_read_as_go_prints_them() {
        let go = |ns| written(|out| go_duration(ns, out));
        assert_eq!(go(0), "0s");
        assert_eq!((go(7), go(1_500), go(12_000_000)), ("7ns".into(), "1.5µs".into(), "12ms".into()));
        assert_eq!((go(500_000_000), go(1_000_000_000)), ("500ms".into(), "1s".into()));
        assert_eq!((go(1_500_000_000), go(60_000_000_000)), ("1.5s".into(), "1m0s".into()));
        assert_eq!((go(360_000_000_000), go(3_600_000_000_000)), ("6m0s".into(), "1h0m0s".into()));
        assert_eq!(go(86_400_000_000_000 + 61_001_000_000), "24h1m1.001s");
    }

    #[test]
    fn money_is_plain_decimal_to_the_last_nano_dollar() {
        let dollars = |nano| written(|out| usd(nano, out));
        assert_eq!(dollars(12_600), "0.0000126");
        assert_eq!(dollars(1_000), "0.000001");
        assert_eq!(
            (dollars(0), dollars(1), dollars(500_000_000_000)),
            ("0".into(), "0.000000001".into(), "500".into())
        );
        assert_eq!(dollars(u64::MAX), "18446744073.709551615");
    }

    #[test]
    fn an_instant_between_two_seconds_is_written_as_the_later_one() {
        let at = |ms| written(|out| rfc3339(WallMs(ms), out));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(1_788_220_800_000), "2026-09-01T00:00:00Z");
        assert_eq!(at(1_788_220_799_001), "2026-09-01T00:00:00Z");
        assert!(at(i64::MAX).starts_with("9999-12-30T"), "no calendar has that day");
    }

    #[test]
    fn a_json_string_cannot_be_left_by_what_it_holds() {
        assert_eq!(written(|out| json_string("a\"b\\c\n\u{1}é", out)), r#""a\"b\\c\n\u0001é""#);
    }

    proptest! {
        #[test]
        fn dates_agree_with_the_calendar_library(seconds in -62_135_596_800i64..253_402_207_200) {
            let want = jiff::Timestamp::from_second(seconds).expect("in range").to_string();
            prop_assert_eq!(written(|out| rfc3339(WallMs(seconds * 1_000), out)), want);
        }

        #[test]
        fn a_text_is_plain_where_its_json_is_the_text_in_quotes(text in r#"[ -~é"\\\u{0}-\u{1f}]{0,30}"#) {
            let needs_none = !text.bytes().any(|byte| byte < 0x20 || byte == b'"' || byte == b'\\');
            prop_assert_eq!(is_plain(&text), needs_none);
        }

        #[test]
        fn json_strings_are_read_back_by_a_json_reader(text in ".{0,30}") {
            let json = written(|out| json_string(&text, out));
            prop_assert_eq!(serde_json::from_str::<String>(&json).expect("JSON"), text);
        }
    }
}
