//! The promise of signed settlement: in any window, tokens used are at most the burst, plus what time earned,
//! plus the refunds of reserves that were already in flight when the window began.

use proptest::prelude::*;
use shards::cell::Cell;
use shards::rate::{Algorithm, RateParams, RateSpec, Ticket};
use shards::units::MonoNs;

const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Debug)]
enum Op {
    /// Reserve this many thousandths of the burst, of which thousandths get used.
    Reserve(u64, u64),
    /// Settle one of the open reserves.
    Settle(usize),
    /// Let thousandths of a period pass.
    Wait(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (1u64..=1_000, 0u64..=1_500).prop_map(|(reserve, used)| Op::Reserve(reserve, used)),
        3 => any::<usize>().prop_map(Op::Settle),
        3 => prop_oneof![0u64..50, 0u64..1_500].prop_map(Op::Wait),
    ];
    prop::collection::vec(op, 1..60)
}

fn tpm(amount: u64, burst: u64) -> RateParams {
    let spec = RateSpec { amount, period_ns: 60 * SECOND, burst, algorithm: Algorithm::Gcra, debt: true };
    RateParams::new(spec).unwrap()
}

/// What happened at one op, by its position in time.
#[derive(Clone, Copy)]
enum Event {
    /// Admitted at this instant: what it will have used, as far as its reserve covered it.
    Admitted {
        at: u64,
        used_of_reserve: u64,
    },
    /// Used beyond the reserve, counted when it was settled.
    Over {
        tokens: u64,
    },
    /// Given back, of a reserve admitted at that event.
    Refunded {
        tokens: u64,
        admitted: usize,
    },
    Nothing,
}

proptest! {
    #[test]
    fn used_is_within_burst_and_rate_and_refunds_in_flight(
        amount in prop::sample::select(vec![20_000u64, 16_384, 999_983, 7_000_000]),
        over in 1u64..=3,
        ops in ops(),
    ) {
        let burst = (amount * over / 2).max(16_384);
        let params = tpm(amount, burst);
        let cell = Cell::new(&params);
        let mut now = MonoNs(SECOND);
        let mut open: Vec<(Ticket, u64, usize)> = Vec::new();
        let mut events: Vec<(u64, Event)> = Vec::new();
        for op in ops {
            let event = match op {
                Op::Reserve(reserve, used) => {
                    let tokens = (burst * reserve / 1_000).max(1);
                    let used = tokens * used / 1_000;
                    match cell.reserve(&params, now, tokens) {
                        Ok((ticket, _)) => {
                            open.push((ticket, used, events.len()));
                            Event::Admitted { at: now.0, used_of_reserve: used.min(tokens) }
                        }
                        Err(_) => Event::Nothing,
                    }
                }
                Op::Settle(which) if !open.is_empty() => {
                    let (ticket, mut used, admitted) = open.swap_remove(which % open.len());
                    let tokens = ticket.tokens();
                    // Debts beyond ten bursts are forgotten; that has its own test.
                    let ahead_ns = cell.peek(&params, now).reset_ns;
                    if used > tokens && ahead_ns > 9 * 60 * SECOND / 2 {
                        used = tokens;
                    }
                    cell.settle(&params, now, ticket, used);
                    match used.cmp(&tokens) {
                        std::cmp::Ordering::Greater => Event::Over { tokens: used - tokens },
                        std::cmp::Ordering::Less => Event::Refunded { tokens: tokens - used, admitted },
                        std::cmp::Ordering::Equal => Event::Nothing,
                    }
                }
                Op::Settle(_) => Event::Nothing,
                Op::Wait(thousandths) => {
                    now = now.plus_ns(60 * SECOND / 1_000 * thousandths);
                    Event::Nothing
                }
            };
            events.push((now.0, event));
        }
        // Every window that ends with an admission; the worst windows do.
        for begin in 0..events.len() {
            let (mut used, mut refunds) = (0u128, 0u128);
            for &(_, event) in &events[begin..] {
                match event {
                    Event::Admitted { at, used_of_reserve } => {
                        used += u128::from(used_of_reserve);
                        let earned = u128::from(at - events[begin].0) * u128::from(amount);
                        let allowed = (u128::from(burst) + refunds) * u128::from(60 * SECOND) + earned;
                        prop_assert!(used * u128::from(60 * SECOND) <= allowed, "window from op {begin}: {used} used");
                    }
                    Event::Over { tokens } => used += u128::from(tokens),
                    Event::Refunded { tokens, admitted } if admitted < begin => refunds += u128::from(tokens),
                    Event::Refunded { .. } | Event::Nothing => {}
                }
            }
        }
    }

    /// Without waiting, a settled cell is as if the truth had been known at once; the reserve leaves no trace.
    #[test]
    fn settled_at_once_is_as_reserved_right(tokens in 1u64..=20_000, used in 0u64..=40_000, before in 0u64..=20_000) {
        let params = tpm(20_000, 20_000);
        let (cell, known) = (Cell::new(&params), Cell::new(&params));
        let now = MonoNs(5 * SECOND);
        cell.debit(&params, now, before);
        known.debit(&params, now, before);
        if let Ok((ticket, _)) = cell.reserve(&params, now, tokens) {
            cell.settle(&params, now, ticket, used);
            known.debit(&params, now, used);
            prop_assert_eq!(cell.peek(&params, now), known.peek(&params, now));
        }
    }

    /// A returned reserve frees no more than it took, whatever else happened meanwhile.
    #[test]
    fn a_credit_never_exceeds_its_reserve(others in prop::collection::vec(1u64..=5_000, 0..6), tokens in 1u64..=16_384, wait in 0u64..120) {
        let params = tpm(20_000, 20_000);
        let cell = Cell::new(&params);
        let Ok((ticket, _)) = cell.reserve(&params, MonoNs(0), tokens) else { panic!("the first always fits") };
        let now = MonoNs(wait * SECOND);
        for other in others {
            let _ = cell.acquire(&params, now, other);
        }
        let before = cell.peek(&params, now);
        cell.settle(&params, now, ticket, 0);
        let after = cell.peek(&params, now);
        prop_assert!(after.remaining >= before.remaining);
        prop_assert!(after.remaining - before.remaining <= tokens);
        prop_assert!(after.remaining <= 20_000);
    }
}

#[test]
fn a_reserve_that_drained_before_its_refund_erases_a_later_one_and_no_more() {
    // 20,000 a minute. The first reserve has drained at 49.152 s; refunded at 61 s it frees the second one's 16,384.
    let params = tpm(20_000, 20_000);
    let cell = Cell::new(&params);
    let (first, _) = cell.reserve(&params, MonoNs(0), 16_384).unwrap();
    let (second, _) = cell.reserve(&params, MonoNs(60 * SECOND), 16_384).unwrap();
    cell.settle(&params, MonoNs(61 * SECOND), first, 0);
    assert_eq!(cell.peek(&params, MonoNs(61 * SECOND)).remaining, 20_000);
    // The second's own refund finds nothing left to free.
    cell.settle(&params, MonoNs(61 * SECOND), second, 0);
    assert_eq!(cell.peek(&params, MonoNs(61 * SECOND)).remaining, 20_000);
}

#[test]
fn a_nonsense_report_closes_a_scope_for_ten_bursts_and_a_token() {
    let params = tpm(20_000, 20_000);
    let cell = Cell::new(&params);
    let (ticket, _) = cell.reserve(&params, MonoNs(0), 10).unwrap();
    cell.settle(&params, MonoNs(0), ticket, u64::MAX);
    let ten_minutes = MonoNs(600 * SECOND);
    assert!(cell.acquire(&params, ten_minutes, 1).is_err());
    assert!(cell.acquire(&params, ten_minutes.plus_ns(3_000_000), 1).is_ok());
}

#[test]
fn a_ticket_says_what_it_holds() {
    let params = tpm(20_000, 20_000);
    let (ticket, standing) = Cell::new(&params).reserve(&params, MonoNs(0), 16_391).unwrap();
    assert_eq!((ticket.tokens(), ticket.ticks(), standing.remaining), (16_391, 16_391 * 3_000_000, 3_609));
}
