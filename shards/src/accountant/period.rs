//! Calendar periods: which one an instant lies in. UTC, weeks from Monday, no summer time.
//!
//! A month is a calendar month, so nothing resets on its thirtieth day. Called once per meter and period, and by
//! whoever tells a caller when a budget resets.

use jiff::civil::{Date, Time};
use jiff::tz::Offset;
use jiff::{Timestamp, ToSpan};

use crate::limit::Calendar;
use crate::meter::PeriodSpan;
use crate::units::WallMs;

pub(super) const HOUR_MS: i64 = 3_600_000;
pub(super) const DAY_MS: i64 = 24 * HOUR_MS;

/// The calendar's years 0 to 9998: far outside any clock, and a whole period still fits on either side.
const EARLIEST: WallMs = WallMs(-62_167_219_200_000);
const LATEST: WallMs = WallMs(253_370_764_799_999);

/// The period of `calendar` that `wall` lies in. An instant outside the calendar counts as its nearest end.
pub fn period_of(calendar: Calendar, wall: WallMs) -> PeriodSpan {
    let ms = wall.clamp(EARLIEST, LATEST).0;
    let length_ms = match calendar {
        Calendar::Hour => HOUR_MS,
        Calendar::Day => DAY_MS,
        Calendar::Week | Calendar::Month | Calendar::Year => return by_date(calendar, day_of(ms)),
    };
    // The epoch began on the hour and at midnight, and UTC days are all the same length.
    let start = ms - ms.rem_euclid(length_ms);
    PeriodSpan { start: WallMs(start), end: WallMs(start + length_ms) }
}

fn by_date(calendar: Calendar, day: Date) -> PeriodSpan {
    let (first, length) = match calendar {
        Calendar::Week => (day.checked_sub(i64::from(day.weekday().to_monday_zero_offset()).days()), 1.week()),
        Calendar::Month => (Ok(day.first_of_month()), 1.month()),
        _ => (Ok(day.first_of_year()), 1.year()),
    };
    let first = first.expect("a week earlier than the earliest instant is in jiff's calendar");
    let next = first.checked_add(length).expect("a year later than the latest instant is in jiff's calendar");
    PeriodSpan { start: midnight(first), end: midnight(next) }
}

fn day_of(ms: i64) -> Date {
    let instant = Timestamp::from_millisecond(ms).expect("clamped to what jiff has");
    Offset::UTC.to_datetime(instant).date()
}

fn midnight(day: Date) -> WallMs {
    let instant = Offset::UTC.to_timestamp(day.to_datetime(Time::midnight()));
    WallMs(instant.expect("clamped to what jiff has").as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> WallMs {
        WallMs(text.parse::<Timestamp>().unwrap().as_millisecond())
    }

    fn period(calendar: Calendar, wall: &str) -> (String, String) {
        let span = period_of(calendar, at(wall));
        let text = |wall: WallMs| Timestamp::from_millisecond(wall.0).unwrap().to_string();
        (text(span.start), text(span.end))
    }

    #[test]
    fn periods_are_those_of_the_utc_calendar() {
        let noon = "2026-11-30T12:34:56.789Z"; // a Monday
        for (calendar, start, end) in [
            (Calendar::Hour, "2026-11-30T12:00:00Z", "2026-11-30T13:00:00Z"),
            (Calendar::Day, "2026-11-30T00:00:00Z", "2026-12-01T00:00:00Z"),
            (Calendar::Week, "2026-11-30T00:00:00Z", "2026-12-07T00:00:00Z"),
            (Calendar::Month, "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
            (Calendar::Year, "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ] {
            assert_eq!(period(calendar, noon), (start.to_owned(), end.to_owned()), "{calendar:?}");
        }
        // The last millisecond of a Sunday is still last week, and weeks span years.
        assert_eq!(period(Calendar::Week, "2026-11-29T23:59:59.999Z").0, "2026-11-23T00:00:00Z");
        assert_eq!(period(Calendar::Week, "2027-01-01T00:00:00Z").0, "2026-12-28T00:00:00Z");
        assert_eq!(period(Calendar::Month, "2028-02-29T23:00:00Z").1, "2028-03-01T00:00:00Z");
        assert_eq!(period(Calendar::Hour, "1969-12-31T23:30:00Z").0, "1969-12-31T23:00:00Z");
    }

    #[test]
    fn c16_a_month_begins_once_on_the_first_in_common_and_leap_years() {
        for (from, to, firsts) in [
            ("2027-01-30T00:00:00Z", "2027-03-02T00:00:00Z", ["2027-02-01T00:00:00Z", "2027-03-01T00:00:00Z"]),
            ("2028-01-30T00:00:00Z", "2028-03-02T00:00:00Z", ["2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"]),
        ] {
            let mut changes = Vec::new();
            let mut last = period_of(Calendar::Month, at(from));
            for hour in 0..=(at(to).0 - at(from).0) / HOUR_MS {
                let now = WallMs(at(from).0 + hour * HOUR_MS);
                let span = period_of(Calendar::Month, now);
                if span != last {
                    assert_eq!((span.start, last.end), (now, now));
                    changes.push(now);
                    last = span;
                }
            }
            assert_eq!(changes, firsts.map(at));
        }
    }

    proptest! {
        #[test]
        fn every_instant_lies_in_its_period_and_periods_touch(
            ms in any::<i64>().prop_map(|ms| ms % 253_370_764_800_000),
            calendar in proptest::sample::select(Calendar::ALL.to_vec()),
        ) {
            let wall = WallMs(ms.max(EARLIEST.0));
            let span = period_of(calendar, wall);
            prop_assert!(span.contains(wall));
            prop_assert_eq!(period_of(calendar, span.start), span);
            prop_assert_eq!(period_of(calendar, WallMs(span.end.0 - 1)), span);
            let length = (span.end.0 - span.start.0).unsigned_abs();
            prop_assert!(length <= calendar.longest_ms() && length >= calendar.longest_ms() * 28 / 31);
            prop_assert_eq!(span.start.0.rem_euclid(HOUR_MS), 0, "rollups by the hour add up to periods");
        }

        #[test]
        fn no_instant_is_outside_the_calendar(ms: i64, calendar in proptest::sample::select(Calendar::ALL.to_vec())) {
            period_of(calendar, WallMs(ms));
        }
    }
}
