//! Instants of a row: RFC 3339 in UTC, always with three digits of a second, so that every line has the same shape
//! and text sorts as time does.

use jiff::Timestamp;
use jiff::tz::Offset;

use crate::units::WallMs;

/// `2026-11-30T09:08:07.006Z`
const LENGTH: usize = 24;

/// The calendar's years 0 to 9999, of which jiff leaves the last day out.
const EARLIEST: WallMs = WallMs(-62_167_219_200_000);
const LATEST: WallMs = WallMs(253_402_207_200_000);

/// Appends an instant. What lies outside the calendar (no clock of ours) is written as the nearest instant inside.
pub(super) fn encode(wall: WallMs, out: &mut Vec<u8>) {
    let instant = Timestamp::from_millisecond(wall.clamp(EARLIEST, LATEST).0).expect("clamped to what jiff has");
    let at = Offset::UTC.to_datetime(instant); // plain arithmetic: no time zone data, no allocation
    let mut text = *b"0000-00-00T00:00:00.000Z";
    let mut digits = |end: usize, width: usize, mut value: u32| {
        for digit in text[end - width..end].iter_mut().rev() {
            *digit = b'0' + (value % 10) as u8; // one decimal digit
            value /= 10;
        }
    };
    let two = |value: i8| u32::from(value.unsigned_abs());
    digits(4, 4, u32::from(at.year().unsigned_abs()));
    digits(7, 2, two(at.month()));
    digits(10, 2, two(at.day()));
    digits(13, 2, two(at.hour()));
    digits(16, 2, two(at.minute()));
    digits(19, 2, two(at.second()));
    digits(23, 3, u32::from(at.millisecond().unsigned_abs()));
    out.extend_from_slice(&text);
}

/// Reads an instant; our own shape quickly, any other RFC 3339 properly.
pub(super) fn decode(text: &str) -> Option<WallMs> {
    own_shape(text).or_else(|| text.parse::<Timestamp>().ok().map(|instant| WallMs(instant.as_millisecond())))
}

fn own_shape(text: &str) -> Option<WallMs> {
    let text: &[u8; LENGTH] = text.as_bytes().try_into().ok()?;
    let punctuated = [4, 7, 10, 13, 16, 19, 23].map(|at| text[at]) == *b"--T::.Z";
    let number = |from: usize, width: usize| {
        text[from..from + width]
            .iter()
            .try_fold(0i64, |value, byte| byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0')))
    };
    let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
    let (hour, minute, second, ms) = (number(11, 2)?, number(14, 2)?, number(17, 2)?, number(20, 3)?);
    // A day is in its month if it comes before the next month's first.
    let is_day = |day: i64| {
        let (next_year, next_month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
        day >= 1 && days_since_1970(year, month, day) < days_since_1970(next_year, next_month, 1)
    };
    let plain = punctuated && (1..=12).contains(&month) && is_day(day) && hour < 24 && minute < 60 && second < 60;
    if !plain {
        return None;
    }
    let seconds = (days_since_1970(year, month, day) * 24 + hour) * 3_600 + minute * 60 + second;
    Some(WallMs(seconds * 1_000 + ms))
}

/// Days from 1970-01-01 in the Gregorian calendar. Years are counted from March, so that the leap day is a year's
/// last: 153 days are five months (31+30+31+30+31), 146,097 days are 400 years.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(ms: i64) -> String {
        let mut out = Vec::new();
        encode(WallMs(ms), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn instants_have_one_shape() {
        assert_eq!(written(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(written(1_796_083_199_999), "2026-11-30T23:59:59.999Z");
        assert_eq!(written(951_782_400_001), "2000-02-29T00:00:00.001Z");
        assert_eq!(written(-1), "1969-12-31T23:59:59.999Z");
        assert_eq!(written(i64::MIN), "0000-01-01T00:00:00.000Z");
        assert_eq!(written(i64::MAX), written(LATEST.0));
        assert_eq!(written(LATEST.0), "9999-12-30T22:00:00.000Z");
    }

    #[test]
    fn other_spellings_of_an_instant_are_read_and_nonsense_is_not() {
        assert_eq!(decode("1970-01-01T00:00:01Z"), Some(WallMs(1_000)));
        assert_eq!(decode("1970-01-01T01:00:00.5+01:00"), Some(WallMs(500)));
        for text in ["", "now", "2026-13-01T00:00:00.000Z", "2026-02-30T00:00:00.000Z", "2026-01-01T00:00:0é.00Z"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_instant_is_read_back(ms in EARLIEST.0..LATEST.0) {
            prop_assert_eq!(decode(&written(ms)), Some(WallMs(ms)));
        }

        #[test]
        fn quick_and_proper_reading_agree(ms in EARLIEST.0..LATEST.0) {
            let text = written(ms);
            let proper = text.parse::<Timestamp>().unwrap().as_millisecond();
            prop_assert!(own_shape(&text).is_none_or(|quick| quick.0 == proper));
        }
    }
}
