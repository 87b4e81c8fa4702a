//! USD per million tokens, as text, to pico-USD per token, exactly.
//!
//! 1 USD / 10^6 tokens is 10^6 pico-USD a token, so six places behind the point are kept and a seventh is refused
//! rather than rounded. No floating point: 0.1 is 0.1.

/// More than this per million tokens is a typing error, not a price (the dearest model sold asks 600): one USD a
/// token. Keeps every product of [`super::ModelPrice::cost`] far inside 128 bits.
const USD_PER_MTOK_MAX: u64 = 1_000_000;

const PICO_PER_USD_PER_MTOK: u64 = 1_000_000;
const PLACES: usize = 6;

/// `Err` says what is wrong with the number, for a message that names where it stands.
pub(super) fn pico_per_token(text: &str) -> Result<u64, &'static str> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let plain = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !plain(whole) || !plain(fraction) {
        return Err("is not a plain decimal number of at least 0");
    }
    let kept = fraction.trim_end_matches('0');
    if kept.len() > PLACES {
        return Err("has more than 6 places behind the point, which is finer than a pico-USD per token");
    }
    let usd = whole.parse::<u64>().ok().filter(|usd| *usd < USD_PER_MTOK_MAX);
    let usd = usd.ok_or("is 1,000,000 USD per million tokens or more, which is no price")?;
    // At most six digits, padded to six on the right: "25" is 250,000 millionths.
    let millionths = format!("{kept:0<PLACES$}").parse::<u64>().unwrap_or(0);
    Ok(usd * PICO_PER_USD_PER_MTOK + millionths)
}

#[cfg(test)]
mod tests {
    use super::pico_per_token;
    use proptest::prelude::*;

    #[test]
    fn prices_are_exact() {
        for (text, pico) in [
            ("1", 1_000_000),
            ("1.00", 1_000_000),
            ("0.1", 100_000),
            ("0.025", 25_000),
            ("1.25", 1_250_000),
            ("0.000001", 1),
            ("0.0000010", 1),
            ("0", 0),
            ("0.0", 0),
            ("600", 600_000_000),
            ("007.5", 7_500_000),
            ("999999.999999", 999_999_999_999),
        ] {
            assert_eq!(pico_per_token(text), Ok(pico), "{text}");
        }
    }

    #[test]
    fn what_is_no_price_is_refused() {
        for text in ["", ".", "1.", ".5", "-1", "+1", "1e-3", "1,5", " 1", "NaN", "0x10", "1.2.3", "٣"] {
            assert!(pico_per_token(text).unwrap_err().starts_with("is not a plain"), "{text:?}");
        }
        assert!(pico_per_token("0.0000001").unwrap_err().contains("6 places"));
        for text in ["1000000", "99999999999999999999999"] {
            assert!(pico_per_token(text).unwrap_err().contains("no price"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_pico_is_read_back_from_its_decimal(pico in 0..1_000_000_000_000u64) {
            let text = format!("{}.{:06}", pico / 1_000_000, pico % 1_000_000);
            prop_assert_eq!(pico_per_token(&text), Ok(pico));
        }

        #[test]
        fn any_text_is_a_price_or_a_message(text in ".*") {
            let _ = pico_per_token(&text);
        }
    }
}
