//! `GET /tt/v1/me`: who a key is, and how it stands with every limit that applies to it.
//!
//! Looks without counting: nothing here changes a counter. The same rendering of one limit at one node serves the
//! admin panel.

use std::rc::Rc;

use serde_json::{Value, json};
use shards::accountant::period_of;
use shards::limit::{Class, Limit, LimitType, Period, Store};
use shards::plan::{Armed, Counter};
use shards::refusal::{enforcement, go_duration, text};
use shards::scope::Endpoint;
use shards::suspend::Reason;
use shards::units::Now;

use crate::caller::Caller;
use crate::coordination::desk::Outcome;
use crate::core::{Core, View};
use crate::shared::Shared;

/// The body of the answer. Waits for the shared store at most 5 ms, where a limit is counted there.
pub async fn render(core: &Core, view: &View, caller: &Caller, now: Now) -> Vec<u8> {
    // Chat is the endpoint nearly every limit selects; a limit that selects others only is added once.
    let mut limits: Vec<Rc<Armed>> = Vec::new();
    for endpoint in Endpoint::ALL {
        let plan = core.plan(view, &caller.node, endpoint);
        for armed in plan.before_body.iter().chain(&plan.after_parse) {
            if !limits.iter().any(|known| known.limit.id == armed.limit.id && known.node == armed.node) {
                limits.push(armed.clone());
            }
        }
    }
    let mut budget = None;
    let mut shown: Vec<Value> = Vec::with_capacity(limits.len());
    for armed in &limits {
        let told = match &core.desk {
            Some(desk) => desk.look(armed, &mut budget).await,
            None => None,
        };
        shown.push(standing_told(&core.shared, armed, told, now));
    }
    json!({
        "node": caller.node.as_str(),
        "key_id": caller.key_id.as_deref(),
        "name": caller.key_name.as_deref(),
        "expires_at": caller.key_expires.map(|at| instant(at.0)),
        "anonymous": caller.is_anonymous(),
        "limits": shown,
    })
    .to_string()
    .into_bytes()
}

/// One limit at one node, as it stands in this replica.
pub fn standing(shared: &Shared, armed: &Armed, now: Now) -> Value {
    standing_told(shared, armed, None, now)
}

/// The same, with what the shared store told of it, or why it told nothing.
fn standing_told(shared: &Shared, armed: &Armed, told: Option<Outcome>, now: Now) -> Value {
    let limit = &armed.limit;
    let n_live = shared.n_live(now.mono);
    let suspended = match told {
        Some(Ok(_)) => None,
        Some(Err(reason)) => Some(reason),
        None => suspension(shared, limit, now),
    };
    let converges = shared.coordination.is_some();
    let mut value = json!({
        "id": &*limit.id,
        "type": limit.kind.as_str(),
        "unit": limit.kind.unit(),
        "node": armed.node.as_str(),
        "limit": amount(limit.kind, limit.effective_amount(n_live)),
        "posture": limit.posture.as_str(),
        "enforcement": enforcement(limit, n_live, converges, suspended),
    });
    value["basis"] = json!(basis(armed, converges && shared.convergence_age_ms(|| now.mono.0).is_some(), &told));
    if let Some(period) = &limit.period {
        value["period"] = json!(period_text(period));
    }
    match &armed.counter {
        Counter::Cell(cell) => {
            if let Some(rate) = limit.effective_rate(n_live) {
                let standing = match told {
                    Some(Ok(reply)) => rate.read_script(&reply, 0).2,
                    _ => cell.peek(&rate, now.mono),
                };
                value["burst"] = json!(rate.burst());
                value["remaining"] = json!(standing.remaining);
                value["resets_at"] = json!(instant(now.wall.0.saturating_add_unsigned(standing.reset_ns / 1_000_000)));
            }
        }
        Counter::Gauge(gauge) => value["live"] = json!(gauge.in_flight()),
        Counter::Meter(meter) => {
            let reading = meter.read(now.wall);
            let left = limit.amount.saturating_sub(reading.observed);
            value["used"] = amount(limit.kind, reading.observed);
            if converges {
                value["exchange_age_ms"] = json!(shared.convergence_age_ms(|| now.mono.0));
            }
            value["remaining"] = amount(limit.kind, left);
            // Nothing was folded in this period yet: the calendar knows when it ends all the same.
            let ends = reading.resets_at.or_else(|| match &limit.period {
                Some(Period::Calendar(calendar)) => Some(period_of(*calendar, now.wall).end),
                _ => None,
            });
            value["resets_at"] = json!(ends.map(|at| instant(at.0)));
        }
    }
    value
}

/// Whose count the numbers are: where a limit is counted elsewhere, they say something else than what will be decided on.
fn basis(armed: &Armed, has_heard_peers: bool, told: &Option<Outcome>) -> &'static str {
    match (&armed.counter, told) {
        (_, Some(Ok(_))) => "shared_store",
        (Counter::Meter(_), _) if has_heard_peers => "own_and_peers",
        _ => "own_count",
    }
}

/// Why a limit's guarantee is not held right now, if it is not: what the last verdicts said, and the next one will.
pub fn suspension(shared: &Shared, limit: &Limit, now: Now) -> Option<Reason> {
    let is_settled = limit.kind.class() == Class::LedgerSettled;
    if is_settled && shared.beat.is_stale(now.mono) {
        return Some(Reason::MeterStale);
    }
    let coordination = shared.coordination.as_ref()?;
    match limit.store {
        _ if is_settled => coordination.fleet.burn_suspended(now.mono),
        Store::Redis => coordination.breaker.suspended(),
        Store::Share => coordination.n_live(now.mono).1,
        Store::Local => None,
    }
}

/// An amount in the limit's unit: dollars as an exact decimal, everything else as a whole number.
pub fn amount(kind: LimitType, value: u64) -> Value {
    if kind != LimitType::BudgetUsd {
        return json!(value);
    }
    let mut digits = Vec::new();
    text::usd(value, &mut digits);
    // The decimal text is a JSON number as it stands; a float would round it.
    serde_json::from_slice(&digits).unwrap_or(Value::Null)
}

/// `1m0s` or `month`.
pub fn period_text(period: &Period) -> String {
    match period {
        Period::Calendar(calendar) => calendar.as_str().to_owned(),
        Period::Every { ns } => {
            let mut text = Vec::new();
            go_duration(*ns, &mut text);
            String::from_utf8_lossy(&text).into_owned()
        }
    }
}

/// RFC 3339 in UTC.
pub fn instant(wall_ms: i64) -> String {
    let mut text = Vec::new();
    text::rfc3339(shards::units::WallMs(wall_ms), &mut text);
    String::from_utf8_lossy(&text).into_owned()
}
