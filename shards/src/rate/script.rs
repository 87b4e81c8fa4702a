//! One rate as a script of the shared store counts it: what the script is given, and what its reply means.
//!
//! The scripts count in whole µs of the store's clock, because a double holds those exactly. An interval is rounded up to
//! them, so a script may be slower than a local cell by less than 1/T of T µs, and never faster. What a caller is told is
//! worked out here, from the state the script left: doubles never divide for us.

use super::sliding_window::{self, Pair};
use super::{Form, RateParams, RateSpecError, Retry, Standing, fixed_window};

const US: u64 = 1_000;
/// Sums of the store's clock (2^51 µs until 2041, 2^53 in 2255) and a backlog stay exact below 2^53.
const TAU_US_MAX: u64 = 1 << 51;
/// As far as a double counts.
const WORD_MAX: i64 = 1 << 53;
/// As in a local cell: a thread may be descheduled between its clock and its step, and so may a store.
const STALE_NOW_US: u64 = 1_000_000;

/// Which script counts a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Script {
    /// `gcra` and `token_bucket`, which answer alike.
    Backlog,
    FixedWindow,
    SlidingWindow,
}

impl Script {
    pub const ALL: [Script; 3] = [Script::Backlog, Script::FixedWindow, Script::SlidingWindow];

    /// How many words its reply has.
    const fn words(self) -> usize {
        match self {
            Script::Backlog => 1,
            Script::FixedWindow => 3,
            Script::SlidingWindow => 5,
        }
    }
}

/// A reply that the script can have given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptReply {
    script: Script,
    /// Whether it was admitted, and the state after it.
    words: [u64; 5],
}

impl ScriptReply {
    /// `None` for what the script cannot say: another number of words, or words out of range.
    pub fn of(script: Script, words: impl IntoIterator<Item = i64>) -> Option<ScriptReply> {
        let (mut held, mut count) = ([0; 5], 0);
        for word in words {
            *held.get_mut(count)? = word;
            count += 1;
        }
        if script == Script::Backlog {
            // One word says both: b, or -1 - b for a refusal, which is !b.
            let [said, ..] = held;
            held[..2].copy_from_slice(&[i64::from(said >= 0), said.max(!said)]);
        }
        if !held.iter().all(|word| (0..=WORD_MAX).contains(word)) {
            return None;
        }
        let held = held.map(i64::cast_unsigned); // none is negative
        let [admitted, first, second, overlap, _] = held;
        let in_range = match script {
            Script::Backlog => true,
            Script::FixedWindow => first <= fixed_window::AMOUNT_MAX,
            Script::SlidingWindow => {
                first <= sliding_window::AMOUNT_MAX && second <= sliding_window::AMOUNT_MAX && overlap < WORD_MAX as u64
            }
        };
        (count == script.words() && admitted <= 1 && in_range).then_some(ScriptReply { script, words: held })
    }

    pub fn is_admitted(&self) -> bool {
        self.words[0] == 1
    }
}

impl RateParams {
    /// The script that counts this rate.
    pub fn script(&self) -> Script {
        match self.form {
            Form::Gcra(_) | Form::TokenBucket(_) => Script::Backlog,
            Form::FixedWindow(_) => Script::FixedWindow,
            Form::SlidingWindow(_) => Script::SlidingWindow,
        }
    }

    /// Whether a script can hold it; the error names the largest burst that it can.
    pub fn fits_script(&self) -> Result<(), RateSpecError> {
        let max = TAU_US_MAX / self.interval_us();
        if self.script() == Script::Backlog && self.burst() > max {
            return Err(RateSpecError::BurstTooLarge { burst: self.burst(), max });
        }
        Ok(())
    }

    /// What the script is given to count `cost` units.
    pub fn script_args(&self, cost: u64) -> [u64; 3] {
        match self.script() {
            Script::Backlog => {
                let (interval_us, tau_us) = (self.interval_us(), self.tau_us());
                let damage_us = tau_us + STALE_NOW_US.max(tau_us.saturating_sub(interval_us));
                // More than fits is refused whatever it is; it must only stay a whole number to a double.
                [cost.saturating_mul(interval_us).min(2 * TAU_US_MAX), tau_us, damage_us]
            }
            Script::FixedWindow | Script::SlidingWindow => [self.period_us(), self.amount(), cost.min(1 << 52)],
        }
    }

    /// What the reply says to the caller who asked for `cost` units. A reply of another script tells nothing.
    pub fn read_script(&self, reply: &ScriptReply, cost: u64) -> (bool, Retry, Standing) {
        let [_, first, second, overlap_us, last] = reply.words;
        let (retry, standing) = match reply.script {
            Script::Backlog => self.read_backlog(first, cost),
            Script::FixedWindow => self.read_fixed_window(first, second, cost),
            Script::SlidingWindow => {
                let period_ns = self.period_us() * US;
                let pair =
                    Pair::told(first, second, period_ns, (overlap_us * US).min(period_ns), last.saturating_mul(US));
                (pair.retry(self.amount(), cost), pair.standing(self.amount()))
            }
        };
        (reply.is_admitted(), if reply.is_admitted() { Retry::Now } else { retry }, standing)
    }

    fn read_backlog(&self, backlog_us: u64, cost: u64) -> (Retry, Standing) {
        let (interval_us, tau_us) = (self.interval_us(), self.tau_us());
        let (remaining, next_us) = match tau_us.checked_sub(backlog_us) {
            Some(room_us) => {
                let units = room_us / interval_us;
                (units, if units >= self.burst() { 0 } else { (units + 1) * interval_us - room_us })
            }
            None => (0, backlog_us - tau_us + interval_us),
        };
        let retry = if cost > self.burst() {
            Retry::Never
        } else {
            let wait_us = (backlog_us + cost.saturating_mul(interval_us)).saturating_sub(tau_us);
            Retry::After { ns: wait_us.max(1).saturating_mul(US) }
        };
        let standing =
            Standing { remaining, reset_ns: backlog_us.saturating_mul(US), next_ns: next_us.saturating_mul(US) };
        (retry, standing)
    }

    fn read_fixed_window(&self, count: u64, closes_in_us: u64, cost: u64) -> (Retry, Standing) {
        let closes_in_ns = closes_in_us.max(1).saturating_mul(US);
        let until_fresh_ns = if count == 0 { 0 } else { closes_in_ns };
        let remaining = self.amount().saturating_sub(count);
        let retry = if cost > self.amount() { Retry::Never } else { Retry::After { ns: closes_in_ns } };
        (retry, Standing { remaining, reset_ns: until_fresh_ns, next_ns: until_fresh_ns })
    }

    /// Up, so that nothing is admitted early.
    fn interval_us(&self) -> u64 {
        self.period_ns().div_ceil(self.amount().saturating_mul(US)).max(1)
    }

    /// As much as [`RateParams::fits_script`] lets through.
    fn tau_us(&self) -> u64 {
        self.burst().saturating_mul(self.interval_us()).min(TAU_US_MAX)
    }

    fn period_us(&self) -> u64 {
        self.period_ns().div_ceil(US)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Algorithm, RateSpec};
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn rate(amount: u64, algorithm: Algorithm) -> RateParams {
        RateParams::new(RateSpec { amount, period_ns: 60 * SECOND, burst: amount, algorithm, debt: false }).unwrap()
    }

    #[test]
    fn a_backlog_is_told_in_units() {
        let sixty = rate(60, Algorithm::Gcra);
        assert_eq!(sixty.script_args(1), [1_000_000, 60_000_000, 119_000_000]);
        let reply = ScriptReply::of(Script::Backlog, [1_500_000]).unwrap();
        let (admitted, retry, standing) = sixty.read_script(&reply, 1);
        assert!(admitted && retry == Retry::Now);
        assert_eq!(standing, Standing { remaining: 58, reset_ns: 1_500_000_000, next_ns: 500_000_000 });
        let full = ScriptReply::of(Script::Backlog, [-60_000_001]).unwrap();
        assert_eq!(sixty.read_script(&full, 1).1, Retry::After { ns: SECOND });
        assert_eq!(sixty.read_script(&full, 61).1, Retry::Never);
        // Seven a minute do not divide: 8,571,428.57 µs are rounded up once.
        assert_eq!(rate(7, Algorithm::TokenBucket).script_args(2), [17_142_858, 60_000_003, 111_428_577]);
    }

    #[test]
    fn windows_are_told_like_local_ones() {
        let reply = ScriptReply::of(Script::FixedWindow, [0, 60, 12_000_000]).unwrap();
        let (admitted, retry, standing) = rate(60, Algorithm::FixedWindow).read_script(&reply, 1);
        assert!(!admitted);
        assert_eq!(retry, Retry::After { ns: 12 * SECOND });
        assert_eq!(standing, Standing { remaining: 0, reset_ns: 12 * SECOND, next_ns: 12 * SECOND });
        // The example of the local window: 42 before, 18 beside it at 15 s; half a unit is missing.
        let reply = ScriptReply::of(Script::SlidingWindow, [0, 42, 18, 45_000_000, 45_000_000]).unwrap();
        let (_, retry, standing) = rate(50, Algorithm::SlidingWindow).read_script(&reply, 1);
        assert_eq!(retry, Retry::After { ns: 714_285_715 });
        assert_eq!(standing, Standing { remaining: 0, reset_ns: 105 * SECOND, next_ns: 714_285_715 });
    }

    #[test]
    fn what_no_script_says_is_no_reply() {
        let of = |script, words: &[i64]| ScriptReply::of(script, words.iter().copied());
        assert_eq!(of(Script::Backlog, &[]), None);
        assert_eq!(of(Script::Backlog, &[1, 0]), None);
        assert_eq!(of(Script::Backlog, &[i64::MAX]), None);
        assert_eq!(of(Script::Backlog, &[i64::MIN]), None);
        assert!(of(Script::Backlog, &[0]).is_some_and(|reply| reply.is_admitted()));
        assert!(of(Script::Backlog, &[-1]).is_some_and(|reply| !reply.is_admitted()));
        assert_eq!(of(Script::FixedWindow, &[1, 1 << 40, 1]), None);
        assert_eq!(of(Script::SlidingWindow, &[1, 1, 1 << 21, 1, 1]), None);
        assert_eq!(of(Script::SlidingWindow, &[1, 1, 1, 1, 1, 1]), None);
        assert!(of(Script::SlidingWindow, &[1, 1, 1, 1, 1]).is_some());
    }

    #[test]
    fn no_reply_makes_the_arithmetic_wrap() {
        for algorithm in [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingWindow] {
            for spec in [
                RateSpec { amount: 1, period_ns: 1, burst: 1, algorithm, debt: false },
                RateSpec { amount: 1, period_ns: super::super::PERIOD_NS_MAX, burst: 1, algorithm, debt: false },
                RateSpec { amount: 1_000, period_ns: 60 * SECOND, burst: 1_000, algorithm, debt: false },
            ] {
                let rate = RateParams::new(spec).unwrap();
                for word in [0, 1, (1 << 20) - 1, WORD_MAX] {
                    for script in Script::ALL {
                        let refused = if script == Script::Backlog { !word } else { 0 };
                        let words = std::iter::once(refused).chain(vec![word; script.words() - 1]);
                        let Some(reply) = ScriptReply::of(script, words) else { continue };
                        for cost in [0, 1, 1_000, u64::MAX] {
                            let _ = (rate.read_script(&reply, cost), rate.script_args(cost));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_burst_that_no_double_holds_is_refused_with_the_largest_that_one_does() {
        let fast = RateSpec {
            amount: 60 * SECOND,
            period_ns: 60 * SECOND,
            burst: 1 << 52,
            algorithm: Algorithm::Gcra,
            debt: false,
        };
        let error = RateParams::new(fast).unwrap().fits_script().unwrap_err();
        assert_eq!(error, RateSpecError::BurstTooLarge { burst: 1 << 52, max: 1 << 51 });
        assert_eq!(RateParams::new(RateSpec { burst: 1 << 51, ..fast }).unwrap().fits_script(), Ok(()));
    }
}
