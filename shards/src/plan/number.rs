//! Reads the numbers of a config file from their text, exactly.
//!
//! A float never stands in between, so `0.1` USD is 100,000,000 nano-USD and `0.0000000001` is found to be too fine.
//! Decides what is a number, not which numbers a limit may have. Called by the plan compiler.

/// Why a text is not the number that belongs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotANumber {
    /// Not a decimal number at all.
    Malformed,
    /// `.inf` or `.nan`, which YAML can spell.
    NotFinite,
    Negative,
    Zero,
    /// More decimal places than the unit has.
    TooFine,
    /// Does not fit 64 bits.
    TooLarge,
}

/// The value of `text` in units of 10^-`places`, more than zero. Digits, one point, an exponent and `_` between digits
/// are understood; nothing is rounded.
pub(super) fn positive(text: &str, places: i64) -> Result<u64, NotANumber> {
    let text = text.trim();
    let (is_negative, magnitude) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if matches!(magnitude.to_ascii_lowercase().as_str(), ".inf" | "inf" | ".nan" | "nan" | "infinity") {
        return Err(NotANumber::NotFinite);
    }
    let (mantissa, exponent) = match magnitude.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, read_exponent(exponent).ok_or(NotANumber::Malformed)?),
        None => (magnitude, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits: Vec<u8> = Vec::with_capacity(mantissa.len());
    for byte in whole.bytes().chain(fraction.bytes()) {
        match byte {
            b'0'..=b'9' => digits.push(byte - b'0'),
            b'_' => {}
            _ => return Err(NotANumber::Malformed),
        }
    }
    let fraction_digits = fraction.bytes().filter(u8::is_ascii_digit).count() as i64;
    if digits.is_empty() || mantissa.starts_with('_') || mantissa.ends_with('_') {
        return Err(NotANumber::Malformed);
    }
    if digits.iter().all(|&digit| digit == 0) {
        return Err(NotANumber::Zero);
    }
    if is_negative {
        return Err(NotANumber::Negative);
    }
    // Trailing zeros move into the exponent, so that what is left over below the unit is really too fine.
    let mut shift = exponent.saturating_sub(fraction_digits).saturating_add(places);
    while digits.last() == Some(&0) {
        digits.pop();
        shift = shift.saturating_add(1);
    }
    if shift < 0 {
        return Err(NotANumber::TooFine);
    }
    let zeros = (0..shift.min(25)).map(|_| 0u8); // 25 zeros are past 64 bits whatever stands before them
    let value = digits
        .into_iter()
        .chain(zeros)
        .try_fold(0u64, |value, digit| value.checked_mul(10)?.checked_add(u64::from(digit)));
    value.ok_or(NotANumber::TooLarge)
}

/// Exponents past ±1,000,000 mean the same as that: too fine or too large.
fn read_exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let size = digits.parse::<i64>().map_or(1_000_000, |size| size.min(1_000_000));
    Some(if text.starts_with('-') { -size } else { size })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dollars_are_read_to_the_nano_and_not_past_it() {
        let nano = |text| positive(text, 9);
        assert_eq!(nano("500"), Ok(500_000_000_000));
        assert_eq!((nano("0.1"), nano("1e-6"), nano("0.000001")), (Ok(100_000_000), Ok(1_000), Ok(1_000)));
        assert_eq!((nano("0.000000001"), nano("0.0000000010")), (Ok(1), Ok(1)));
        assert_eq!((nano("0.0000000001"), nano("1e-10")), (Err(NotANumber::TooFine), Err(NotANumber::TooFine)));
        assert_eq!(
            (nano("18446744073.709551615"), nano("18446744073.709551616")),
            (Ok(u64::MAX), Err(NotANumber::TooLarge))
        );
    }

    #[test]
    fn whole_numbers_may_be_spelled_like_a_float_but_have_no_fraction() {
        let whole = |text| positive(text, 0);
        assert_eq!(
            (whole("600"), whole("600.0"), whole("6e2"), whole("1_000_000")),
            (Ok(600), Ok(600), Ok(600), Ok(1_000_000))
        );
        assert_eq!((whole("1.5"), whole("1e-1")), (Err(NotANumber::TooFine), Err(NotANumber::TooFine)));
        assert_eq!(
            (whole("0"), whole("-0.0"), whole("-3")),
            (Err(NotANumber::Zero), Err(NotANumber::Zero), Err(NotANumber::Negative))
        );
        assert_eq!(
            (whole(".inf"), whole("-.INF"), whole(".nan")),
            (Err(NotANumber::NotFinite), Err(NotANumber::NotFinite), Err(NotANumber::NotFinite))
        );
        for text in ["", " ", "abc", "1x", "0x10", "1.2.3", "1e", "--1", "_1", "1e5e5", "."] {
            assert_eq!(whole(text), Err(NotANumber::Malformed), "{text:?}");
        }
        assert_eq!(whole("1e99999999999999999999"), Err(NotANumber::TooLarge));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_never_panics(text in "[-+_.0-9eEinfxé]{0,12}") {
            let _ = (positive(&text, 0), positive(&text, 9), crate::duration::parse_duration_ns(&text));
        }

        #[test]
        fn a_whole_number_survives_its_own_text(value in 1u64..) {
            prop_assert_eq!(positive(&value.to_string(), 0), Ok(value));
        }

        #[test]
        fn nano_dollars_survive_their_own_text(value in 1u64..) {
            let text = format!("{}.{:09}", value / 1_000_000_000, value % 1_000_000_000);
            prop_assert_eq!(positive(&text, 9), Ok(value));
        }
    }
}
