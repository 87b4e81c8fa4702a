//! The two window algorithms against references in whole numbers, for any rate, schedule, phase and step of the
//! clock.

use proptest::prelude::*;
use shards::cell::Cell;
use shards::rate::{Algorithm, Clock0, RateParams, RateSpec, Retry};
use shards::units::MonoNs;
use std::collections::HashMap;

const SECOND: u64 = 1_000_000_000;

#[derive(Debug, PartialEq)]
struct Answer {
    admitted: bool,
    remaining: u64,
    retry: Retry,
    reset_ns: u64,
}

/// Both references: counts by window, and the newest window anything was counted in.
struct Exact {
    amount: i128,
    period: i128,
    counts: HashMap<i128, i128>,
    newest: i128,
}

impl Exact {
    fn new(amount: u64, period_ns: u64) -> Exact {
        Exact {
            amount: amount.into(),
            period: period_ns.into(),
            counts: HashMap::new(),
            newest: i128::from(i64::MIN) * 2,
        }
    }

    fn count(&self, window: i128) -> i128 {
        self.counts.get(&window).copied().unwrap_or(0)
    }

    /// The window open at `wall_ns`: the newest one counted in, if the clock has stepped back behind it.
    fn open(&self, wall_ns: i128) -> i128 {
        wall_ns.div_euclid(self.period).max(self.newest)
    }

    fn count_in(&mut self, window: i128, cost: i128) {
        if cost > 0 {
            *self.counts.entry(window).or_default() += cost;
            self.newest = window;
        }
    }

    fn fixed(&mut self, wall_ns: i128, cost: u64) -> Answer {
        let cost = i128::from(cost);
        let window = self.open(wall_ns);
        let closes_in = (window + 1) * self.period - wall_ns;
        let admitted = cost == 0 || self.count(window) + cost <= self.amount;
        if admitted {
            self.count_in(window, cost);
        }
        let count = self.count(window);
        Answer {
            admitted,
            remaining: u64::try_from(self.amount - count).unwrap(),
            retry: self.retry(admitted, cost, closes_in),
            reset_ns: if count > 0 { u64::try_from(closes_in).unwrap() } else { 0 },
        }
    }

    /// previous * (P - e) + current * P, to compare with units * P.
    fn weight(&self, window: i128, wall_ns: i128) -> i128 {
        let elapsed = (wall_ns - window * self.period).clamp(0, self.period);
        self.count(window - 1) * (self.period - elapsed) + self.count(window) * self.period
    }

    fn sliding(&mut self, wall_ns: i128, cost: u64) -> Answer {
        let cost = i128::from(cost);
        let window = self.open(wall_ns);
        let fits = |exact: &Exact, wall_ns: i128, cost: i128| {
            let window = window.max(wall_ns.div_euclid(exact.period));
            exact.weight(window, wall_ns) + cost * exact.period <= exact.amount * exact.period
        };
        let admitted = cost == 0 || fits(self, wall_ns, cost);
        let mut wait = 0;
        if !admitted && cost <= self.amount {
            // The first instant at which it fits, by bisection: the weight only falls while nobody comes.
            let (mut no, mut yes) = (0, (window + 2) * self.period - wall_ns);
            while yes - no > 1 {
                let middle = (no + yes) / 2;
                if fits(self, wall_ns + middle, cost) { yes = middle } else { no = middle }
            }
            wait = yes;
        }
        if admitted {
            self.count_in(window, cost);
        }
        let free = (self.amount * self.period - self.weight(window, wall_ns)).div_euclid(self.period);
        let closes_in = (window + 1) * self.period - wall_ns;
        let reset = match (self.count(window), self.count(window - 1)) {
            (0, 0) => 0,
            (0, _) => closes_in,
            _ => closes_in + self.period,
        };
        Answer {
            admitted,
            remaining: u64::try_from(free.max(0)).unwrap(),
            retry: self.retry(admitted, cost, wait),
            reset_ns: u64::try_from(reset).unwrap(),
        }
    }

    fn retry(&self, admitted: bool, cost: i128, wait: i128) -> Retry {
        match (admitted, cost > self.amount) {
            (true, _) => Retry::Now,
            (false, true) => Retry::Never,
            (false, false) => Retry::After { ns: u64::try_from(wait).unwrap() },
        }
    }
}

fn params(algorithm: Algorithm, amount: u64, period_ns: u64, clock0: Clock0) -> RateParams {
    RateParams::new(RateSpec { amount, period_ns, burst: 1, algorithm, debt: false }).unwrap().anchored(clock0)
}

fn ours(params: &RateParams, cell: &Cell, now: u64, cost: u64) -> Answer {
    let (admitted, retry, standing) = match cell.acquire(params, MonoNs(now), cost) {
        Ok(standing) => (true, Retry::Now, standing),
        Err(denied) => (false, denied.retry, denied.standing),
    };
    Answer { admitted, remaining: standing.remaining, retry, reset_ns: standing.reset_ns }
}

fn periods() -> impl Strategy<Value = u64> {
    prop_oneof![
        prop::sample::select(vec![SECOND, 60 * SECOND, 3_600 * SECOND, 30 * 86_400 * SECOND]),
        1_000u64..=90 * SECOND,
    ]
}

#[derive(Clone, Debug)]
struct Move {
    /// Thousandths of a period, forward or back.
    by: i64,
    cost: u64,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let by = prop_oneof![4 => 0i64..700, 2 => Just(0i64), 1 => 700i64..3_000, 1 => -2_500i64..0];
    let step = (by, any::<u64>()).prop_map(|(by, cost)| Move { by, cost });
    prop::collection::vec(step, 1..80)
}

fn play(amount: u64, period_ns: u64, moves: &[Move]) -> Vec<(u64, u64)> {
    let mut now = i128::from(period_ns) * 200 + 12_345;
    moves
        .iter()
        .map(|step| {
            now += i128::from(period_ns) * i128::from(step.by) / 1_000;
            let cost = match step.cost % 7 {
                0 => 0,
                1..=3 => 1 + step.cost / 7 % (amount / 5 + 1),
                4 | 5 => 1 + step.cost / 7 % amount,
                _ => 1 + step.cost / 7 % (amount + 2),
            };
            (u64::try_from(now).unwrap(), cost)
        })
        .collect()
}

proptest! {
    #[test]
    fn a_fixed_window_answers_as_counted_by_hand(
        amount in prop_oneof![1u64..40, 1u64..1 << 36], period_ns in periods(), offset in any::<i64>(), moves in moves(),
    ) {
        let clock0 = Clock0 { wall_offset_ns: offset };
        let params = params(Algorithm::FixedWindow, amount, period_ns, clock0);
        let (cell, mut exact) = (Cell::new(&params), Exact::new(amount, period_ns));
        for (now, cost) in play(amount, period_ns, &moves) {
            let wall = i128::from(now) + i128::from(offset);
            prop_assert_eq!(ours(&params, &cell, now, cost), exact.fixed(wall, cost), "at {} cost {}", now, cost);
        }
    }

    #[test]
    fn a_sliding_window_compares_the_weight_exactly(
        amount in prop_oneof![1u64..40, 1u64..1 << 20], period_ns in periods(), offset in any::<i64>(), moves in moves(),
    ) {
        let clock0 = Clock0 { wall_offset_ns: offset };
        let params = params(Algorithm::SlidingWindow, amount, period_ns, clock0);
        let (cell, mut exact) = (Cell::new(&params), Exact::new(amount, period_ns));
        for (now, cost) in play(amount, period_ns, &moves) {
            let wall = i128::from(now) + i128::from(offset);
            prop_assert_eq!(ours(&params, &cell, now, cost), exact.sliding(wall, cost), "at {} cost {}", now, cost);
        }
    }

    /// What `next_ns` promises: one unit more then, and not a nanosecond before.
    #[test]
    fn one_unit_more_is_there_when_it_was_promised(
        sliding in any::<bool>(), amount in 1u64..500, period_ns in periods(), moves in moves(),
    ) {
        let algorithm = if sliding { Algorithm::SlidingWindow } else { Algorithm::FixedWindow };
        let params = params(algorithm, amount, period_ns, Clock0::default());
        let cell = Cell::new(&params);
        for (now, cost) in play(amount, period_ns, &moves) {
            let now = MonoNs(now);
            let _ = cell.acquire(&params, now, cost);
            let standing = cell.peek(&params, now);
            if standing.next_ns > 0 {
                let then = now.plus_ns(standing.next_ns);
                prop_assert!(cell.peek(&params, then).remaining > standing.remaining);
                prop_assert!(cell.peek(&params, MonoNs(then.0 - 1)).remaining <= standing.remaining);
            } else {
                prop_assert_eq!(standing.remaining, amount);
            }
        }
    }

    /// A cell at rest may be dropped: a new one answers the same, then and later.
    #[test]
    fn a_window_at_rest_answers_as_a_new_one(
        sliding in any::<bool>(), amount in 1u64..500, period_ns in periods(), moves in moves(), wait in 0u64..4_000,
    ) {
        let algorithm = if sliding { Algorithm::SlidingWindow } else { Algorithm::FixedWindow };
        let params = params(algorithm, amount, period_ns, Clock0::default());
        let cell = Cell::new(&params);
        let plays = play(amount, period_ns, &moves);
        for &(now, cost) in &plays {
            let _ = cell.acquire(&params, MonoNs(now), cost);
        }
        let later = MonoNs(plays.last().unwrap().0 + period_ns / 1_000 * wait);
        let reset_ns = cell.peek(&params, later).reset_ns;
        prop_assert_eq!(cell.at_rest(later), reset_ns == 0);
        prop_assert!(cell.at_rest(later.plus_ns(reset_ns)));
        let fresh = Cell::new(&params);
        if cell.at_rest(later) {
            prop_assert_eq!(cell.acquire(&params, later, amount), fresh.acquire(&params, later, amount));
        }
    }
}

#[test]
fn two_replicas_that_booted_apart_open_the_same_window() {
    // Both read 12:00:59.9 and 12:01:00 on the wall; their monotonic clocks differ by 17 s.
    let noon = 1_764_504_000 * SECOND;
    for boot in [0, 17 * SECOND] {
        let clock0 = Clock0 { wall_offset_ns: i64::try_from(noon + boot).unwrap() };
        let one = params(Algorithm::FixedWindow, 1, 60 * SECOND, clock0);
        let cell = Cell::new(&one);
        let before = MonoNs(59_900_000_000 - boot);
        assert!(cell.acquire(&one, before, 1).is_ok());
        assert!(cell.acquire(&one, before, 1).is_err());
        assert!(cell.acquire(&one, MonoNs(60 * SECOND - boot), 1).is_ok());
    }
}

#[test]
fn a_changed_amount_keeps_what_was_counted() {
    let ten = params(Algorithm::FixedWindow, 10, 60 * SECOND, Clock0::default());
    let four = params(Algorithm::FixedWindow, 4, 60 * SECOND, Clock0::default());
    let cell = Cell::new(&ten);
    cell.acquire(&ten, MonoNs(0), 6).unwrap();
    assert_eq!(cell.peek(&four, MonoNs(0)).remaining, 0);
    assert!(cell.acquire(&four, MonoNs(0), 1).is_err());
    assert_eq!(cell.peek(&ten, MonoNs(0)).remaining, 4);
}
