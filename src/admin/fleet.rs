//! The roster of replicas. A node without a coordination tier is a fleet of one, and says so.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use shards::units::WallMs;

use super::answer::{Answer, Fault, ok, parse};
use super::{Admin, now};
use crate::when;

#[derive(Serialize)]
struct Roster<'a> {
    /// For people: `1 of 1`.
    summary: String,
    n_live: u32,
    n_total: u32,
    /// Declared.
    liveness_window_ms: u64,
    /// Measured.
    max_abs_skew_ms: u64,
    /// A frozen snapshot: what was true at `as_of`.
    degraded: bool,
    as_of: String,
    note: &'static str,
    replicas: Vec<Replica<'a>>,
}

#[derive(Serialize)]
struct Replica<'a> {
    id: &'a str,
    source: &'static str,
    stable: bool,
    version: &'static str,
    started_at: String,
    age_ms: u64,
    advertise_url: Option<&'a str>,
    state: &'static str,
}

/// `GET /tt/api/v1/fleet`.
pub async fn roster(State(admin): State<Arc<Admin>>) -> Answer {
    let shared = admin.shared();
    let window = shared.rules.load().config.fleet.liveness_window;
    let is_draining = shared.draining.load(Ordering::Acquire);
    let (n_live, n_total) = (u32::from(!is_draining), 1);
    ok(&Roster {
        summary: format!("{n_live} of {n_total}"),
        n_live,
        n_total,
        liveness_window_ms: u64::try_from(window.as_millis()).unwrap_or(u64::MAX),
        max_abs_skew_ms: 0, // one clock agrees with itself
        degraded: false,
        as_of: when::text(now().wall),
        note: "a fleet of one: no shared-state tier is configured, so this replica knows of no other",
        replicas: vec![Replica {
            id: &shared.replica.name,
            source: shared.replica.source.as_str(),
            stable: shared.replica.is_stable(),
            version: env!("CARGO_PKG_VERSION"),
            started_at: when::text(WallMs(shared.started_wall_ms)),
            age_ms: 0, // it is the one that answers
            advertise_url: admin.control.secrets.advertise_url.as_deref(),
            state: if is_draining { "drained" } else { "live" },
        }],
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Decommission {
    replica: String,
    #[serde(default)]
    #[expect(dead_code, reason = "part of the request; here no replica can be removed, by force or otherwise")]
    force: bool,
}

/// `POST /tt/api/v1/fleet/decommission`: there is nobody to remove.
pub async fn decommission(State(admin): State<Arc<Admin>>, body: Bytes) -> Answer {
    let ask: Decommission = parse(&body, r#"{"replica": "NAME"}"#)?;
    let message = if ask.replica == admin.shared().replica.name {
        "this is a fleet of one, and the replica to remove is the one that answers"
    } else {
        "this is a fleet of one: no shared-state tier is configured, so there is no roster to remove a replica from"
    };
    let remedy = "ask a replica that has shared_state configured; a single node is removed by stopping it";
    Err(Fault::new(StatusCode::CONFLICT, "no_fleet", message, remedy))
}
