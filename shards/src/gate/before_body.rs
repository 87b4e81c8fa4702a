//! Gate A: `rpm` and `concurrency`, before a byte of the body is read.

use std::sync::Arc;

use super::{Answer, Passed, Verdict, walk};
use crate::cell::Cell;
use crate::gauge::Gauge;
use crate::plan::{Armed, Counter, NodePlan};
use crate::refusal::Refusal;
use crate::units::Now;

/// Counts the arrival and takes the slots. `n_live` is the number of live replicas, read once for the request. A refusal
/// returns the slots taken so far; arrivals that were counted stay counted, here and when gate B refuses.
pub fn before_body(plan: &NodePlan, now: Now, n_live: u32, passed: &mut Passed) -> Verdict {
    walk(&plan.before_body, passed, |armed, passed| match &armed.counter {
        Counter::Cell(cell) => count(armed, cell, now, n_live, passed),
        Counter::Gauge(gauge) => lease(armed, gauge, n_live, passed),
        Counter::Meter(_) => Answer::Under, // LedgerSettled limits are asked at gate B
    })
}

fn count(armed: &Armed, cell: &Cell, now: Now, n_live: u32, passed: &mut Passed) -> Answer {
    let Some(rate) = armed.limit.effective_rate(n_live) else { return Answer::Under }; // a cell only comes with a rate
    match cell.acquire(&rate, now.mono, 1) {
        Ok(standing) => {
            passed.note(armed, &rate, standing);
            Answer::Under
        }
        Err(denied) => Answer::Over(Refusal::by_rate(armed, &rate, denied.retry)),
    }
}

fn lease(armed: &Armed, gauge: &Arc<Gauge>, n_live: u32, passed: &mut Passed) -> Answer {
    // The plan compiler keeps amounts inside 32 bits, and a share is smaller.
    let cap = u32::try_from(armed.limit.effective_amount(n_live)).unwrap_or(u32::MAX);
    match gauge.try_lease(cap) {
        Ok(lease) => {
            passed.held.keep_lease(lease);
            Answer::Under
        }
        Err(full) => {
            if !armed.limit.is_enforcing() {
                passed.held.keep_lease(gauge.lease_over()); // it will run, so it counts
            }
            Answer::Over(Refusal::by_gauge(armed, full))
        }
    }
}
