//! Is the process up, is it ready, and which guarantees does it hold right now.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use shards::refusal::bounds::outage_note;

use super::answer::{Answer, ok, with_status};
use super::{Admin, now};
use crate::shared::Shared;
use crate::{last_stop, me, when};

/// What a replica without a coordination tier says of itself.
const AIR_GAPPED: &str = "air-gapped: no shared-state tier configured — this is a single-node instance; distributed \
                          limits, cross-replica convergence, and reconcile are not active";

/// A revoked key is served no longer than this, wherever it was revoked.
const REVOCATION_BOUND: &str = "30s";
/// Keys that were not refreshed for this long are called stale: two revocation bounds.
const STALENESS_BOUND: &str = "1m0s";
const STALE_AFTER_MS: i64 = 60_000;

#[derive(Serialize)]
struct Status {
    status: &'static str,
}

/// The process answers.
pub async fn live() -> Answer {
    ok(&Status { status: "live" })
}

/// Whether new requests should come here. A file of keys is read before any port opens, so identity is seeded.
pub async fn ready(State(admin): State<Arc<Admin>>) -> Answer {
    let shared = admin.shared();
    if shared.draining.load(Ordering::Acquire) {
        return with_status(StatusCode::SERVICE_UNAVAILABLE, &Status { status: "draining" });
    }
    if shared.cores.iter().any(|core| core.driver.get().is_none()) {
        return with_status(StatusCode::SERVICE_UNAVAILABLE, &Status { status: "starting" });
    }
    ok(&Status { status: "ready" })
}

#[derive(Serialize)]
struct Health<'a> {
    kind: &'static str,
    capability: Capability,
    replica: &'a str,
    suspensions: Vec<Suspension>,
    /// One entry per scope and peer; a node alone exchanges nothing.
    convergence: [(); 0],
    identity: Identity,
    /// Null: there is no store to break from.
    breaker: Option<()>,
    ledger: Ledger,
    cores: Vec<Core<'a>>,
    warnings: &'a [String],
}

#[derive(Serialize)]
struct Capability {
    shared_state_enabled: bool,
    tiers: [&'static str; 0],
    note: &'static str,
}

#[derive(Serialize)]
struct Suspension {
    limit_id: String,
    limit_type: &'static str,
    reason: &'static str,
    /// What is left of the guarantee.
    bound: &'static str,
}

#[derive(Serialize)]
struct Identity {
    store: &'static str,
    revocation_bound: &'static str,
    staleness_bound: &'static str,
    stale: bool,
    seeded: bool,
    last_refresh: String,
}

#[derive(Serialize)]
struct Ledger {
    state: &'static str,
    trouble: Option<Trouble>,
    waiting_rows: u64,
    dropped_rows: u64,
    tee_lag_rows: u64,
    written_rows: u64,
    errors: u64,
    last_stop: LastStop,
}

/// How the process before this one ended.
#[derive(Serialize)]
struct LastStop {
    clean: bool,
    /// When it had started; null after a clean stop.
    started: Option<String>,
    /// What can have happened; null after a clean stop.
    note: Option<&'static str>,
}

#[derive(Serialize)]
struct Trouble {
    error: String,
    since: String,
    disk_full: bool,
}

#[derive(Serialize)]
struct Core<'a> {
    index: usize,
    driver: Option<&'static str>,
    setup: Option<&'static str>,
    /// Set-ups that the kernel refused before this one, with its reasons.
    refused_setups: &'a [String],
    connections: i64,
    inflight: i64,
    ring_lag_rows: u64,
}

/// `GET /tt/api/v1/governance/health`.
pub async fn governance(State(admin): State<Arc<Admin>>) -> Answer {
    let shared = admin.shared();
    ok(&Health {
        kind: "governance/distributed-health",
        capability: Capability { shared_state_enabled: false, tiers: [], note: AIR_GAPPED },
        replica: &shared.replica.name,
        suspensions: suspensions(shared),
        convergence: [],
        identity: identity(shared),
        breaker: None,
        ledger: ledger(shared),
        cores: cores(shared),
        warnings: &shared.rules.load().warnings,
    })
}

/// Every limit whose guarantee is not held right now.
fn suspensions(shared: &Shared) -> Vec<Suspension> {
    let now = now();
    let rules = shared.rules.load();
    let suspended = rules.limits.limits.iter().filter_map(|limit| {
        let reason = me::suspension(shared, limit, now)?;
        Some(Suspension {
            limit_id: limit.id.to_string(),
            limit_type: limit.kind.as_str(),
            reason: reason.as_str(),
            bound: outage_note(reason),
        })
    });
    suspended.collect()
}

/// The embedded key file. A revoke through this replica acts at once and one on the command line within half a second,
/// so the bounds hold as long as the file can be read.
fn identity(shared: &Shared) -> Identity {
    let refreshed = shared.keys.refreshed();
    let age_ms = now().wall.0.saturating_sub(refreshed.0);
    Identity {
        store: "file",
        revocation_bound: REVOCATION_BOUND,
        staleness_bound: STALENESS_BOUND,
        stale: age_ms > STALE_AFTER_MS,
        seeded: true,
        last_refresh: when::text(refreshed),
    }
}

fn ledger(shared: &Shared) -> Ledger {
    let trouble = shared.ledger.trouble();
    Ledger {
        state: match &trouble {
            None => "healthy",
            Some(trouble) if trouble.disk_full => "disk_full",
            Some(_) => "failing",
        },
        trouble: trouble.map(|trouble| Trouble {
            error: trouble.error,
            since: me::instant(trouble.since_ms),
            disk_full: trouble.disk_full,
        }),
        waiting_rows: shared.ledger.waiting_rows(),
        dropped_rows: shared.dropped_rows(),
        tee_lag_rows: shared.tee_lag_rows(),
        written_rows: shared.ledger.written_rows(),
        errors: shared.ledger.errors(),
        last_stop: match shared.ledger.last_stop() {
            last_stop::LastStop::Clean => LastStop { clean: true, started: None, note: None },
            last_stop::LastStop::Unclean { started } => {
                LastStop { clean: false, started: Some(started.clone()), note: Some(last_stop::MEANING) }
            }
        },
    }
}

fn cores(shared: &Shared) -> Vec<Core<'_>> {
    let cores = shared.cores.iter().enumerate().map(|(index, core)| {
        let driver = core.driver.get();
        Core {
            index,
            driver: driver.map(|driver| driver.kind.as_str()),
            setup: driver.map(|driver| driver.setup),
            refused_setups: driver.map_or(&[], |driver| &driver.refused),
            connections: core.metrics.connections(),
            inflight: core.metrics.inflight(),
            ring_lag_rows: core.rows.lag(),
        }
    });
    cores.collect()
}
