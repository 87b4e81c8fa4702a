//! Gate A: `rpm` and `concurrency`, before a byte of the body is read.

use std::rc::Rc;

use super::{Answer, Passed, Verdict, conclude, walk};
use crate::cell::Cell;
use crate::coordinate::eval::EvalCall;
use crate::gauge::Gauge;
use crate::plan::{Armed, Counter, NodePlan};
use crate::rate::ScriptReply;
use crate::refusal::Refusal;
use crate::suspend::Reason;
use crate::units::Now;

/// Counts the arrival and takes the slots. `n_live` is the number of live replicas, read once for the request. A refusal
/// returns the slots taken so far; arrivals that were counted stay counted, here and when gate B refuses. Asks no store:
/// for plans with [`NodePlan::asks_store`] there is [`BeforeBody`].
pub fn before_body(plan: &NodePlan, now: Now, n_live: u32, passed: &mut Passed) -> Verdict {
    walk(&plan.before_body, passed, |armed, passed| ask_here(armed, now, n_live, passed))
}

/// Gate A of a plan that asks the shared store: the same walk, which stops at each limit that is counted there.
#[derive(Debug)]
pub struct BeforeBody<'p> {
    plan: &'p NodePlan,
    now: Now,
    n_live: u32,
    next: usize,
}

/// Where the walk stands.
#[derive(Debug)]
#[must_use]
pub enum Step {
    /// Make this call, or find out why it cannot be made, and tell [`BeforeBody::answered`].
    Ask(EvalCall),
    Done(Verdict),
}

impl<'p> BeforeBody<'p> {
    pub fn new(plan: &'p NodePlan, now: Now, n_live: u32) -> BeforeBody<'p> {
        BeforeBody { plan, now, n_live, next: 0 }
    }

    /// Walks to the next limit that is counted in the store, or to the verdict.
    pub fn walk(&mut self, passed: &mut Passed) -> Step {
        while let Some(armed) = self.plan.before_body.get(self.next) {
            if let (Some(scope), Some(rate)) = (armed.shared, &armed.limit.rate) {
                return Step::Ask(EvalCall::new(scope, rate, 1));
            }
            self.next += 1;
            let answer = ask_here(armed, self.now, self.n_live, passed);
            if let Some(refused) = conclude(armed, answer, passed) {
                return Step::Done(refused);
            }
        }
        Step::Done(Verdict::Admitted)
    }

    /// Goes on with what the store said. Without an answer the local cell decides, with the full amount: *over-admits*, in
    /// the fleet up to N times the limit, and the verdict says so.
    pub fn answered(&mut self, outcome: Result<ScriptReply, Reason>, passed: &mut Passed) -> Step {
        if let Some(armed) = self.plan.before_body.get(self.next) {
            self.next += 1;
            let answer = match outcome {
                Ok(reply) => told(armed, &reply, self.now, passed),
                Err(reason) => {
                    passed.suspended.push((armed.limit.id.clone(), reason));
                    ask_here(armed, self.now, self.n_live, passed)
                }
            };
            if let Some(refused) = conclude(armed, answer, passed) {
                return Step::Done(refused);
            }
        }
        self.walk(passed)
    }
}

#[inline(always)]
fn ask_here(armed: &Rc<Armed>, now: Now, n_live: u32, passed: &mut Passed) -> Answer {
    match &armed.counter {
        Counter::Cell(cell) => count(armed, cell, now, n_live, passed),
        Counter::Gauge(gauge) => lease(armed, gauge, n_live, passed),
        Counter::Meter(_) => Answer::Under, // LedgerSettled limits are asked at gate B
    }
}

#[inline(always)]
fn count(armed: &Rc<Armed>, cell: &Cell, now: Now, n_live: u32, passed: &mut Passed) -> Answer {
    let Some(rate) = armed.limit.effective_rate(n_live) else { return Answer::Under }; // a cell only comes with a rate
    passed.note_share(&armed.limit);
    match cell.acquire(&rate, now.mono, 1) {
        Ok(standing) => {
            passed.note(armed, &rate, standing);
            Answer::Under
        }
        Err(denied) => Answer::over(armed, || Refusal::by_rate(armed, &rate, denied.retry)),
    }
}

/// The store has counted. The local cell counts along, so that it is warm when the store cannot be asked.
fn told(armed: &Rc<Armed>, reply: &ScriptReply, now: Now, passed: &mut Passed) -> Answer {
    let Some(rate) = &armed.limit.rate else { return Answer::Under }; // only rates are counted in a store
    let (admitted, retry, standing) = rate.read_script(reply, 1);
    if !admitted {
        return Answer::over(armed, || Refusal::by_rate(armed, rate, retry));
    }
    if let Counter::Cell(cell) = &armed.counter {
        cell.debit(rate, now.mono, 1);
    }
    passed.note(armed, rate, standing);
    Answer::Under
}

#[inline(always)]
fn lease(armed: &Rc<Armed>, gauge: &Gauge, n_live: u32, passed: &mut Passed) -> Answer {
    // The plan compiler keeps amounts inside 32 bits, and a share is smaller.
    passed.note_share(&armed.limit);
    let cap = u32::try_from(armed.limit.effective_amount(n_live)).unwrap_or(u32::MAX);
    match gauge.try_lease(cap) {
        Ok(slot) => {
            passed.held.keep_lease(armed, slot);
            Answer::Under
        }
        Err(full) => {
            if !armed.limit.is_enforcing() {
                passed.held.keep_lease(armed, gauge.lease_over()); // it will run, so it counts
            }
            Answer::over(armed, || Refusal::by_gauge(armed, full))
        }
    }
}
