//! A point in time as an operator writes it: so long ago, so long from now, or an instant.
//!
//! Decides only the spelling. `since` and `until` of a query and the end of a key are read with it, in HTTP requests
//! as on the command line.

use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use shards::units::WallMs;

use crate::config::units;

/// `24h`, or `2026-08-01T00:00:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// So long before or after now.
    Distance(Duration),
    /// Unix milliseconds.
    Instant(WallMs),
}

impl When {
    /// The instant, where a duration counts back from `now`.
    pub fn ago(self, now: WallMs) -> WallMs {
        match self {
            When::Distance(distance) => WallMs(now.0.saturating_sub(ms(distance))),
            When::Instant(instant) => instant,
        }
    }

    /// The instant, where a duration counts on from `now`.
    pub fn ahead(self, now: WallMs) -> WallMs {
        match self {
            When::Distance(distance) => WallMs(now.0.saturating_add(ms(distance))),
            When::Instant(instant) => instant,
        }
    }
}

impl FromStr for When {
    type Err = String;

    /// The text of the error says what may be written.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(distance) = units::parse_duration(text) {
            return Ok(When::Distance(distance));
        }
        match text.parse::<Timestamp>() {
            Ok(instant) => Ok(When::Instant(WallMs(instant.as_millisecond()))),
            Err(_) => Err(format!("write {}, or an instant such as 2026-08-01T00:00:00Z", units::DURATION_HINT)),
        }
    }
}

/// RFC 3339 in UTC with milliseconds.
pub fn text(at: WallMs) -> String {
    let earliest_or_latest = if at.0 < 0 { Timestamp::MIN } else { Timestamp::MAX };
    format!("{:.3}", Timestamp::from_millisecond(at.0).unwrap_or(earliest_or_latest))
}

fn ms(distance: Duration) -> i64 {
    i64::try_from(distance.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_from_now_and_an_instant_stands_for_itself() {
        let now = WallMs(100_000);
        let minute: When = "1m".parse().unwrap();
        assert_eq!((minute.ago(now), minute.ahead(now)), (WallMs(40_000), WallMs(160_000)));
        let instant: When = "1970-01-01T00:00:07.5Z".parse().unwrap();
        assert_eq!((instant.ago(now), instant.ahead(now)), (WallMs(7_500), WallMs(7_500)));
        let offset: When = "1970-01-01T02:00:00+02:00".parse().unwrap();
        assert_eq!(offset, When::Instant(WallMs(0)));
    }

    #[test]
    fn an_instant_is_written_with_its_milliseconds_whatever_it_is() {
        assert_eq!(text(WallMs(1_500)), "1970-01-01T00:00:01.500Z");
        assert_eq!(text(WallMs(0)), "1970-01-01T00:00:00.000Z");
        assert!(text(WallMs(i64::MAX)).starts_with("9999-") && text(WallMs(i64::MIN)).starts_with('-'));
    }

    #[test]
    fn what_could_mean_two_things_is_refused_with_examples() {
        for text in ["", "yesterday", "24", "2026-08-01", "-1h", "2026-08-01T00:00:00", "99999999d", "\u{0}"] {
            let error = text.parse::<When>().unwrap_err();
            assert!(error.contains("24h") && error.contains("2026-08-01T00:00:00Z"), "{text}: {error}");
        }
    }
}
