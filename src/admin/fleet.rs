//! The roster of replicas, and taking one off it. A node without a shared store is a fleet of one, and says so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use shards::membership::roster::State as Standing;
use shards::units::{Now, WallMs};
use tokio::sync::oneshot;

use super::answer::{Answer, Fault, blocking, ok, parse};
use super::{Admin, By, now};
use crate::coordination::Coordination;
use crate::coordination::fleet::{Command, Dropped, NotRemoved};
use crate::shared::Shared;
use crate::{me, when};

/// What a single node says.
const ALONE: &str = "a fleet of one: no shared-state tier is configured, so this replica knows of no other";
/// What a frozen roster says.
const FROZEN: &str = "the shared store does not answer: states and ages are those of its last answer, and who beat since then \
                      is not known here; shares are not split until it answers";
/// What a roster says that only copies know.
const UNSEEN: &str = "the shared store has not answered since this process started: who is live is not known here, and \
                      shares are not split until it answers";
/// What is said of a replica that was removed although it beats.
const RETURNS: &str = "it was live when it was removed: unless it is stopped, its next heartbeat brings it back, and \
                       everything it burned with it";
/// A purge looks through every scope, 32 a round trip: 100,000 of them in a few seconds.
const DECOMMISSION_WITHIN: Duration = Duration::from_secs(60);
/// A store that lost everything is told again within four seconds where there is little to tell; who asks waits so long.
const REFILLED_WITHIN: Duration = Duration::from_secs(8);
const ASKED_AGAIN_AFTER: Duration = Duration::from_millis(250);

#[derive(Serialize)]
struct Roster {
    /// For people: `1 of 1`.
    summary: String,
    /// How many ways shares are split now; 1 while degraded.
    n_live: u32,
    n_total: u32,
    /// Declared.
    liveness_window_ms: u64,
    /// Measured.
    max_abs_skew_ms: u64,
    /// A frozen snapshot: `as_of` is longer ago than the liveness window, or null.
    degraded: bool,
    /// The store's last answer: states and ages are those of then.
    as_of: Option<String>,
    /// Why `n_live` cannot be relied on.
    suspended: Option<&'static str>,
    note: &'static str,
    replicas: Vec<Replica>,
}

/// One replica as answers name it.
#[derive(Clone, Debug, Serialize)]
pub struct Replica {
    pub id: String,
    source: String,
    stable: bool,
    version: String,
    started_at: String,
    /// From its last heartbeat to `as_of`; null before the store first answered.
    age_ms: Option<u64>,
    pub advertise_url: Option<String>,
    /// What it was at `as_of`; `unknown` before the store first answered.
    pub state: &'static str,
    /// Names its ledger wherever that goes.
    pub ledger_id: Option<String>,
}

/// `GET /tt/api/v1/fleet`.
pub async fn roster(State(admin): State<Arc<Admin>>) -> Answer {
    let (shared, now) = (admin.shared(), now());
    let window = shared.rules.load().config.fleet.liveness_window;
    let replicas = replicas(&admin);
    let n_total = u32::try_from(replicas.len()).unwrap_or(u32::MAX);
    let (n_live, skew_ms, as_of, suspended, note) = match &shared.coordination {
        None => (u32::from(!is_draining(shared)), 0, Some(now.wall), None, ALONE),
        Some(coordination) => {
            let (n_live, reason) = coordination.n_live(now.mono);
            let roster = coordination.fleet.roster.load();
            let as_of = roster.as_of().map(|as_of| WallMs(now.wall.0 - (now.mono.since(as_of) / 1_000_000) as i64));
            let note = match as_of {
                _ if !is_frozen(coordination, now) => "",
                Some(_) => FROZEN,
                None => UNSEEN,
            };
            (n_live, roster.max_abs_skew_ms(), as_of, reason.map(|reason| reason.as_str()), note)
        }
    };
    let degraded = shared.coordination.as_ref().is_some_and(|coordination| is_frozen(coordination, now));
    ok(&Roster {
        summary: format!("{n_live} of {n_total}"),
        n_live,
        n_total,
        liveness_window_ms: u64::try_from(window.as_millis()).unwrap_or(u64::MAX),
        max_abs_skew_ms: skew_ms,
        degraded,
        as_of: as_of.map(when::text),
        suspended,
        note,
        replicas,
    })
}

/// What a replica is on the roster, in a word.
pub fn state(standing: Option<Standing>) -> &'static str {
    standing.map_or("unknown", Standing::as_str)
}

/// Whether the roster is older than the liveness window.
pub fn is_frozen(coordination: &Coordination, now: Now) -> bool {
    coordination.membership.n_live(now.mono).1.is_some()
}

fn is_draining(shared: &Shared) -> bool {
    shared.draining.load(Ordering::Acquire)
}

/// Every replica that is known, this one first.
pub fn replicas(admin: &Admin) -> Vec<Replica> {
    let shared = admin.shared();
    let own = Replica {
        id: shared.replica.name.clone(),
        source: shared.replica.source.as_str().to_owned(),
        stable: shared.replica.is_stable(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: when::text(WallMs(shared.started_wall_ms)),
        age_ms: Some(0), // it is the one that answers
        advertise_url: admin.control.secrets.advertise_url.clone(),
        state: if is_draining(shared) { Standing::Drained } else { Standing::Live }.as_str(),
        ledger_id: shared.coordination.as_ref().map(|coordination| coordination.fleet.card.ledger_id.clone()),
    };
    let Some(coordination) = &shared.coordination else { return vec![own] };
    let roster = coordination.fleet.roster.load();
    let others = roster.entries().filter(|entry| entry.id != own.id).map(|entry| Replica {
        id: entry.id.clone(),
        source: entry.card.source.clone(),
        stable: entry.card.stable,
        version: entry.card.version.clone(),
        started_at: when::text(WallMs(entry.card.started_at_ms)),
        age_ms: roster.age_ms(entry),
        advertise_url: entry.card.advertise_url.clone(),
        state: state(roster.state(entry)),
        ledger_id: Some(entry.card.ledger_id.clone()),
    });
    std::iter::once(own.clone()).chain(others).collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Decommission {
    replica: String,
    #[serde(default)]
    force: bool,
}

/// `POST /tt/api/v1/fleet/decommission`. Audited before it is answered. The answer says what burn no longer counts.
pub async fn decommission(State(admin): State<Arc<Admin>>, Extension(by): By, body: Bytes) -> Answer {
    let ask: Decommission = parse(&body, r#"{"replica": "NAME"}"#)?;
    let itself = ask.replica == admin.shared().replica.name;
    let Some(coordination) = admin.shared().coordination.clone() else {
        let message = if itself {
            "this is a fleet of one, and the replica to remove is the one that answers"
        } else {
            "this is a fleet of one: no shared-state tier is configured, so there is no roster to remove a replica from"
        };
        let remedy = "ask a replica that has shared_state configured; a single node is removed by stopping it";
        return Err(Fault::new(StatusCode::CONFLICT, "no_fleet", message, remedy));
    };
    if itself {
        let message = "the replica to remove is the one that answers";
        let remedy = "stop it, then ask another replica to remove it";
        return Err(Fault::new(StatusCode::CONFLICT, "replica_is_live", message, remedy));
    }
    let began = tokio::time::Instant::now();
    let outcome = loop {
        let outcome = remove(&coordination, &ask).await?;
        if !matches!(outcome, Err(NotRemoved::Refilling)) || began.elapsed() >= REFILLED_WITHIN {
            break outcome;
        }
        tokio::time::sleep(ASKED_AGAIN_AFTER).await;
    };
    let dropped = outcome.as_ref().map(|dropped| shown(&admin, dropped)).unwrap_or_default();
    let word = match &outcome {
        Ok(_) => "done",
        Err(NotRemoved::Live | NotRemoved::Unknown) => "refused",
        Err(NotRemoved::Refilling | NotRemoved::Unreachable(_)) => "failed",
    };
    let state = match &outcome {
        Ok(dropped) => dropped.state,
        Err(NotRemoved::Live) => Some(Standing::Live),
        Err(NotRemoved::Unknown | NotRemoved::Refilling | NotRemoved::Unreachable(_)) => None,
    };
    let note = (state == Some(Standing::Live)).then_some(RETURNS);
    let state = state.map(Standing::as_str);
    let what = json!({"replica": ask.replica, "force": ask.force, "state": state, "dropped": dropped});
    let (who, audited) = (by.who(), admin.clone());
    let recorded = blocking(move || audited.audit.record(now().wall, &who, "fleet.decommission", &what, word)).await?;
    match outcome {
        Ok(_) => {
            match note {
                None => tracing::info!(replica = ask.replica, force = ask.force, "replica decommissioned"),
                Some(note) => tracing::warn!(replica = ask.replica, "replica decommissioned; {note}"),
            }
            recorded.map_err(|error| {
                Fault::storage(format!("the replica is removed, but that could not be audited: {error}"))
            })?;
            ok(&json!({"replica": ask.replica, "removed": true, "state": state, "note": note, "dropped": dropped}))
        }
        Err(NotRemoved::Live) => Err(Fault::new(
            StatusCode::CONFLICT,
            "replica_is_live",
            format!("{} is live: it beat within the liveness window", ask.replica),
            "stop it first, or use force (`--force`, `\"force\": true`); one that still runs comes back with its next heartbeat",
        )),
        Err(NotRemoved::Unknown) => Err(Fault::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("there is no replica {:?} on the roster, and no burn is published under that name", ask.replica),
            "see /tt/api/v1/fleet for the names",
        )),
        Err(NotRemoved::Refilling) => Err(Fault::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "store_refilling",
            "Redis lost its data a moment ago and is being told again: what the replica burned is not all known there yet",
            "nothing was changed; try again in a few seconds",
        )),
        Err(NotRemoved::Unreachable(why)) => Err(Fault::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "store_unreachable",
            format!("the shared store was not changed, or not wholly: {why}"),
            "try again when it answers; a removal that was cut short is finished by the next one",
        )),
    }
}

/// Asks the coordinator to remove it.
async fn remove(coordination: &Coordination, ask: &Decommission) -> Result<Result<Dropped, NotRemoved>, Fault> {
    let silent = || {
        let message = "the coordinator does not answer";
        Fault::new(StatusCode::SERVICE_UNAVAILABLE, "store_unreachable", message, "try again in a moment")
    };
    let (answer, answered) = oneshot::channel();
    let command = Command::Decommission { replica: ask.replica.clone(), force: ask.force, answer };
    if !coordination.fleet.ask(command) {
        return Err(silent());
    }
    let outcome = tokio::time::timeout(DECOMMISSION_WITHIN, answered).await.map_err(|_| silent())?;
    outcome.map_err(|_| silent())
}

/// Burn that no longer counts: one line per limit and node; scopes no counter here stands for are summed up by number.
fn shown(admin: &Admin, dropped: &Dropped) -> Vec<Value> {
    let shared = admin.shared();
    let (rules, terms) = (shared.rules.load(), &shared.coordination.as_ref().map(|c| c.fleet.convergence.clone()));
    let mut lines: BTreeMap<(String, String, String), Value> = BTreeMap::new();
    for (scope, calendar, period, cell) in &dropped.cells {
        let key = terms.as_ref().and_then(|convergence| convergence.terms.key_of(*scope));
        let limit =
            key.as_ref().and_then(|key| rules.limits.limits.iter().find(|limit| limit.identity == key.identity));
        let line = match (&key, limit) {
            (Some(key), Some(limit)) => json!({
                "limit_id": &*limit.id,
                "limit_type": limit.kind.as_str(),
                "node": key.node.as_str(),
                "burn": me::amount(limit.kind, cell.burn),
            }),
            // Of a limit or a node this replica has not met: the number is nano-USD, tokens or requests.
            _ => json!({"limit_id": null, "limit_type": null, "node": null, "burn": cell.burn}),
        };
        let mut line = line;
        line["scope"] = json!(scope.to_string());
        line["rows"] = json!(cell.rows);
        line["period"] = json!(calendar.as_str());
        line["period_start"] = json!(when::text(period.start));
        line["ledger_id"] = json!(&*cell.ledger);
        lines.insert((scope.to_string(), when::text(period.start), cell.ledger.to_string()), line);
    }
    lines.into_values().collect()
}
