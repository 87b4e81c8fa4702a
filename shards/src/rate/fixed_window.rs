//! The fixed window: at most `amount` in each window of one period, windows aligned to the Unix epoch.
//!
//! The word packs the window's index and the count in it. The index only rolls forward, so a clock that steps
//! back opens no fresh window; refused cost is not counted. Up to twice the amount can pass around a boundary:
//! that is what a fixed window is, and why gcra is the default.

use super::window::{Position, Stored, Window};
use super::{Moment, Retry, Standing, Ticket};
use crate::units::MonoNs;

const COUNT_BITS: u32 = 36;
/// 2^28 windows of a minute are 510 years.
const INDEX_BITS: u32 = 64 - COUNT_BITS;
/// The largest amount the word can count.
pub(super) const AMOUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// A rate at one instant.
pub(crate) struct FixedNow<'p> {
    window: &'p Window,
    amount: u64,
    position: Position,
}

/// The word as of that instant: rolled forward if its window is over.
struct Open {
    index: u64,
    count: u64,
    /// By how many windows the clock is behind this one.
    ahead: u64,
}

impl Open {
    #[inline]
    fn at(position: &Position, word: u64) -> Open {
        let (index, count) = (word >> COUNT_BITS, word & AMOUNT_MAX);
        match position.locate(index, INDEX_BITS) {
            Stored::Here => Open { index, count, ahead: 0 },
            // An empty window is kept for nobody: an untouched word may lie anywhere.
            Stored::Ahead(ahead) if count > 0 => Open { index, count, ahead },
            Stored::Ahead(_) | Stored::Past(_) => Open { index: position.index, count: 0, ahead: 0 },
        }
    }

    fn with(&self, count: u64) -> u64 {
        // The shift drops what the index field does not hold.
        (self.index << COUNT_BITS) | count
    }
}

impl<'p> FixedNow<'p> {
    #[inline]
    pub(super) fn new(window: &'p Window, amount: u64, now: MonoNs) -> FixedNow<'p> {
        FixedNow { window, amount, position: window.position(now) }
    }
}

impl Moment for FixedNow<'_> {
    #[inline]
    fn take(&self, word: u64, cost: u64) -> (bool, u64) {
        let open = Open::at(&self.position, word);
        // The sum cannot wrap: a count has 36 bits.
        if cost <= self.amount && open.count + cost <= self.amount {
            (true, open.with(open.count + cost))
        } else {
            (false, word)
        }
    }

    #[inline]
    fn retry(&self, word: u64, cost: u64) -> Retry {
        if cost > self.amount {
            return Retry::Never;
        }
        Retry::After { ns: self.window.closes_in_ns(&self.position, Open::at(&self.position, word).ahead) }
    }

    #[inline]
    fn standing(&self, word: u64) -> Standing {
        let Open { count, ahead, .. } = Open::at(&self.position, word);
        let until_fresh_ns = if count == 0 { 0 } else { self.window.closes_in_ns(&self.position, ahead) };
        Standing { remaining: self.amount.saturating_sub(count), reset_ns: until_fresh_ns, next_ns: until_fresh_ns }
    }

    /// Up to what the word can hold.
    #[inline]
    fn debit(&self, word: u64, units: u64) -> u64 {
        let open = Open::at(&self.position, word);
        open.with(open.count.saturating_add(units).min(AMOUNT_MAX))
    }

    /// A window takes nothing back: what it counted stays counted (*over-refuses*, until it ends).
    fn credit(&self, word: u64, _: &Ticket, _: u64) -> u64 {
        word
    }
}

pub(super) fn at_rest(window: &Window, word: u64, now: MonoNs) -> bool {
    Open::at(&window.position(now), word).count == 0
}

#[cfg(test)]
mod tests {
    use super::super::{Algorithm, Clock0, RateParams, RateSpec, debit, step};
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn per_minute(amount: u64) -> RateParams {
        let spec =
            RateSpec { amount, period_ns: 60 * SECOND, burst: 1, algorithm: Algorithm::FixedWindow, debt: false };
        RateParams::new(spec).unwrap()
    }

    #[test]
    fn two_a_minute_then_the_next_minute() {
        let two = per_minute(2);
        let first = step(&two, 0, MonoNs(61 * SECOND), 1);
        assert_eq!(first.standing, Standing { remaining: 1, reset_ns: 59 * SECOND, next_ns: 59 * SECOND });
        let second = step(&two, first.new_word.unwrap(), MonoNs(62 * SECOND), 1);
        let full = second.new_word.unwrap();
        assert_eq!(second.standing.remaining, 0);
        let third = step(&two, full, MonoNs(63 * SECOND), 1);
        assert_eq!((third.new_word, third.retry), (None, Retry::After { ns: 57 * SECOND }));
        assert_eq!(step(&two, full, MonoNs(120 * SECOND), 1).standing.remaining, 1);
        assert_eq!(step(&two, full, MonoNs(63 * SECOND), 3).retry, Retry::Never);
    }

    #[test]
    fn windows_open_on_the_minute_of_the_wall_clock() {
        // The process booted at 12:00:40, its monotonic clock at 5 s: 15 s later a new minute begins.
        let clock0 = Clock0 { wall_offset_ns: i64::try_from(35 * SECOND).unwrap() };
        let one = per_minute(1).anchored(clock0);
        let full = step(&one, 0, MonoNs(5 * SECOND), 1).new_word.unwrap();
        assert_eq!(step(&one, full, MonoNs(5 * SECOND), 1).retry, Retry::After { ns: 20 * SECOND });
        assert!(step(&one, full, MonoNs(25 * SECOND), 1).admitted);
    }

    #[test]
    fn a_clock_that_steps_back_opens_no_fresh_window() {
        let two = per_minute(2);
        let full = step(&two, 0, MonoNs(61 * SECOND), 2).new_word.unwrap();
        assert_eq!(step(&two, full, MonoNs(59 * SECOND), 1).retry, Retry::After { ns: 61 * SECOND });
    }

    #[test]
    fn an_index_that_came_round_is_a_window_long_past() {
        // 2^28 windows of 60 s; ten windows before it comes round, the stored one is not ahead but empty.
        let two = per_minute(2);
        let came_round = MonoNs(((1 << INDEX_BITS) - 10) * 60 * SECOND);
        assert_eq!(step(&two, 0, came_round, 1).standing.remaining, 1);
        let later = step(&two, 0, came_round, 1).new_word.unwrap();
        assert_eq!(step(&two, later, came_round, 1).standing.remaining, 0);
        assert_eq!(step(&two, later, MonoNs(came_round.0 + 60 * SECOND), 1).standing.remaining, 1);
    }

    #[test]
    fn a_debit_fills_the_word_and_stops() {
        let two = per_minute(2);
        let word = debit(&two, 0, MonoNs(0), u64::MAX).unwrap();
        assert_eq!(word & AMOUNT_MAX, AMOUNT_MAX);
        assert_eq!(step(&two, word, MonoNs(0), 1).standing.remaining, 0);
    }
}
