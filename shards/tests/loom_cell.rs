//! Every interleaving of a few steps on one cell.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shards --test 'loom_*' --release`; empty without the flag.
#![cfg(loom)]

use loom::thread;
use shards::cell::Cell;
use shards::rate::{Algorithm, RateParams, RateSpec};
use shards::units::MonoNs;
use std::sync::Arc;

const MINUTE: u64 = 60_000_000_000;
const NOW: MonoNs = MonoNs(MINUTE);

fn params(amount: u64, algorithm: Algorithm, debt: bool) -> RateParams {
    RateParams::new(RateSpec { amount, period_ns: MINUTE, burst: amount, algorithm, debt }).unwrap()
}

#[test]
fn the_last_unit_is_given_once() {
    for algorithm in [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        loom::model(move || {
            let two = params(2, algorithm, false);
            let cell = Arc::new(Cell::new(&two));
            let asking: Vec<_> = (0..2)
                .map(|_| {
                    let cell = Arc::clone(&cell);
                    thread::spawn(move || cell.acquire(&two, NOW, 1))
                })
                .collect();
            let mut answers = vec![cell.acquire(&two, NOW, 1)];
            answers.extend(asking.into_iter().map(|thread| thread.join().unwrap()));
            // Two of three, and each was told of its own place in the one order.
            let mut left: Vec<u64> = answers.iter().flatten().map(|standing| standing.remaining).collect();
            left.sort_unstable();
            assert_eq!(left, [0, 1]);
            assert_eq!(cell.peek(&two, NOW).remaining, 0);
        });
    }
}

#[test]
fn a_now_read_earlier_takes_nothing_back() {
    loom::model(|| {
        let one = params(1, Algorithm::Gcra, false);
        let cell = Arc::new(Cell::new(&one));
        let late = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || cell.acquire(&one, MonoNs(NOW.0 - 500_000_000), 1).is_ok())
        };
        let prompt = cell.acquire(&one, NOW, 1).is_ok();
        assert!(prompt ^ late.join().unwrap(), "one unit, whoever is first");
        assert!(cell.acquire(&one, NOW, 1).is_err());
    });
}

#[test]
fn a_settlement_beside_an_acquire_loses_neither() {
    loom::model(|| {
        let tpm = params(20_000, Algorithm::Gcra, true);
        let cell = Arc::new(Cell::new(&tpm));
        let (ticket, _) = cell.reserve(&tpm, NOW, 16_000).unwrap();
        let settling = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || cell.settle(&tpm, NOW, ticket, 1_000))
        };
        // 4,000 are free before the refund, 19,000 after it.
        let took = cell.acquire(&tpm, NOW, 5_000).is_ok();
        settling.join().unwrap();
        assert_eq!(cell.peek(&tpm, NOW).remaining, if took { 14_000 } else { 19_000 });
    });
}

#[test]
fn a_debit_beside_a_credit_sums_up() {
    loom::model(|| {
        let tpm = params(20_000, Algorithm::Gcra, true);
        let cell = Arc::new(Cell::new(&tpm));
        let (small, _) = cell.reserve(&tpm, NOW, 4_000).unwrap();
        let (large, _) = cell.reserve(&tpm, NOW, 4_000).unwrap();
        let over = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || cell.settle(&tpm, NOW, small, 7_000))
        };
        cell.settle(&tpm, NOW, large, 500);
        over.join().unwrap();
        assert_eq!(cell.peek(&tpm, NOW).remaining, 12_500);
    });
}
