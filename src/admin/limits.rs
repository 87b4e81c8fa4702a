//! `GET /tt/api/v1/governance/limits`: every limit as configured, as enforced now, and where it is closest to refusing.
//!
//! Walks all counters, at most ten of which are kept per limit; looks without counting and creates none.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use shards::limit::{Attach, Limit};
use shards::plan::{Armed, Counter};
use shards::refusal::{Enforcement, enforcement};
use shards::scope::Node;
use shards::units::Now;

use super::answer::{Answer, ok, reading};
use super::{Admin, now, query};
use crate::me;
use crate::shared::Shared;

/// Scopes shown per limit.
const SCOPES_SHOWN: usize = 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Only limits and scopes that have to do with this node: its own, those above it and those below.
    node: Option<String>,
}

#[derive(Serialize)]
struct Page {
    n_live: u32,
    limits: Vec<Shown>,
}

#[derive(Serialize)]
struct Shown {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    class: &'static str,
    unit: &'static str,
    posture: &'static str,
    /// The entry of the file, digit for digit.
    config: Option<Box<RawValue>>,
    amount: Value,
    effective_amount: Value,
    burst: Option<u64>,
    period: Option<String>,
    enforcement: Enforcement,
    /// How many scopes have a counter now.
    scopes_total: u64,
    /// The fullest, fullest first.
    scopes: Vec<Value>,
}

pub async fn list(State(admin): State<Arc<Admin>>, params: Result<Query<Params>, QueryRejection>) -> Answer {
    let node = query::params(params)?.node.map(|text| query::node(&text)).transpose()?;
    let shared = admin.shared().clone();
    // A million scopes take a while to walk.
    let page = reading(move || page(&shared, node.as_ref(), now())).await?;
    ok(&page)
}

fn page(shared: &Shared, node: Option<&Node>, now: Now) -> Page {
    let (rules, n_live) = (shared.rules.load_full(), shared.n_live(now.mono));
    let configured = configured(&serde_json::to_string(&rules.config).unwrap_or_default());
    let limits: Vec<&Arc<Limit>> =
        rules.limits.limits.iter().filter(|limit| node.is_none_or(|node| concerns(limit, node))).collect();
    let mut busiest: Vec<Busiest> = limits.iter().map(|_| Busiest::default()).collect();
    let index: HashMap<&str, usize> =
        limits.iter().enumerate().map(|(index, limit)| (limit.identity.as_str(), index)).collect();
    shared.registry.each(|key, counter| {
        // A counter of a limit that a reload removed lives on until it is swept.
        let Some(at) = index.get(key.identity.as_str()).copied() else { return };
        if node.is_some_and(|node| !key.node.is_within(node) && !node.is_within(&key.node)) {
            return;
        }
        if let (Some(limit), Some(busiest)) = (limits.get(at), busiest.get_mut(at)) {
            let armed = Armed::new((*limit).clone(), key.node.clone(), counter.clone());
            busiest.offer(fullness(&armed.limit, &armed.counter, n_live, now), armed);
        }
    });
    let shown = limits.into_iter().zip(busiest).map(|(limit, busiest)| Shown {
        kind: limit.kind.as_str(),
        class: limit.kind.class().as_str(),
        unit: limit.kind.unit(),
        posture: limit.posture.as_str(),
        config: configured.get(&*limit.id).cloned(),
        amount: me::amount(limit.kind, limit.amount),
        effective_amount: me::amount(limit.kind, limit.effective_amount(n_live)),
        burst: limit.effective_rate(n_live).map(|rate| rate.burst()),
        period: limit.period.as_ref().map(me::period_text),
        enforcement: enforcement(limit, n_live, shared.coordination.is_some(), me::suspension(shared, limit, now)),
        scopes_total: busiest.seen,
        scopes: busiest.top.iter().map(|(_, armed)| me::standing(shared, armed, now)).collect(),
        id: limit.id.to_string(),
    });
    Page { n_live, limits: shown.collect() }
}

/// Each limit in force, and how full its fullest scope is. Walks all counters.
pub(super) fn fullest(shared: &Shared, now: Now) -> Vec<(Arc<str>, f64)> {
    let (n_live, _) = shared.fleet_seen(now.mono);
    let rules = shared.rules.load_full();
    let mut fullest: Vec<(Arc<str>, f64)> = rules.limits.limits.iter().map(|limit| (limit.id.clone(), 0.0)).collect();
    let index: HashMap<&str, (usize, &Arc<Limit>)> =
        rules.limits.limits.iter().enumerate().map(|(at, limit)| (limit.identity.as_str(), (at, limit))).collect();
    shared.registry.each(|key, counter| {
        let Some((at, limit)) = index.get(key.identity.as_str()).copied() else { return };
        fullest[at].1 = fullest[at].1.max(fullness(limit, counter, n_live, now));
    });
    fullest
}

/// The entries of the file by id. Taken from its text: a float would round an amount.
fn configured(config_json: &str) -> HashMap<String, Box<RawValue>> {
    #[derive(Deserialize)]
    struct File {
        governance: Governance,
    }
    #[derive(Deserialize)]
    struct Governance {
        limits: Vec<Box<RawValue>>,
    }
    #[derive(Deserialize)]
    struct Id {
        id: String,
    }
    let limits = serde_json::from_str(config_json).map(|file: File| file.governance.limits).unwrap_or_default();
    let named = limits.into_iter().filter_map(|limit| {
        let Id { id } = serde_json::from_str(limit.get()).ok()?;
        Some((id, limit))
    });
    named.collect()
}

/// Whether requests of this node, or of one below it, can be asked this limit.
fn concerns(limit: &Limit, node: &Node) -> bool {
    match &limit.attach {
        Attach::Node(at) => at.is_within(node) || node.is_within(at),
        Attach::Level(_) => true,
    }
}

/// How close a scope is to refusing: 0 untouched, 1 and more refuses.
fn fullness(limit: &Limit, counter: &Counter, n_live: u32, now: Now) -> f64 {
    let (used, of) = match counter {
        Counter::Cell(cell) => {
            let Some(rate) = limit.effective_rate(n_live) else { return 0.0 };
            (rate.burst().saturating_sub(cell.peek(&rate, now.mono).remaining), rate.burst())
        }
        Counter::Gauge(gauge) => (gauge.in_flight().into(), limit.effective_amount(n_live)),
        Counter::Meter(meter) => (meter.observed(now.wall), limit.amount),
    };
    used as f64 / of.max(1) as f64 // an order to show, not a verdict: rounding does not matter
}

/// The fullest scopes of one limit.
#[derive(Default)]
struct Busiest {
    seen: u64,
    top: Vec<(f64, Armed)>,
}

impl Busiest {
    fn offer(&mut self, fullness: f64, armed: Armed) {
        self.seen += 1;
        let fuller = |one: f64, node: &Node, other: &(f64, Armed)| {
            one.total_cmp(&other.0).then_with(|| other.1.node.cmp(node)) == Ordering::Greater
        };
        let at = self.top.iter().position(|other| fuller(fullness, &armed.node, other)).unwrap_or(self.top.len());
        if at < SCOPES_SHOWN {
            self.top.insert(at, (fullness, armed));
            self.top.truncate(SCOPES_SHOWN);
        }
    }
}
