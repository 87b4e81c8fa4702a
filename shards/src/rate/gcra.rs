//! The generic cell rate algorithm: the word is the instant at which the backlog is gone (the theoretical
//! arrival time, TAT), in ticks.
//!
//! A unit adds one emission interval T = ceil(period / amount), rounded up **once**; `burst` of them are the
//! tolerance tau = burst * T; a cost is admitted iff max(TAT, now) + cost * T <= now + tau. Both sides are linear
//! in T, so how a burst is split never changes an answer, and the only error is a long-run rate slower than
//! configured by less than 1/T of itself. Nothing is ever admitted early.
//!
//! Decides one word after another; [`crate::rate`] calls it. Knows no limits and no clocks.
//!
//! # The word
//! A tick is 1 ns, or 1/64 ns where the interval is no whole number of ns or is under 1,000 ns. A reload may move
//! a limit from one to the other, so the word's top bit says which ticks it is in and nothing is reset. The sums
//! below fit 63 bits: now <= 2^62, tau and debts <= 2^61. Hence a process is good for 146 years, or 2.3 in fine
//! ticks; afterwards its clock stands still here (*over-refuses*; a restart mends it).

use super::{Moment, RateSpec, Retry, Standing, Ticket};
use crate::units::MonoNs;

/// Marks a word that counts in 1/64 ns.
const FINE: u64 = 1 << 63;
/// 64 ticks per ns: at 7 * 10^9 units a minute, T = 549/64 ns is 0.08 % slow where 9 ns would be 5 %.
const FINE_SHIFT: u32 = 6;
/// An interval shorter than this, in ns, is kept in fine ticks even if it divides.
const COARSE_INTERVAL_NS_MIN: u64 = 1_000;
/// Largest tau, 73 years in coarse ticks and 1.1 in fine ones. Also as far ahead as any debt is remembered.
const TAU_TICKS_MAX: u64 = 1 << 61;
/// Where the clock is held.
const NOW_TICKS_MAX: u64 = 1 << 62;
/// A debt may reach ten bursts beyond the one an acquire can take: a stream that used ten times its reserve is
/// remembered, a nonsense report cannot close a scope for ever.
const DEBT_BURSTS: u64 = 10;
/// The gates read the clock and step at once; a thread may be descheduled in between, and a `now` up to this old
/// must not pass for a clock that stepped back.
const STALE_NOW_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backlog {
    interval_ticks: u64,
    tau_ticks: u64,
    /// As far ahead of now as this cell's own writes can put the TAT: tau, or 11 tau with debts.
    ceiling_ticks: u64,
    /// A TAT further ahead than this was written by a clock that has since stepped back, or under a larger burst.
    /// Anything nearer leaves room for one unit within tau (or a second and an interval, where tau is shorter).
    damage_ticks: u64,
    tick_shift: u32,
    /// What `tick_shift` means for a word, for the clock and for the way back to ns, at hand.
    tag: u64,
    now_ns_max: u64,
    tick_mask: u64,
}

impl Backlog {
    /// The interval of a rate; it holds no burst yet. Amount and period are at least 1.
    pub(super) fn compile(spec: &RateSpec) -> Backlog {
        let RateSpec { amount, period_ns, .. } = *spec;
        let whole_ns = period_ns / amount;
        let exact = period_ns % amount == 0;
        let (interval_ticks, tick_shift) = if exact && whole_ns >= COARSE_INTERVAL_NS_MIN {
            (whole_ns, 0)
        } else {
            let fine = match period_ns.checked_shl(FINE_SHIFT).filter(|ticks| ticks >> FINE_SHIFT == period_ns) {
                Some(period_ticks) => period_ticks.div_ceil(amount),
                // Periods over 9 years. At most 2^61 * 64 / 1, so the quotient may need more than a word: saturate.
                None => u64::try_from((u128::from(period_ns) << FINE_SHIFT).div_ceil(u128::from(amount)))
                    .unwrap_or(u64::MAX),
            };
            if fine <= TAU_TICKS_MAX {
                (fine, FINE_SHIFT)
            } else {
                // One unit in more than a year: a coarse tick is 10^-16 of it.
                (period_ns.div_ceil(amount), 0)
            }
        };
        Backlog {
            interval_ticks,
            tau_ticks: 0,
            ceiling_ticks: 0,
            damage_ticks: 0,
            tick_shift,
            tag: if tick_shift == 0 { 0 } else { FINE },
            now_ns_max: NOW_TICKS_MAX >> tick_shift,
            tick_mask: (1 << tick_shift) - 1,
        }
    }

    /// The largest burst this rate can hold. At least 1.
    pub(super) fn burst_max(&self) -> u64 {
        TAU_TICKS_MAX / self.interval_ticks
    }

    /// The same rate holding `burst` units, or as many as it can: how many it holds comes back.
    pub(super) fn holding(mut self, burst: u64, debt: bool) -> (Backlog, u64) {
        let (burst, tau_ticks) = match burst.checked_mul(self.interval_ticks) {
            Some(tau_ticks) if tau_ticks <= TAU_TICKS_MAX => (burst, tau_ticks),
            _ => (self.burst_max(), self.burst_max() * self.interval_ticks),
        };
        self.tau_ticks = tau_ticks;
        self.ceiling_ticks =
            if debt { tau_ticks.saturating_mul(1 + DEBT_BURSTS).min(TAU_TICKS_MAX) } else { tau_ticks };
        let stale_ticks = STALE_NOW_NS << self.tick_shift;
        self.damage_ticks = self.ceiling_ticks + stale_ticks.max(tau_ticks - self.interval_ticks);
        (self, burst)
    }

    pub(super) fn ticket(&self, tokens: u64) -> Ticket {
        Ticket { tokens, interval_ticks: self.interval_ticks, tick_shift: self.tick_shift }
    }

    /// The word after a whole reserve was taken back, without a clock: for the ways out on which nobody reads one.
    /// Needs no floor, a backlog that ended before now is the same as none.
    pub(super) fn given_back(&self, word: u64, ticket: &Ticket) -> u64 {
        self.word(self.tat(word).saturating_sub(self.refund_ticks(ticket, ticket.tokens)))
    }

    /// What `refund` tokens of the reserve took, in this rate's ticks. Down where the reserve was in finer ones, so that
    /// a reload gives nothing away.
    fn refund_ticks(&self, ticket: &Ticket, refund: u64) -> u64 {
        let ticks = refund.min(ticket.tokens).saturating_mul(ticket.interval_ticks);
        if ticket.tick_shift >= self.tick_shift {
            ticks >> (ticket.tick_shift - self.tick_shift)
        } else {
            ticks.saturating_mul(1 << (self.tick_shift - ticket.tick_shift))
        }
    }

    /// Up, so that a caller who waits that long is not a nanosecond early.
    fn ns(&self, ticks: u64) -> u64 {
        (ticks + self.tick_mask) >> self.tick_shift
    }

    #[inline]
    fn word(&self, tat: u64) -> u64 {
        tat | self.tag
    }

    /// The word's TAT in this rate's ticks. Below 2^63, whatever the word.
    fn tat(&self, word: u64) -> u64 {
        let ticks = word ^ self.tag;
        if ticks < FINE { ticks } else { self.rescaled(ticks ^ FINE) }
    }

    /// A word written in the other ticks, before a reload or by another N. Up, so that nothing is given away.
    fn rescaled(&self, ticks: u64) -> u64 {
        if self.tick_shift == 0 {
            ticks.div_ceil(1 << FINE_SHIFT)
        } else {
            ticks.saturating_mul(1 << FINE_SHIFT).min(FINE - 1)
        }
    }
}

/// A rate at one instant.
pub(crate) struct BacklogNow<'p> {
    backlog: &'p Backlog,
    burst: u64,
    now_ticks: u64,
}

impl<'p> BacklogNow<'p> {
    /// `burst` is the one the backlog holds.
    #[inline]
    pub(super) fn new(backlog: &'p Backlog, burst: u64, now: MonoNs) -> BacklogNow<'p> {
        BacklogNow { backlog, burst, now_ticks: now.0.min(backlog.now_ns_max) << backlog.tick_shift }
    }

    fn full_ticks(&self) -> u64 {
        self.now_ticks + self.backlog.tau_ticks
    }

    /// The word after `cost` where it is admitted without a second thought: by far the most steps. `None`: ask
    /// [`Moment::take`], which also knows refusals, peeks, and words to be rescaled or repaired.
    #[inline]
    pub(crate) fn take_at_a_glance(&self, word: u64, cost: u64) -> Option<u64> {
        if cost.wrapping_sub(1) >= self.burst {
            return None; // nothing, or more than there can ever be
        }
        let cost_ticks = cost * self.backlog.interval_ticks;
        // A word in other ticks is 2^63 or more here, and no backlog reaches that far.
        let base = (word ^ self.backlog.tag).max(self.now_ticks);
        (base <= self.full_ticks() - cost_ticks).then(|| self.backlog.word(base + cost_ticks))
    }

    /// As [`Moment::standing`], for a word that [`BacklogNow::take_at_a_glance`] has just given.
    #[inline]
    pub(crate) fn standing_just_taken(&self, word: u64) -> Standing {
        let (tat, interval_ticks) = (word ^ self.backlog.tag, self.backlog.interval_ticks);
        let room_ticks = self.full_ticks() - tat;
        // Less than the burst: something was just taken.
        let remaining = room_ticks / interval_ticks;
        let next_ticks = (remaining + 1) * interval_ticks - room_ticks;
        Standing { remaining, reset_ns: self.backlog.ns(tat - self.now_ticks), next_ns: self.backlog.ns(next_ticks) }
    }

    /// The backlog's end: never before now, and as full as can be where the word is too far ahead to be this
    /// clock's. `true` if so: that must be written down, or the wait would last as long as the step back.
    fn base(&self, word: u64) -> (u64, bool) {
        let tat = self.backlog.tat(word);
        if tat > self.now_ticks + self.backlog.damage_ticks {
            (self.now_ticks + self.backlog.ceiling_ticks, true)
        } else {
            (tat.max(self.now_ticks), false)
        }
    }
}

impl Moment for BacklogNow<'_> {
    fn take(&self, word: u64, cost: u64) -> (bool, u64) {
        let (base, damaged) = self.base(word);
        if cost <= self.burst {
            let tat = base + cost * self.backlog.interval_ticks;
            if tat <= self.full_ticks() {
                return (true, self.backlog.word(tat));
            }
        }
        (false, if damaged { self.backlog.word(base) } else { word })
    }

    #[inline]
    fn retry(&self, word: u64, cost: u64) -> Retry {
        if cost > self.burst {
            return Retry::Never;
        }
        let tat = self.base(word).0 + cost * self.backlog.interval_ticks;
        Retry::After { ns: self.backlog.ns(tat.saturating_sub(self.full_ticks())) }
    }

    #[inline]
    fn standing(&self, word: u64) -> Standing {
        let (tat, interval_ticks) = (self.base(word).0, self.backlog.interval_ticks);
        let (remaining, next_ticks) = match self.full_ticks().checked_sub(tat) {
            Some(room_ticks) => {
                let units = room_ticks / interval_ticks;
                (units, if units >= self.burst { 0 } else { (units + 1) * interval_ticks - room_ticks })
            }
            None => (0, tat - self.full_ticks() + interval_ticks),
        };
        Standing { remaining, reset_ns: self.backlog.ns(tat - self.now_ticks), next_ns: self.backlog.ns(next_ticks) }
    }

    /// Counts from now when the backlog has drained meanwhile: a long stream that used more than its estimate pays
    /// for it after the fact, not in a past that is already gone.
    #[inline]
    fn debit(&self, word: u64, units: u64) -> u64 {
        let (base, _) = self.base(word);
        let more_ticks = units.saturating_mul(self.backlog.interval_ticks);
        let ceiling = self.now_ticks + self.backlog.ceiling_ticks;
        // Never down: a `now` read a little earlier than the last writer's has a lower ceiling than its TAT.
        self.backlog.word(base.saturating_add(more_ticks).min(ceiling).max(base))
    }

    /// Gives back what a reserve took, as far as the backlog still reaches into the future.
    #[inline]
    fn credit(&self, word: u64, ticket: &Ticket, refund: u64) -> u64 {
        if self.backlog.tat(word) <= self.now_ticks {
            return word; // drained: there is nothing ahead of now to take away
        }
        let refund_ticks = self.backlog.refund_ticks(ticket, refund);
        self.backlog.word(self.base(word).0.saturating_sub(refund_ticks).max(self.now_ticks))
    }
}

/// Whether the backlog is gone, in whichever ticks the word is in.
pub(super) fn at_rest(word: u64, now: MonoNs) -> bool {
    let end_ns = if word & FINE == 0 { word } else { (word ^ FINE).div_ceil(1 << FINE_SHIFT) };
    end_ns <= now.0
}

#[cfg(test)]
mod tests {
    use super::super::{Algorithm, RateParams, RateSpec, credit, debit, step};
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MINUTE: u64 = 60 * SECOND;

    fn rpm(amount: u64, burst: u64) -> RateParams {
        let spec = RateSpec { amount, period_ns: MINUTE, burst, algorithm: Algorithm::Gcra, debt: false };
        RateParams::new(spec).unwrap()
    }

    fn tpm(amount: u64) -> RateParams {
        let spec = RateSpec { amount, period_ns: MINUTE, burst: amount, algorithm: Algorithm::Gcra, debt: true };
        RateParams::new(spec).unwrap()
    }

    fn at(seconds: u64) -> MonoNs {
        MonoNs(seconds * SECOND)
    }

    /// The word after an admitted step.
    fn taken(params: &RateParams, word: u64, now: MonoNs, cost: u64) -> u64 {
        step(params, word, now, cost).new_word.expect("admitted")
    }

    #[test]
    fn three_a_minute_admits_three_then_says_twenty_seconds() {
        let three = rpm(3, 3);
        let mut word = 0;
        for left in [2, 1, 0] {
            let step = step(&three, word, at(0), 1);
            assert!(step.admitted);
            assert_eq!(step.standing.remaining, left);
            assert_eq!(step.standing.reset_ns, (3 - left) * 20 * SECOND);
            assert_eq!(step.standing.next_ns, 20 * SECOND);
            word = step.new_word.unwrap();
        }
        let fourth = step(&three, word, at(0), 1);
        assert_eq!(fourth.retry, Retry::After { ns: 20 * SECOND });
        assert_eq!(fourth.new_word, None);
        assert_eq!(step(&three, word, at(5), 1).retry, Retry::After { ns: 15 * SECOND });
        assert!(step(&three, word, at(20), 1).admitted);
    }

    #[test]
    fn next_unit_is_what_is_missing_of_an_interval() {
        let three = rpm(3, 3);
        let word = taken(&three, 0, at(0), 1);
        assert_eq!(
            step(&three, word, at(5), 0).standing,
            Standing { remaining: 2, reset_ns: 15 * SECOND, next_ns: 15 * SECOND }
        );
        assert_eq!(step(&three, word, at(20), 0).standing, Standing { remaining: 3, reset_ns: 0, next_ns: 0 });
    }

    #[test]
    fn a_cost_over_the_burst_is_never_and_a_peek_is_always() {
        let three = rpm(3, 3);
        assert_eq!(step(&three, 0, at(0), 4).retry, Retry::Never);
        assert_eq!(step(&three, 0, at(0), u64::MAX).retry, Retry::Never);
        let full = taken(&three, 0, at(0), 3);
        let peek = step(&three, full, at(0), 0);
        assert!(peek.admitted);
        assert_eq!((peek.new_word, peek.standing.remaining), (None, 0));
    }

    #[test]
    fn seven_a_minute_is_counted_in_sixty_fourths_of_a_nanosecond() {
        // 60 s / 7 = 8.571428571428... s; in 1/64 ns, up: 548,571,428,572 ticks = 8.5714285714375 s.
        let seven = rpm(7, 7);
        let word = taken(&seven, 0, at(0), 7);
        assert_eq!(word, FINE | (7 * 548_571_428_572));
        assert_eq!(step(&seven, word, at(0), 1).retry, Retry::After { ns: 8_571_428_572 });
        assert!(step(&seven, word, MonoNs(8_571_428_572), 1).admitted);
        assert!(!step(&seven, word, MonoNs(8_571_428_571), 1).admitted);
    }

    #[test]
    fn a_reload_into_other_ticks_keeps_the_backlog() {
        // 60 a minute counts in ns, 7 a minute in 1/64 ns: half a minute of backlog is half a minute in both.
        let (sixty, seven) = (rpm(60, 60), rpm(7, 7));
        let half = taken(&sixty, 0, at(100), 30);
        let peek = step(&seven, half, at(100), 0).standing;
        assert_eq!((peek.remaining, peek.reset_ns), (3, 30 * SECOND));
        let more = taken(&seven, half, at(100), 1);
        let peek = step(&sixty, more, at(100), 0).standing;
        assert_eq!((peek.remaining, peek.reset_ns), (21, 30 * SECOND + 8_571_428_572));
        assert!(!at_rest(more, at(138)));
        assert!(at_rest(more, at(139)));
    }

    #[test]
    fn settlement_credits_from_the_end_and_debits_from_now() {
        // 20,000 a minute: 3 ms a token. The estimate was 16,391, the truth 100.
        let twenty_k = tpm(20_000);
        let reserved = taken(&twenty_k, 0, at(0), 16_391);
        let ticket = twenty_k.ticket(16_391);
        let settled = credit(&twenty_k, reserved, at(2), &ticket, 16_291).unwrap();
        assert_eq!(settled, 2 * SECOND, "100 tokens drain in 0.3 s, so nothing is owed after two");
        // The reserve of 100 has drained by 90 s; 5,000 more count from then.
        let small = taken(&twenty_k, 0, at(0), 100);
        let over = debit(&twenty_k, small, at(90), 5_000).unwrap();
        assert_eq!(over, 105 * SECOND);
    }

    #[test]
    fn a_debt_stops_at_eleven_bursts_ahead() {
        let twenty_k = tpm(20_000);
        let deep = debit(&twenty_k, 0, at(0), u64::MAX).unwrap();
        assert_eq!(deep, 11 * MINUTE);
        assert_eq!(debit(&twenty_k, deep, at(0), 1), None);
        // Ten minutes of debt, then a token.
        let retry = step(&twenty_k, deep, at(0), 1).retry;
        assert_eq!(retry, Retry::After { ns: 10 * MINUTE + 3_000_000 });
        // An rpm cell holds none: what a shared store admitted fills it, no more.
        assert_eq!(debit(&rpm(60, 60), 0, at(0), 1_000), Some(MINUTE));
    }

    #[test]
    fn a_reserve_is_credited_in_the_ticks_it_was_taken_in() {
        // Taken at 3 ms a token, settled after a reload to 6 ms a token: 10,000 unused tokens return 30 s, not 60.
        let (before, after) = (tpm(20_000), tpm(10_000));
        let word = taken(&before, 0, at(0), 20_000);
        let ticket = before.ticket(20_000);
        assert_eq!(credit(&after, word, at(0), &ticket, 10_000), Some(30 * SECOND));
        assert_eq!(credit(&after, word, at(0), &ticket, u64::MAX), Some(0), "never more than was reserved");
        // And across the two kinds of ticks: 7,000,000 a minute is 8,571.43 ns a token.
        let fine = tpm(7_000_000);
        let word = taken(&fine, 0, at(0), 7_000_000);
        let ticket = fine.ticket(7_000_000);
        let back = credit(&before, word, at(0), &ticket, 3_500_000).unwrap();
        assert!((30 * SECOND..30 * SECOND + 100_000).contains(&back), "{back}");
    }

    #[test]
    fn an_hour_back_costs_one_interval_and_admits_nothing_extra() {
        let ten = rpm(600, 10); // one per 100 ms, tau = 1 s
        let full = taken(&ten, 0, at(3_600), 10);
        let refused = step(&ten, full, at(10), 1);
        assert_eq!(refused.retry, Retry::After { ns: 100_000_000 });
        assert_eq!(refused.standing.reset_ns, SECOND);
        let repaired = refused.new_word.expect("the step back is written down");
        assert!(!step(&ten, repaired, at(10), 1).admitted);
        assert!(step(&ten, repaired, MonoNs(10_100_000_000), 1).admitted);
    }

    #[test]
    fn a_now_read_half_a_second_ago_is_no_step_back() {
        // burst 1 of 1,000,000 a minute: tau is 60 us, far less than a descheduled thread is late.
        let fast = rpm(1_000_000, 1);
        let full = taken(&fast, 0, MonoNs(10 * SECOND), 1);
        let late = step(&fast, full, MonoNs(10 * SECOND - SECOND / 2), 1);
        assert!(!late.admitted);
        assert_eq!(late.new_word, None, "or the present moment's unit could be taken twice");
    }

    #[test]
    fn after_146_years_the_clock_stands_still_and_nothing_wraps() {
        let three = rpm(3, 3);
        let word = taken(&three, 0, MonoNs(u64::MAX), 3);
        assert_eq!(word, NOW_TICKS_MAX + MINUTE);
        assert!(!step(&three, word, MonoNs(u64::MAX), 1).admitted);
    }
}
