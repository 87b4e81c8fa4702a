//! Gate B: budgets, quotas and `tpm`, once the body says which model and how much.

use std::rc::Rc;

use super::{Answer, Passed, Verdict, walk};
use crate::cell::Cell;
use crate::limit::LimitType;
use crate::meter::{Meter, MeterBeat};
use crate::plan::{Armed, Counter, NodePlan};
use crate::refusal::Refusal;
use crate::settle::{OutputBound, reserve_tokens};
use crate::suspend::Reason;
use crate::units::Now;

/// What the parsed request asks for. Its endpoint was matched when the plan was made.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub model: &'a str,
    /// The upstream that will be tried first.
    pub upstream: &'a str,
    /// Prompt bytes ÷ 4, images counted.
    pub input_tokens: u64,
    /// What bounds the answer; `None` for an endpoint that answers no text.
    pub output: Option<OutputBound>,
    /// The model's price is known and is 0: no budget is spent by it, so none refuses it.
    pub free_price: bool,
}

/// Reads the meters and takes the token reserves. A refusal returns everything both gates took, but for rpm counts.
pub fn after_parse(
    plan: &NodePlan,
    now: Now,
    n_live: u32,
    beat: &MeterBeat,
    ask: &Ask<'_>,
    passed: &mut Passed,
) -> Verdict {
    after_failover(plan, now, n_live, beat, ask, &[], passed)
}

/// Gate B again, because the request goes to another upstream than the `tried` ones: asks the limits that select this
/// one and were not asked for any of those. A refusal returns everything, as in [`after_parse`].
pub fn after_failover(
    plan: &NodePlan,
    now: Now,
    n_live: u32,
    beat: &MeterBeat,
    ask: &Ask<'_>,
    tried: &[&str],
    passed: &mut Passed,
) -> Verdict {
    walk(&plan.after_parse, passed, |armed, passed| {
        let matches = &armed.limit.matches;
        let was_asked = tried.iter().any(|upstream| matches.selects_target(ask.model, upstream));
        if was_asked || !matches.selects_target(ask.model, ask.upstream) {
            return Answer::Under;
        }
        match &armed.counter {
            Counter::Meter(meter) => read(armed, meter, now, beat, ask, passed),
            Counter::Cell(cell) => reserve(armed, cell, now, n_live, ask, passed),
            Counter::Gauge(_) => Answer::Under, // concurrency is asked at gate A
        }
    })
}

#[inline(always)]
fn read(armed: &Armed, meter: &Meter, now: Now, beat: &MeterBeat, ask: &Ask<'_>, passed: &mut Passed) -> Answer {
    let limit = &armed.limit;
    if beat.is_stale(now.mono) {
        passed.suspended.push((limit.id.clone(), Reason::MeterStale)); // admitted unchecked, and it says so
        return Answer::Under;
    }
    if limit.kind == LimitType::BudgetUsd && ask.free_price {
        return Answer::Under;
    }
    let converging = passed.fleet.converging;
    if let Some(reason) = converging.and_then(|converging| converging.suspended) {
        passed.suspended.push((limit.id.clone(), reason)); // what is known of the peers still counts
    }
    let reading = meter.read(now.wall);
    if reading.observed < limit.amount {
        return Answer::Under;
    }
    Answer::over(armed, || {
        let mut refusal = Refusal::by_meter(armed, reading, now);
        refusal.bound.convergence_lag_rows = converging.map(|_| meter.convergence_lag_rows(now.mono));
        refusal
    })
}

#[inline(always)]
fn reserve(armed: &Rc<Armed>, cell: &Cell, now: Now, n_live: u32, ask: &Ask<'_>, passed: &mut Passed) -> Answer {
    let Some(rate) = armed.limit.effective_rate(n_live) else { return Answer::Under }; // a cell only comes with a rate
    passed.note_share(&armed.limit);
    let tokens = reserve_tokens(ask.input_tokens, ask.output, rate.burst());
    match cell.reserve(&rate, now.mono, tokens) {
        Ok((ticket, standing)) => {
            passed.held.keep_reserve(armed, ticket);
            passed.reserved_tokens = passed.reserved_tokens.max(tokens);
            passed.note(armed, &rate, standing);
            Answer::Under
        }
        Err(denied) => Answer::over(armed, || Refusal::by_rate(armed, &rate, denied.retry)),
    }
}
