//! The token bucket: `burst` tokens, refilled continuously at `amount` per period, a cost takes that many.
//!
//! A bucket with `b` tokens missing and a GCRA backlog of `b` emission intervals are the same state told from
//! two ends, and they answer alike step by step (the tests compare them), so the bucket shares the gcra cell and
//! its word. The one difference is after a clock stepped back: a textbook bucket freezes its refill and still
//! calls itself full one drain from now, this one says the later, true instant.

/// A bucket, told from its other end.
pub(super) use super::gcra::Backlog as Bucket;

#[cfg(test)]
mod tests {
    use super::super::{Algorithm, RateParams, RateSpec, Retry, step};
    use crate::units::MonoNs;

    #[test]
    fn half_a_token_left_over_survives_the_take() {
        // Three a second. At 0.5 s, 1.5 tokens are back; one is taken, half of one stays.
        let spec =
            RateSpec { amount: 3, period_ns: 1_000_000_000, burst: 3, algorithm: Algorithm::TokenBucket, debt: false };
        let three = RateParams::new(spec).unwrap();
        let empty = step(&three, 0, MonoNs(0), 3).new_word.unwrap();
        let took = step(&three, empty, MonoNs(500_000_000), 1);
        assert!(took.admitted);
        assert_eq!(took.standing.remaining, 0);
        // The missing half is back a sixth of a second later.
        let word = took.new_word.unwrap();
        assert_eq!(step(&three, word, MonoNs(500_000_000), 1).retry, Retry::After { ns: 166_666_667 });
        assert!(step(&three, word, MonoNs(666_666_667), 1).admitted);
    }
}
