//! The id every response carries in `x-tt-request-id` and every row repeats.
//!
//! `tt_` and 26 digits of Crockford's base 32: 48 bits of wall time in milliseconds, then 80 random bits. Ids sort by
//! time, need no coordination, and hold nothing about the caller.

use std::fmt;

use crate::units::WallMs;

const PREFIX: &[u8; 3] = b"tt_";
const DIGITS: usize = 26;
const LENGTH: usize = PREFIX.len() + DIGITS;

/// No I, L, O or U: an id survives being read out on the telephone.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

const TIME_BITS: u32 = 48;
const RANDOM_BITS: u32 = 80;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId([u8; LENGTH]);

impl RequestId {
    /// Stands in a row that has not got its id yet.
    pub const ZERO: RequestId = RequestId(*b"tt_00000000000000000000000000");

    /// From the wall clock and 80 random bits (higher bits of `random` are ignored), both read by the caller.
    pub fn new(wall: WallMs, random: u128) -> RequestId {
        // A clock before 1970 is a broken clock: the id is then random only.
        let time = u128::from(wall.0.max(0).unsigned_abs()) & ((1 << TIME_BITS) - 1);
        let bits = (time << RANDOM_BITS) | (random & ((1 << RANDOM_BITS) - 1));
        let mut text = [0; LENGTH];
        text[..PREFIX.len()].copy_from_slice(PREFIX);
        // Twelve digits are 60 bits, so that the shifts are those of one register.
        for (part, digits) in text[PREFIX.len()..].rchunks_mut(12).enumerate() {
            let mut left = (bits >> (60 * part)) as u64;
            for digit in digits.iter_mut().rev() {
                *digit = ALPHABET[left as usize & 31];
                left >>= 5;
            }
        }
        RequestId(text)
    }

    /// `None` for anything that [`RequestId::new`] could not have made.
    pub fn parse(text: &str) -> Option<RequestId> {
        let bytes: [u8; LENGTH] = text.as_bytes().try_into().ok()?;
        let digits = bytes.strip_prefix(PREFIX)?;
        // 26 digits of 5 bits are 130 bits: the first digit has only 3 of them.
        let fits = digits[0] <= b'7' && digits.iter().all(|digit| ALPHABET.contains(digit));
        fits.then_some(RequestId(bytes))
    }

    /// The same as [`RequestId::as_str`], without the look that proves it to be text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("built from ASCII only")
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn id_is_a_prefix_ten_digits_of_time_and_sixteen_of_chance() {
        assert_eq!(RequestId::new(WallMs(0), 0).as_str(), "tt_00000000000000000000000000");
        assert_eq!(RequestId::new(WallMs(0), 0), RequestId::ZERO);
        assert_eq!(RequestId::new(WallMs(1), 31).as_str(), "tt_0000000001000000000000000Z");
        // 1,469,918,176,385 ms, the example of the ULID specification.
        assert_eq!(&RequestId::new(WallMs(1_469_918_176_385), 0).as_str()[..13], "tt_01ARYZ6S41");
        assert_eq!(RequestId::new(WallMs(-5), u128::MAX).as_str(), "tt_0000000000ZZZZZZZZZZZZZZZZ");
    }

    #[test]
    fn what_is_no_id_is_not_parsed() {
        let id = RequestId::new(WallMs(7), 9);
        assert_eq!(RequestId::parse(id.as_str()), Some(id));
        for text in [
            "",
            "tt_",
            "xx_00000000000000000000000000",
            "tt_0000000000000000000000000",
            "tt_8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
        ] {
            assert_eq!(RequestId::parse(text), None, "{text}");
        }
        assert_eq!(RequestId::parse(&id.as_str().replace('9', "U")), None);
    }

    proptest! {
        #[test]
        fn ids_are_read_back_and_sort_by_time(
            (a, b) in (0..1i64 << TIME_BITS, 0..1i64 << TIME_BITS), chance: (u128, u128)
        ) {
            let (first, second) = (RequestId::new(WallMs(a), chance.0), RequestId::new(WallMs(b), chance.1));
            prop_assert_eq!(RequestId::parse(first.as_str()), Some(first));
            if a != b {
                prop_assert_eq!(first < second, a < b);
            }
        }
    }
}
