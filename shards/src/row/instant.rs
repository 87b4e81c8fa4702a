//! Instants of a row: RFC 3339 in UTC, always with three digits of a second, so that every line has the same shape
//! and text sorts as time does.

use jiff::Timestamp;

use crate::units::WallMs;

/// `2026-11-30T09:08:07.006Z`
const LENGTH: usize = 24;

/// The calendar's years 0 to 9999, of which jiff leaves the last day out.
const EARLIEST: WallMs = WallMs(-62_167_219_200_000);
const LATEST: WallMs = WallMs(253_402_207_200_000);

/// Spells an instant. What lies outside the calendar (no clock of ours) is written as the nearest instant inside.
pub(super) fn encode(wall: WallMs) -> [u8; LENGTH] {
    let ms = (wall.clamp(EARLIEST, LATEST).0 + EPOCH_DAY * DAY_MS).unsigned_abs(); // after that day, as all we write is
    let (day, ms_of_day) = (ms / DAY_MS.unsigned_abs(), (ms % DAY_MS.unsigned_abs()) as u32); // a day has fewer than 2^32
    let (year, month, day_of_month) = civil(day);
    let mut text = *b"0000-00-00T00:00:00.000Z";
    let mut two = |at: usize, value: u32| [text[at], text[at + 1]] = PAIRS[value as usize % 100];
    two(0, year / 100);
    two(2, year % 100);
    two(5, month);
    two(8, day_of_month);
    two(11, ms_of_day / 3_600_000);
    two(14, ms_of_day / 60_000 % 60);
    two(17, ms_of_day / 1_000 % 60);
    two(20, ms_of_day % 1_000 / 10);
    text[22] = b'0' + (ms_of_day % 10) as u8; // one decimal digit
    text
}

const DAY_MS: i64 = 86_400_000;
/// Days from the first of March of the year −400 to 1970.
const EPOCH_DAY: i64 = 719_468 + 146_097;

/// `00` to `99`.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut at = 0;
    while at < 100 {
        pairs[at] = [b'0' + (at / 10) as u8, b'0' + (at % 10) as u8];
        at += 1;
    }
    pairs
};

/// Year, month and day of a day counted from 1 March −400: [`days_since_1970`] backwards.
fn civil(day: u64) -> (u32, u32, u32) {
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let (month, next) = if month_from_march < 10 { (month_from_march + 3, 0) } else { (month_from_march - 9, 1) };
    let year = (era * 400 + year_of_era + next).saturating_sub(400);
    (year as u32, month as u32, day_of_month as u32) // years of four digits, and less
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
        out.extend_from_slice(&encode(WallMs(ms)));
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
