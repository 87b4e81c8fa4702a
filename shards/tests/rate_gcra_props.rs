//! gcra and token_bucket against exact references, for any rate, schedule and cost.
//!
//! The reference counts in 1/amount ns, where an emission interval is the period itself and nothing is rounded.

use proptest::prelude::*;
use shards::cell::Cell;
use shards::rate::{self, Algorithm, RateParams, RateSpec, Retry, share_of};
use shards::units::MonoNs;

const SECOND: u64 = 1_000_000_000;

/// The definition in whole numbers: all instants times `amount`, so that T = period exactly.
struct Exact {
    spec: RateSpec,
    tat: u128,
}

#[derive(Debug, PartialEq)]
struct Answer {
    admitted: bool,
    remaining: u64,
    retry: Retry,
    reset_ns: u64,
}

impl Exact {
    fn scaled(&self, now: u64) -> u128 {
        u128::from(now) * u128::from(self.spec.amount)
    }

    fn ns(&self, scaled: u128) -> u64 {
        u64::try_from(scaled.div_ceil(u128::from(self.spec.amount))).unwrap()
    }

    fn would_admit(&self, now: u64, cost: u64) -> bool {
        let now = self.scaled(now);
        let (cost, burst, period) = (u128::from(cost), u128::from(self.spec.burst), u128::from(self.spec.period_ns));
        cost == 0 || self.tat.max(now) + cost * period <= now + burst * period
    }

    fn take(&mut self, now: u64, cost: u64) {
        self.tat = self.tat.max(self.scaled(now)) + u128::from(cost) * u128::from(self.spec.period_ns);
    }

    fn acquire(&mut self, now: u64, cost: u64) -> Answer {
        let period = u128::from(self.spec.period_ns);
        let full = self.scaled(now) + u128::from(self.spec.burst) * period;
        let admitted = self.would_admit(now, cost);
        let retry = match (admitted, cost > self.spec.burst) {
            (true, _) => Retry::Now,
            (false, true) => Retry::Never,
            (false, false) => {
                Retry::After { ns: self.ns(self.tat.max(self.scaled(now)) + u128::from(cost) * period - full) }
            }
        };
        if admitted {
            self.take(now, cost);
        }
        let tat = self.tat.max(self.scaled(now));
        let remaining = u64::try_from(full.saturating_sub(tat) / period).unwrap();
        Answer { admitted, remaining, retry, reset_ns: self.ns(tat - self.scaled(now)) }
    }
}

fn ours(params: &RateParams, cell: &Cell, now: u64, cost: u64) -> Answer {
    match cell.acquire(params, MonoNs(now), cost) {
        Ok(standing) => {
            Answer { admitted: true, remaining: standing.remaining, retry: Retry::Now, reset_ns: standing.reset_ns }
        }
        Err(denied) => Answer {
            admitted: false,
            remaining: denied.standing.remaining,
            retry: denied.retry,
            reset_ns: denied.standing.reset_ns,
        },
    }
}

/// The interval is a whole number of the ticks it is counted in.
fn exact(spec: &RateSpec) -> bool {
    u128::from(spec.period_ns) * 64 % u128::from(spec.amount) == 0
}

/// Rates whose interval is a whole number of ticks: products of the primes in a period.
fn whole_specs() -> impl Strategy<Value = RateSpec> {
    (0u32..=11, 0u32..=1, 0u32..=9, specs()).prop_filter_map("whole", |(twos, threes, fives, spec)| {
        let amount = 2u64.pow(twos) * 3u64.pow(threes) * 5u64.pow(fives);
        let burst = (u128::from(spec.burst) * u128::from(amount) / u128::from(spec.amount)).max(1);
        let spec = RateSpec { amount, burst: u64::try_from(burst).ok()?, ..spec };
        (exact(&spec) && RateParams::new(spec).is_ok()).then_some(spec)
    })
}

fn specs() -> impl Strategy<Value = RateSpec> {
    let amounts = prop_oneof![
        1u64..=20,
        prop::sample::select(vec![60, 97, 100, 600, 1_000, 20_000, 999_983, 1_000_000, 30_000_000, 7_000_000_000]),
        1u64..=1_000_000,
    ];
    let periods = prop::sample::select(vec![SECOND, 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND]);
    let algorithms = prop::sample::select(vec![Algorithm::Gcra, Algorithm::TokenBucket]);
    (amounts, periods, 1u64..=4, 1u64..=3, algorithms).prop_filter_map(
        "fits",
        |(amount, period_ns, over, of, algorithm)| {
            let burst = (amount * over / of).max(1);
            let spec = RateSpec { amount: amount.min(period_ns), period_ns, burst, algorithm, debt: false };
            RateParams::new(spec).is_ok().then_some(spec)
        },
    )
}

/// Steps of time, as parts of the period, of one interval, or none; and costs from a peek to more than the burst.
fn schedule() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0u64..=1_000_000, 0u64..=1_000_000), 1..80)
}

/// `millionths` of a span.
fn part(span_ns: u64, millionths: u64) -> u64 {
    u64::try_from(u128::from(span_ns) * u128::from(millionths) / 1_000_000).unwrap()
}

fn play(spec: &RateSpec, raw: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut now = 10 * SECOND;
    raw.iter()
        .map(|&(gap, cost)| {
            let interval_ns = spec.period_ns / spec.amount + 1;
            now += match gap % 5 {
                0 | 1 => 0,
                2 => part(2 * interval_ns, gap),
                3 => part(interval_ns.saturating_mul(spec.burst) / 4, gap),
                _ => part(spec.period_ns * 3 / 2, gap),
            };
            let cost = match cost % 6 {
                0 => 0,
                1 | 2 => 1,
                3 => 1 + cost % spec.burst,
                4 => spec.burst,
                _ => 1 + cost % (spec.burst / 7 + 1),
            };
            (now, if cost == spec.burst && gap % 11 == 0 { spec.burst + 1 } else { cost })
        })
        .collect()
}

proptest! {
    #[test]
    fn a_rate_with_a_whole_interval_answers_as_the_exact_one(spec in whole_specs(), raw in schedule()) {
        let params = RateParams::new(spec).unwrap();
        let (cell, mut exact) = (Cell::new(&params), Exact { spec, tat: 0 });
        for (now, cost) in play(&spec, &raw) {
            prop_assert_eq!(ours(&params, &cell, now, cost), exact.acquire(now, cost), "at {} cost {}", now, cost);
        }
    }

    /// A bucket counted in tokens, each `period` parts: the other end of the same backlog.
    #[test]
    fn a_token_bucket_answers_as_tokens_counted_by_hand(spec in whole_specs(), raw in schedule()) {
        let spec = RateSpec { algorithm: Algorithm::TokenBucket, ..spec };
        let params = RateParams::new(spec).unwrap();
        let cell = Cell::new(&params);
        let (amount, token) = (u128::from(spec.amount), u128::from(spec.period_ns));
        let whole = u128::from(spec.burst) * token;
        let (mut parts, mut last) = (whole, 0);
        for (now, cost) in play(&spec, &raw) {
            parts = whole.min(parts + u128::from(now - last) * amount);
            last = now;
            let wanted = u128::from(cost) * token;
            let admitted = wanted <= parts;
            let retry = match (admitted, cost > spec.burst) {
                (true, _) => Retry::Now,
                (false, true) => Retry::Never,
                (false, false) => Retry::After { ns: u64::try_from((wanted - parts).div_ceil(amount)).unwrap() },
            };
            if admitted {
                parts -= wanted;
            }
            let remaining = u64::try_from(parts / token).unwrap();
            let reset_ns = u64::try_from((whole - parts).div_ceil(amount)).unwrap();
            let expected = Answer { admitted, remaining, retry, reset_ns };
            prop_assert_eq!(ours(&params, &cell, now, cost), expected, "at {} cost {}", now, cost);
        }
    }

    /// Rounding T up is late by less than 1/T of the time that passed, and nothing is admitted early.
    #[test]
    fn a_rounded_interval_is_never_early_and_hardly_late(spec in specs(), raw in schedule()) {
        let params = RateParams::new(spec).unwrap();
        let (cell, mut exact) = (Cell::new(&params), Exact { spec, tat: 0 });
        let start = 10 * SECOND;
        let fine = u128::from(spec.period_ns) * 64;
        let excess = fine.div_ceil(u128::from(spec.amount)) * u128::from(spec.amount) - fine;
        for (now, cost) in play(&spec, &raw) {
            let would = exact.would_admit(now, cost);
            let answer = ours(&params, &cell, now, cost);
            if answer.admitted {
                prop_assert!(would, "early at {now} cost {cost}");
                exact.take(now, cost);
            } else if would {
                let Retry::After { ns } = answer.retry else { panic!("never, for a cost that fits") };
                let owed = (u128::from(now - start) * excess).div_ceil(fine) + 1;
                prop_assert!(u128::from(ns) <= owed, "{ns} ns late at {now}, rounding owes {owed}");
            }
        }
    }

    #[test]
    fn no_window_admits_more_than_the_burst_and_what_it_earned(spec in specs(), raw in schedule()) {
        let params = RateParams::new(spec).unwrap();
        let cell = Cell::new(&params);
        let admitted: Vec<(u64, u64)> =
            play(&spec, &raw).into_iter().filter(|&(now, cost)| ours(&params, &cell, now, cost).admitted).collect();
        for (i, &(from, _)) in admitted.iter().enumerate() {
            let mut units = 0;
            for &(to, cost) in &admitted[i..] {
                units += u128::from(cost);
                let earned = u128::from(to - from) * u128::from(spec.amount);
                prop_assert!(
                    units * u128::from(spec.period_ns) <= u128::from(spec.burst) * u128::from(spec.period_ns) + earned
                );
            }
        }
    }

    #[test]
    fn splitting_a_burst_never_changes_an_answer(spec in specs(), raw in schedule(), parts in prop::collection::vec(1u64..50, 1..12)) {
        let params = RateParams::new(spec).unwrap();
        let (whole, split) = (Cell::new(&params), Cell::new(&params));
        for (now, cost) in play(&spec, &raw) {
            ours(&params, &whole, now, cost);
            ours(&params, &split, now, cost);
        }
        let now = MonoNs(play(&spec, &raw).last().unwrap().0 + SECOND / 7);
        let total: u64 = parts.iter().sum();
        let at_once = whole.acquire(&params, now, total);
        let piecewise: Result<Vec<_>, _> = parts.iter().map(|part| split.acquire(&params, now, *part)).collect();
        prop_assert_eq!(at_once.is_ok(), piecewise.is_ok());
        if let (Ok(at_once), Ok(piecewise)) = (at_once, piecewise) {
            prop_assert_eq!(Some(&at_once), piecewise.last());
        }
    }

    #[test]
    fn a_whole_burst_is_there_after_any_idle_long_enough_and_no_more(spec in specs(), raw in schedule(), idle in 0u64..1 << 40) {
        let params = RateParams::new(spec).unwrap();
        let cell = Cell::new(&params);
        let plays = play(&spec, &raw);
        for &(now, cost) in &plays {
            ours(&params, &cell, now, cost);
        }
        let now = MonoNs(plays.last().unwrap().0);
        let later = now.plus_ns(cell.peek(&params, now).reset_ns).plus_ns(idle);
        prop_assert!(cell.at_rest(later));
        prop_assert_eq!(cell.peek(&params, later), Cell::new(&params).peek(&params, later));
        prop_assert!(cell.acquire(&params, later, spec.burst).is_ok());
        prop_assert!(cell.acquire(&params, later, 1).is_err());
    }

    /// Whatever steps the clock makes: between any two steps, the units admitted are within the burst and what
    /// the clock's forward moves earned. A step back is worth nothing.
    #[test]
    fn a_clock_that_steps_back_admits_nothing_extra(spec in specs(), raw in schedule(), backs in prop::collection::vec(0u64..3, 80)) {
        let params = RateParams::new(spec).unwrap();
        let cell = Cell::new(&params);
        let tau = params.period_ns().saturating_mul(spec.burst) / spec.amount;
        let (mut now, mut last) = (100 * 86_400 * SECOND, None);
        let mut forward = 0u128;
        let mut admitted = Vec::new();
        for ((at, cost), back) in play(&spec, &raw).into_iter().zip(backs) {
            let gap = last.map_or(0, |last| at - last);
            last = Some(at);
            if back == 0 {
                now -= (gap + tau / 3).min(now / 2);
            } else {
                now += gap;
                forward += u128::from(gap);
            }
            if ours(&params, &cell, now, cost).admitted {
                admitted.push((forward, cost));
            }
        }
        for (i, &(from, _)) in admitted.iter().enumerate() {
            let mut units = 0;
            for &(to, cost) in &admitted[i..] {
                units += u128::from(cost);
                let period = u128::from(spec.period_ns);
                prop_assert!(units * period <= u128::from(spec.burst) * period + (to - from) * u128::from(spec.amount));
            }
        }
    }

    /// Asked at the earlier time, a cell is ready for one unit after one tau, or after a second and an interval
    /// where tau is shorter.
    #[test]
    fn a_clock_that_steps_back_costs_at_most_one_tau(spec in specs(), raw in schedule(), back in 0u64..1 << 50) {
        let params = RateParams::new(spec).unwrap();
        let cell = Cell::new(&params);
        let plays = play(&spec, &raw);
        for &(now, cost) in &plays {
            ours(&params, &cell, now + (1 << 50), cost);
        }
        let now = plays.last().unwrap().0 + (1 << 50) - back;
        ours(&params, &cell, now, 1);
        // The interval is rounded up by less than a tick, tau by less than a tick a unit.
        let interval = spec.period_ns.div_ceil(spec.amount);
        let waited = now + (interval * spec.burst).max(interval + SECOND);
        prop_assert!(cell.acquire(&params, MonoNs(waited), 1).is_ok());
    }

    /// Threads step with a `now` they read up to a second ago; together they get what one clock would give.
    #[test]
    fn late_nows_admit_nothing_extra(spec in specs(), raw in schedule(), ages in prop::collection::vec(0u64..=SECOND, 80)) {
        let params = RateParams::new(spec).unwrap();
        let cell = Cell::new(&params);
        let mut units = 0;
        let plays = play(&spec, &raw);
        for (&(now, cost), age) in plays.iter().zip(ages) {
            if ours(&params, &cell, now - age, cost).admitted {
                units += u128::from(cost);
            }
        }
        // From the oldest `now` anybody may have come with to the last.
        let elapsed = u128::from(plays.last().unwrap().0 - plays[0].0 + SECOND);
        let period = u128::from(spec.period_ns);
        prop_assert!(units * period <= u128::from(spec.burst) * period + elapsed * u128::from(spec.amount));
    }

    #[test]
    fn a_share_is_the_rate_it_would_be_if_configured_so(spec in specs(), n in 1u32..200, debt in any::<bool>()) {
        let spec = RateSpec { debt: debt && spec.algorithm == Algorithm::Gcra, ..spec };
        let share = RateParams::new(spec).unwrap().effective(n);
        let mut burst = share_of(spec.burst, n);
        if spec.debt {
            burst = burst.max(16_384.min(spec.burst));
        }
        prop_assert_eq!(share, RateParams::new(RateSpec { amount: spec.amount.div_ceil(u64::from(n)), burst, ..spec }).unwrap());
        prop_assert!(share.amount() * u64::from(n) >= spec.amount, "the fleet may use the whole limit");
        prop_assert!(share.amount() * u64::from(n) < spec.amount + u64::from(n), "over by less than N");
    }

    /// Words, clocks and costs nobody should ever see: answers stay within the rate, and nothing panics or wraps.
    #[test]
    fn no_word_no_clock_and_no_cost_breaks_a_step(
        amount in prop_oneof![1u64..100, any::<u64>()],
        period_ns in prop_oneof![1u64..100, any::<u64>()],
        burst in prop_oneof![1u64..100, any::<u64>()],
        algorithm in prop::sample::select(vec![Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow]),
        debt in any::<bool>(),
        word in any::<u64>(),
        now in prop_oneof![0u64..1 << 40, any::<u64>(), u64::MAX - 5..=u64::MAX],
        cost in prop_oneof![0u64..100, any::<u64>()],
        n in any::<u32>(),
    ) {
        let mut spec = RateSpec { amount, period_ns, burst, algorithm, debt };
        // What the error names is taken until the rate compiles: every maximum fits.
        let params = loop {
            match RateParams::new(spec) {
                Ok(params) => break params,
                Err(rate::RateSpecError::PeriodTooLong { max_ns, .. }) => spec.period_ns = max_ns,
                Err(rate::RateSpecError::AmountTooLarge { max, .. }) => spec.amount = max,
                Err(rate::RateSpecError::BurstTooLarge { max, .. }) => spec.burst = max,
                Err(rate::RateSpecError::DebtNeedsGcra { .. }) => spec.debt = false,
                Err(other) => panic!("{other}"),
            }
        };
        for params in [params, params.effective(n)] {
            let step = rate::step(&params, word, MonoNs(now), cost);
            prop_assert!(step.standing.remaining <= params.burst());
            prop_assert!(cost != 0 || (step.admitted && step.new_word.is_none()));
            prop_assert!(step.admitted || step.retry != Retry::Now);
            prop_assert_eq!(step.retry == Retry::Never, cost > params.burst());
            if let (true, Some(new)) = (step.admitted, step.new_word) {
                prop_assert_eq!(rate::step(&params, new, MonoNs(now), 0).standing, step.standing);
            }
            let more = rate::debit(&params, word, MonoNs(now), cost).unwrap_or(word);
            let (after, before) = (rate::step(&params, more, MonoNs(now), 0), rate::step(&params, word, MonoNs(now), 0));
            prop_assert!(after.standing.remaining <= before.standing.remaining, "a debit takes");
        }
    }
}

#[test]
fn thirty_one_idle_years_give_one_burst() {
    let spec = RateSpec { amount: 5, period_ns: SECOND, burst: 5, algorithm: Algorithm::Gcra, debt: false };
    let params = RateParams::new(spec).unwrap();
    let cell = Cell::new(&params);
    cell.acquire(&params, MonoNs(0), 5).unwrap();
    let later = MonoNs(1_000_000_000 * SECOND);
    assert!(cell.acquire(&params, later, 5).is_ok());
    assert!(cell.acquire(&params, later, 1).is_err());
}
