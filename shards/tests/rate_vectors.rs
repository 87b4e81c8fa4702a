//! The published rate vectors, replayed through the real cell: 60 sequences with answers derived from exact
//! rationals, most of them other limiters' own test cases or bugs.
//!
//! Equality is exact wherever the rate's interval is a whole number of ticks. Elsewhere the interval was rounded
//! up, once, so this limiter may be late by that fraction of the elapsed time and never early; `Lateness` is that
//! fraction, computed from the definition and not read from the code under test.

use serde_json::Value;
use shards::cell::Cell;
use shards::rate::{Algorithm, RateParams, RateSpec, RateSpecError, Retry, Standing, Ticket};
use shards::units::MonoNs;
use std::collections::VecDeque;

/// Vectors that describe other designs: an exact log, settlement on windows and on a bucket that caps credit.
const NOT_OURS: [&str; 3] = ["log-", "fixed-settle", "token-debt"];
/// Two steps where the product answers differently on purpose: (vector, step, retry ns, reset ns, why).
const ON_PURPOSE: [(&str, usize, u64, u64, &str); 2] = [
    (
        "gcra-clock-back-unclamped",
        1,
        100_000_000,
        1_000_000_000,
        "we clamp: an hour's step back costs one interval here, one tau at most, where the plain algorithm waits an hour",
    ),
    (
        "token-clock-back",
        1,
        1_100_000_000,
        2_000_000_000,
        "the same refusal and wait; the bucket is full again 2 s from the earlier clock, not 1 s",
    ),
];
/// A reload that shrinks a burst: an rpm cell is clamped to its new burst, a cell with debts keeps the backlog.
const KEEPS_BACKLOG: &str = "gcra-burst-down-live";

/// How much slower the rounded-up interval is than the exact one: (T*A - P*F) / (P*F), both in ticks.
#[derive(Clone, Copy)]
struct Lateness {
    excess: u128,
    of: u128,
}

impl Lateness {
    fn new(spec: &RateSpec) -> Lateness {
        let (amount, period) = (u128::from(spec.amount), u128::from(spec.period_ns));
        let window = matches!(spec.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow);
        if window || period % amount == 0 {
            return Lateness { excess: 0, of: 1 };
        }
        let of = period * 64;
        Lateness { excess: of.div_ceil(amount) * amount - of, of }
    }

    fn exact(&self) -> bool {
        self.excess == 0
    }

    fn of_ns(&self, ns: u64) -> u64 {
        if self.exact() { 0 } else { u64::try_from((u128::from(ns) * self.excess).div_ceil(self.of)).unwrap() + 1 }
    }
}

struct Replay {
    id: String,
    cell: Cell,
    params: RateParams,
    lateness: Lateness,
    /// Moved later by what the rounding owes; stays zero on exact rates.
    slip_ns: u64,
    tickets: VecDeque<Ticket>,
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} in {value}"))
}

fn spec_of(vector: &Value, params: &Value) -> RateSpec {
    let id = vector["id"].as_str().unwrap();
    let algorithm = match vector["alg"].as_str().unwrap() {
        "gcra" => Algorithm::Gcra,
        "token_bucket" => Algorithm::TokenBucket,
        "fixed_window" => Algorithm::FixedWindow,
        "sliding_window" => Algorithm::SlidingWindow,
        other => panic!("{other}"),
    };
    let amount = number(params, "amount");
    RateSpec {
        amount,
        period_ns: number(params, "period_ns"),
        burst: params["burst"].as_u64().unwrap_or(amount),
        algorithm,
        debt: id.starts_with("gcra-tpm-") || id == KEEPS_BACKLOG,
    }
}

impl Replay {
    fn run(&mut self, ops: &[Value]) {
        for (nth, op) in ops.iter().enumerate() {
            self.op(nth, op);
        }
        assert!(!self.lateness.exact() || self.slip_ns == 0, "{}: an exact rate is never late", self.id);
    }

    fn op(&mut self, nth: usize, op: &Value) {
        let now = MonoNs(number(op, "t_ns") + self.slip_ns);
        match op["op"].as_str().unwrap() {
            "acquire" => self.acquire(nth, now, op),
            "settle" => {
                let ticket = self.tickets.pop_front().expect("a vector settles what it reserved");
                let delta = op["delta"].as_i64().unwrap();
                let used = ticket.tokens().checked_add_signed(delta).expect("settles to a count");
                self.cell.settle(&self.params, now, ticket, used);
                let standing = self.cell.peek(&self.params, now);
                self.compare(nth, now, &op["expect"], true, Retry::Now, standing);
            }
            "reconfigure" => {
                let spec = RateSpec {
                    amount: number(op, "amount"),
                    period_ns: number(op, "period_ns"),
                    burst: number(op, "burst"),
                    algorithm: self.params.algorithm(),
                    debt: self.params.debt(),
                };
                self.params = RateParams::new(spec).unwrap();
                self.lateness = Lateness::new(&spec);
                let standing = self.cell.peek(&self.params, now);
                self.compare(nth, now, &op["expect"], true, Retry::Now, standing);
            }
            other => panic!("{other}"),
        }
    }

    fn acquire(&mut self, nth: usize, now: MonoNs, op: &Value) {
        let (cost, expect) = (number(op, "cost"), &op["expect"]);
        let mut now = now;
        let mut answer = self.cell.reserve(&self.params, now, cost);
        if let (true, Err(denied)) = (expect["allowed"].as_bool().unwrap(), &answer) {
            let Retry::After { ns } = denied.retry else { panic!("{} step {nth}: never", self.id) };
            assert!(ns <= self.lateness.of_ns(now.0), "{} step {nth}: {ns} ns later than rounding owes", self.id);
            self.slip_ns += ns;
            now = now.plus_ns(ns);
            answer = self.cell.reserve(&self.params, now, cost);
        }
        match answer {
            Ok((ticket, standing)) => {
                self.tickets.push_back(ticket);
                self.compare(nth, now, expect, true, Retry::Now, standing);
            }
            Err(denied) => self.compare(nth, now, expect, false, denied.retry, denied.standing),
        }
    }

    fn compare(&self, nth: usize, now: MonoNs, expect: &Value, admitted: bool, retry: Retry, standing: Standing) {
        let place = format!("{} step {nth} at {} ns: {standing:?} {retry:?}, expected {expect}", self.id, now.0);
        assert_eq!(admitted, expect["allowed"].as_bool().unwrap(), "{place}");

        let remaining = number(expect, "remaining");
        let late_ns = self.lateness.of_ns(now.0);
        let later = || self.cell.peek(&self.params, now.plus_ns(late_ns)).remaining;
        assert!(standing.remaining == remaining || (!self.lateness.exact() && later() == remaining), "{place}");

        let (mut retry_ns, mut reset_ns) = (expect["retry_ns"].as_i64().unwrap(), number(expect, "reset_ns"));
        if let Some((_, _, retry, reset, _)) = ON_PURPOSE.iter().find(|(id, step, ..)| *id == self.id && *step == nth) {
            (retry_ns, reset_ns) = (i64::try_from(*retry).unwrap(), *reset);
        }
        self.same_time(standing.reset_ns, reset_ns, &place);
        match retry {
            Retry::Now => assert_eq!(retry_ns, 0, "{place}"),
            Retry::Never => assert_eq!(retry_ns, -1, "{place}"),
            Retry::After { ns } => self.same_time(ns, u64::try_from(retry_ns).unwrap(), &place),
        }
    }

    fn same_time(&self, ns: u64, expected: u64, place: &str) {
        let latest = expected + self.lateness.of_ns(expected);
        assert!((expected..=latest).contains(&ns), "{ns} is not in {expected}..={latest}: {place}");
    }
}

/// The validator's answer to a rate whose backlog no cell can hold: the maximum, which does compile.
fn refused_with_a_maximum_that_fits(id: &str, spec: RateSpec, error: RateSpecError) {
    let (fits, beyond) = match error {
        RateSpecError::BurstTooLarge { max, .. } => {
            (RateSpec { burst: max, ..spec }, RateSpec { burst: max + 1, ..spec })
        }
        RateSpecError::PeriodTooLong { max_ns, .. } => {
            let one = RateSpec { amount: 1, burst: 1, ..spec };
            (RateSpec { period_ns: max_ns, ..one }, RateSpec { period_ns: max_ns + 1, ..one })
        }
        other => panic!("{id}: {other}"),
    };
    RateParams::new(fits).unwrap_or_else(|error| panic!("{id}: {error}"));
    RateParams::new(beyond).expect_err("one more than the maximum does not compile");
}

#[test]
fn every_product_vector_gets_its_published_answer() {
    let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/gcra_vectors.json"));
    let file: Value = serde_json::from_str(text).unwrap();
    let (mut replayed, mut refused, mut steps, mut late) = (0, Vec::new(), 0, Vec::new());
    for vector in file["vectors"].as_array().unwrap() {
        let id = vector["id"].as_str().unwrap();
        if NOT_OURS.iter().any(|prefix| id.starts_with(prefix)) {
            continue;
        }
        let spec = spec_of(vector, &vector["params"]);
        let params = match RateParams::new(spec) {
            Ok(params) => params,
            Err(error) => {
                refused_with_a_maximum_that_fits(id, spec, error);
                refused.push(id);
                continue;
            }
        };
        let cell = Cell::new(&params);
        if let Some(initial) = vector["params"]["initial"].as_u64() {
            cell.acquire(&params, MonoNs(number(&vector["ops"][0], "t_ns")), spec.burst - initial).unwrap();
        }
        let lateness = Lateness::new(&spec);
        let mut replay = Replay { id: id.into(), cell, params, lateness, slip_ns: 0, tickets: VecDeque::new() };
        let ops = vector["ops"].as_array().unwrap();
        replay.run(ops);
        if replay.slip_ns > 0 {
            late.push((id, replay.slip_ns));
        }
        steps += ops.len();
        replayed += 1;
    }
    println!(
        "{} vectors: {replayed} replayed ({steps} steps), {} refused by validation {refused:?}; late {late:?}",
        replayed + refused.len(),
        refused.len(),
    );
    assert_eq!(replayed + refused.len(), 60);
    assert_eq!(refused.len(), 5, "only backlogs over 73 years are refused: {refused:?}");
    assert_eq!(late, [("gcra-fast-7e9-per-minute", 46_875_000)], "0.08 % of a minute: 549/64 ns for 8.571 ns");
}
