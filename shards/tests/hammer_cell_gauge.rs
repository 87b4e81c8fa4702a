//! Four threads on one cell and on one gauge: within a replica, "no" means no.
//!
//! Bounded work on a virtual clock, so it takes the same time everywhere and never waits.

use shards::cell::Cell;
use shards::gauge::{Gauge, Slot};
use shards::rate::{Algorithm, RateParams, RateSpec};
use shards::units::MonoNs;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const THREADS: u64 = 4;
const ROUNDS: u64 = 50_000;
const MINUTE: u64 = 60_000_000_000;

fn params(amount: u64, burst: u64, algorithm: Algorithm, debt: bool) -> RateParams {
    RateParams::new(RateSpec { amount, period_ns: MINUTE, burst, algorithm, debt }).unwrap()
}

/// Every thread reads the shared clock, moves it on, and then steps several times with what it read, as a thread
/// does that is descheduled between its clock and its step.
fn admitted_by_four(cell: &Cell, params: &RateParams, tick_ns: u64) -> (u64, u64) {
    let (clock, admitted) = (AtomicU64::new(MINUTE), AtomicU64::new(0));
    let start = Barrier::new(usize::try_from(THREADS).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (clock, admitted, start) = (&clock, &admitted, &start);
            scope.spawn(move || {
                start.wait();
                let mut took = 0;
                let mut now = MonoNs(0);
                for round in 0..ROUNDS {
                    if round % (1 + thread) == 0 {
                        now = MonoNs(clock.fetch_add(tick_ns, Ordering::Relaxed));
                    }
                    let cost = 1 + round % 3;
                    if cell.acquire(params, now, cost).is_ok() {
                        took += cost;
                    }
                }
                admitted.fetch_add(took, Ordering::Relaxed);
            });
        }
    });
    (admitted.into_inner(), clock.into_inner() - MINUTE)
}

#[test]
fn four_threads_never_pass_a_rate() {
    for (amount, burst) in [(600, 600), (1_000_000, 1_000), (1_000_000, 3), (999_983, 7)] {
        let rpm = params(amount, burst, Algorithm::Gcra, false);
        let cell = Cell::new(&rpm);
        let (admitted, elapsed_ns) = admitted_by_four(&cell, &rpm, 1_500);
        let most = u128::from(burst) + u128::from(elapsed_ns) * u128::from(amount) / u128::from(MINUTE);
        println!("{amount}/min burst {burst}: {admitted} of at most {most} in {elapsed_ns} ns");
        assert!(u128::from(admitted) <= most, "{admitted} > {most}");
        assert!(admitted >= burst, "and the burst was there");
    }
}

#[test]
fn four_threads_never_pass_a_window() {
    // The clock does not leave the window of boot + 1 min: exactly the amount passes, to the unit.
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let window = params(30_001, 1, algorithm, false);
        let cell = Cell::new(&window);
        let (admitted, elapsed_ns) = admitted_by_four(&cell, &window, 100);
        assert!(elapsed_ns < MINUTE);
        assert_eq!(admitted, 30_001, "{algorithm:?}");
    }
}

#[test]
fn four_threads_of_reserves_leave_nothing_behind() {
    let tpm = params(1_000_000, 1_000_000, Algorithm::Gcra, true);
    let cell = Cell::new(&tpm);
    let now = MonoNs(MINUTE);
    let used = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cell, tpm, used) = (&cell, &tpm, &used);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    // One call in a thousand uses three tokens more than its sixteen, the others return all of them.
                    let over = if round % 1_000 == thread { 19 } else { 0 };
                    let (ticket, _) = cell.reserve(tpm, now, 16).expect("64 in flight and 3,800 used of a million");
                    cell.settle(tpm, now, ticket, over);
                    used.fetch_add(over, Ordering::Relaxed);
                }
            });
        }
    });
    let used = used.into_inner();
    assert_eq!(used, THREADS * ROUNDS / 1_000 * 19);
    assert_eq!(cell.peek(&tpm, now).remaining, 1_000_000 - used);
}

#[test]
fn four_threads_never_pass_a_cap() {
    for cap in [1, 2, 3, 5] {
        let (gauge, inside, most) = (Gauge::new(), AtomicU32::new(0), AtomicU32::new(0));
        let (took, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        let start = Barrier::new(usize::try_from(THREADS).unwrap());
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    // Each thread keeps its last lease while it asks for the next: eight are wanted at a time.
                    let mut kept = None;
                    let free = |slot: Option<Slot>| {
                        if let Some(slot) = slot {
                            inside.fetch_sub(1, Ordering::SeqCst);
                            gauge.free(slot);
                        }
                    };
                    for _ in 0..ROUNDS {
                        match gauge.try_lease(cap) {
                            Ok(lease) => {
                                // Counted beside the gauge, inside the lease, so that it is not asked about itself.
                                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                                took.fetch_add(1, Ordering::Relaxed);
                                free(kept.replace(lease));
                            }
                            Err(full) => {
                                assert_eq!((full.used, full.cap), (cap, cap));
                                refused.fetch_add(1, Ordering::Relaxed);
                                free(kept.take());
                            }
                        }
                    }
                    free(kept);
                });
            }
        });
        let (most, took, refused) = (most.into_inner(), took.into_inner(), refused.into_inner());
        println!("cap {cap}: {took} leases, {refused} refusals, {most} at once");
        assert!(most <= cap);
        // Alone already, a thread that keeps the one slot is refused the next; above that it depends on who runs when.
        assert!(cap > 1 || refused > 0);
        assert_eq!(took + refused, THREADS * ROUNDS);
        assert_eq!((inside.into_inner(), gauge.in_flight()), (0, 0));
    }
}
