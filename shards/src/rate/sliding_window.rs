//! The sliding window: the previous window's count, weighted by the part of it that still overlaps the last
//! period, plus the present one's, is at most `amount`. Compared exactly; the weight is never rounded down.
//!
//! The word packs the present window's index and both counts. The index only rolls forward; a clock that steps
//! back finds the present window at its beginning, where the previous one weighs most. Refused cost is not
//! counted. It assumes that the previous window was used evenly, which is its whole approximation.

use super::window::{Position, Stored, Window};
use super::{Moment, Retry, Standing, Ticket};
use crate::units::MonoNs;

const COUNT_BITS: u32 = 20;
/// 2^24 windows of a minute are 31 years.
const INDEX_BITS: u32 = 64 - 2 * COUNT_BITS;
/// The largest amount the word can count.
pub(super) const AMOUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
/// Below it (4.9 hours) a count times the period fits 64 bits, and the division is a quick one.
const NARROW_PERIOD_NS: u64 = 1 << (64 - COUNT_BITS);

/// A rate at one instant.
pub(crate) struct SlidingNow<'p> {
    window: &'p Window,
    amount: u64,
    position: Position,
}

/// The word as of that instant: rolled forward if its window is over.
pub(super) struct Pair {
    index: u64,
    previous: u64,
    current: u64,
    period_ns: u64,
    /// Of the previous window, what the last period still overlaps.
    overlap_ns: u64,
    closes_in_ns: u64,
}

impl Pair {
    #[inline]
    fn at(window: &Window, position: &Position, word: u64) -> Pair {
        let index = word >> (2 * COUNT_BITS);
        let (previous, current) = ((word >> COUNT_BITS) & AMOUNT_MAX, word & AMOUNT_MAX);
        let (index, previous, current, ahead) = match position.locate(index, INDEX_BITS) {
            Stored::Here => (index, previous, current, 0),
            // An empty pair is kept for nobody: an untouched word may lie anywhere.
            Stored::Ahead(ahead) if previous | current > 0 => (index, previous, current, ahead),
            Stored::Past(1) => (position.index, current, 0, 0),
            Stored::Ahead(_) | Stored::Past(_) => (position.index, 0, 0, 0),
        };
        let period_ns = window.period_ns();
        let overlap_ns = if ahead == 0 { period_ns - position.elapsed_ns } else { period_ns };
        let closes_in_ns = window.closes_in_ns(position, ahead);
        Pair { index, previous, current, period_ns, overlap_ns, closes_in_ns }
    }

    /// As another keeper of the same two counts tells it. `overlap_ns` is at most `period_ns`, which is at least 1.
    pub(super) fn told(previous: u64, current: u64, period_ns: u64, overlap_ns: u64, closes_in_ns: u64) -> Pair {
        Pair { index: 0, previous, current, period_ns, overlap_ns, closes_in_ns }
    }

    pub(super) fn retry(&self, amount: u64, cost: u64) -> Retry {
        if cost > amount {
            return Retry::Never;
        }
        Retry::After { ns: self.wait_ns(amount, cost).max(1) }
    }

    pub(super) fn standing(&self, amount: u64) -> Standing {
        let remaining = amount.saturating_sub(self.used());
        let next_ns = if remaining >= amount { 0 } else { self.wait_ns(amount, remaining + 1) };
        let reset_ns = match (self.current, self.previous) {
            (0, 0) => 0,
            (0, _) => self.closes_in_ns,
            _ => self.closes_in_ns.saturating_add(self.period_ns),
        };
        Standing { remaining, reset_ns, next_ns }
    }

    fn with(&self, current: u64) -> u64 {
        // The shift drops what the index field does not hold.
        (self.index << (2 * COUNT_BITS)) | (self.previous << COUNT_BITS) | current
    }

    /// The least `units` with previous * overlap + current * period <= units * period. Exact where it is compared
    /// with whole units.
    #[inline]
    fn used(&self) -> u64 {
        if self.previous == 0 {
            return self.current;
        }
        self.current + scaled_up(self.previous, self.overlap_ns, self.period_ns)
    }

    /// Until `cost`, which is at most `amount` and does not fit now, would fit.
    fn wait_ns(&self, amount: u64, cost: u64) -> u64 {
        let room = amount - cost;
        if self.current <= room {
            // In this window, once the previous one weighs no more than the room beside the present one:
            // previous * (P - e) <= (room - current) * P. The window may not have opened yet, to a clock behind.
            let excess = self.previous.saturating_sub(room - self.current);
            let fits_at_ns = scaled_up(excess, self.period_ns, self.previous.max(1));
            let opens_in_ns = self.closes_in_ns.saturating_sub(self.overlap_ns);
            return fits_at_ns.saturating_sub(self.period_ns - self.overlap_ns).saturating_add(opens_in_ns);
        }
        // In the next window, where the present count is the previous one.
        let fits_at_ns = scaled_up(self.current - room, self.period_ns, self.current);
        self.closes_in_ns.saturating_add(fits_at_ns)
    }
}

impl<'p> SlidingNow<'p> {
    #[inline]
    pub(super) fn new(window: &'p Window, amount: u64, now: MonoNs) -> SlidingNow<'p> {
        SlidingNow { window, amount, position: window.position(now) }
    }

    #[inline]
    fn pair(&self, word: u64) -> Pair {
        Pair::at(self.window, &self.position, word)
    }
}

impl Moment for SlidingNow<'_> {
    #[inline]
    fn take(&self, word: u64, cost: u64) -> (bool, u64) {
        let pair = self.pair(word);
        // The sum cannot wrap: use has 21 bits.
        if cost <= self.amount && pair.used() + cost <= self.amount {
            (true, pair.with(pair.current + cost))
        } else {
            (false, word)
        }
    }

    #[inline]
    fn retry(&self, word: u64, cost: u64) -> Retry {
        self.pair(word).retry(self.amount, cost)
    }

    #[inline]
    fn standing(&self, word: u64) -> Standing {
        self.pair(word).standing(self.amount)
    }

    /// Up to what the word can hold.
    #[inline]
    fn debit(&self, word: u64, units: u64) -> u64 {
        let pair = self.pair(word);
        pair.with(pair.current.saturating_add(units).min(AMOUNT_MAX))
    }

    /// A window takes nothing back: what it counted stays counted (*over-refuses*, until it ends).
    fn credit(&self, word: u64, _: &Ticket, _: u64) -> u64 {
        word
    }
}

/// ceil(count * ns / by), for a count of at most 20 bits; `by` is at least 1 and the quotient fits.
fn scaled_up(count: u64, ns: u64, by: u64) -> u64 {
    if ns < NARROW_PERIOD_NS {
        (count * ns).div_ceil(by)
    } else {
        u64::try_from((u128::from(count) * u128::from(ns)).div_ceil(u128::from(by))).unwrap_or(u64::MAX)
    }
}

pub(super) fn at_rest(window: &Window, word: u64, now: MonoNs) -> bool {
    let pair = Pair::at(window, &window.position(now), word);
    pair.previous == 0 && pair.current == 0
}

#[cfg(test)]
mod tests {
    use super::super::{Algorithm, RateParams, RateSpec, step};
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn per_minute(amount: u64) -> RateParams {
        let spec =
            RateSpec { amount, period_ns: 60 * SECOND, burst: 1, algorithm: Algorithm::SlidingWindow, debt: false };
        RateParams::new(spec).unwrap()
    }

    #[test]
    fn the_previous_minute_weighs_what_still_overlaps() {
        // 42 in the minute before; 15 s into this one 45/60 of them weigh 31.5, and 18 fit beside it: 49.5 of 50.
        let fifty = per_minute(50);
        let before = step(&fifty, 0, MonoNs(0), 42).new_word.unwrap();
        let now = MonoNs(75 * SECOND);
        assert_eq!(step(&fifty, before, now, 0).standing.remaining, 18);
        let beside = step(&fifty, before, now, 18);
        assert_eq!(beside.standing.remaining, 0);
        // The missing half unit: 0.5 of 42 per minute is 60/84 s.
        let refused = step(&fifty, beside.new_word.unwrap(), now, 1);
        assert_eq!(refused.retry, Retry::After { ns: 714_285_715 });
        assert_eq!(refused.standing.next_ns, 714_285_715);
        assert_eq!(refused.standing.reset_ns, 105 * SECOND);
    }

    #[test]
    fn a_wait_may_reach_into_the_next_window() {
        // Ten taken at 1 s. Five more fit when half of the ten have slid out: at 1.5 windows.
        let ten = per_minute(10);
        let full = step(&ten, 0, MonoNs(SECOND), 10).new_word.unwrap();
        assert_eq!(step(&ten, full, MonoNs(2 * SECOND), 5).retry, Retry::After { ns: 88 * SECOND });
        assert!(step(&ten, full, MonoNs(90 * SECOND), 5).admitted);
        assert!(!step(&ten, full, MonoNs(90 * SECOND - 1), 5).admitted);
    }

    #[test]
    fn a_clock_behind_its_window_finds_the_previous_one_at_full_weight() {
        let ten = per_minute(10);
        let before = step(&ten, 0, MonoNs(0), 10).new_word.unwrap();
        let took = step(&ten, before, MonoNs(90 * SECOND), 5).new_word.unwrap();
        let back = step(&ten, took, MonoNs(30 * SECOND), 1);
        assert!(!back.admitted);
        // 10 * (60 - e) / 60 + 5 + 1 <= 10 from e = 36 s of the window that opens at 60 s.
        assert_eq!(back.retry, Retry::After { ns: 66 * SECOND });
    }

    #[test]
    fn a_period_of_a_month_needs_the_wide_division_and_says_the_same() {
        let month = 30 * 86_400 * SECOND;
        let spec = RateSpec {
            amount: AMOUNT_MAX,
            period_ns: month,
            burst: 1,
            algorithm: Algorithm::SlidingWindow,
            debt: false,
        };
        let wide = RateParams::new(spec).unwrap();
        let full = step(&wide, 0, MonoNs(0), AMOUNT_MAX).new_word.unwrap();
        // A third into the next month, two thirds of 1,048,575 weigh: 699,050, and 349,525 are free.
        assert_eq!(step(&wide, full, MonoNs(month + month / 3), 0).standing.remaining, 349_525);
    }
}
