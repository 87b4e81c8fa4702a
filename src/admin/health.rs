//! Is the process up, is it ready, and which guarantees does it hold right now.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::State as Extracted;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use shards::coordinate::breaker::State;
use shards::coordinate::numbers::BREAKER_FAILURES;
use shards::limit::{Limit, LimitIdentity, LimitType};
use shards::refusal::bounds::{IDENTITY_STALE, outage_note};
use shards::refusal::go_duration;
use shards::suspend::{IDENTITY, Reason};
use tokio::sync::oneshot;

use super::answer::{Answer, ok, with_status};
use super::{Admin, fleet, now};
use crate::config::RequireKey;
use crate::coordination::fleet::Command;
use crate::coordination::{Coordination, LastTrouble};
use crate::identity_thread::Times;
use crate::keys::{KeyStore, Standing};
use crate::shared::Shared;
use crate::{last_stop, me, when};

/// What a replica without a coordination tier says of itself.
const AIR_GAPPED: &str = "air-gapped: no shared-state tier configured — this is a single-node instance; distributed \
                          limits, cross-replica convergence, and reconcile are not active";

/// What a replica with one says.
const COORDINATED: &str = "shared state is configured: what it holds together is exact or converges while it answers; \
                           `suspensions` lists what is not held right now";
/// A page does not wait for a coordinator that waits for a store.
const PEERS_WITHIN: Duration = Duration::from_millis(1_500);

/// What a replica says of itself whose keys alone are shared.
const KEYS_SHARED: &str = "virtual keys are followed in Postgres; limits are enforced per replica";

/// A key file that was not read for this long is called stale.
const FILE_STALE_AFTER_MS: i64 = Times::FIXED.stale().as_millis() as i64;

#[derive(Serialize)]
struct Status {
    status: &'static str,
}

/// The process answers.
pub async fn live() -> Answer {
    ok(&Status { status: "live" })
}

/// Whether new requests should come here. A file of keys is read before any port opens; keys that are followed must have
/// been read once if nobody is served without one.
pub async fn ready(Extracted(admin): Extracted<Arc<Admin>>) -> Answer {
    let shared = admin.shared();
    if shared.draining.load(Ordering::Acquire) {
        return with_status(StatusCode::SERVICE_UNAVAILABLE, &Status { status: "draining" });
    }
    if shared.cores.iter().any(|core| core.driver.get().is_none()) {
        return with_status(StatusCode::SERVICE_UNAVAILABLE, &Status { status: "starting" });
    }
    let is_required = shared.rules.load().config.governance.keys.require_key == RequireKey::Required;
    if is_required && shared.keys.standing(now().mono) == Standing::NeverSeeded {
        return with_status(StatusCode::SERVICE_UNAVAILABLE, &Status { status: "identity_unavailable" });
    }
    ok(&Status { status: "ready" })
}

#[derive(Serialize)]
struct Health<'a> {
    kind: &'static str,
    capability: Capability,
    replica: &'a str,
    suspensions: Vec<Suspension>,
    /// One entry per limit and peer; a node alone exchanges nothing.
    convergence: Vec<Peer>,
    /// How the exchange of burn stands; null on a node alone, and where no limit needs it.
    exchange: Option<Exchange>,
    identity: Identity,
    /// Null without a store to break from.
    breaker: Option<Breaker>,
    ledger: Ledger,
    cores: Vec<Core<'a>>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Capability {
    shared_state_enabled: bool,
    tiers: Vec<&'static str>,
    note: &'static str,
}

/// What one peer's ledger published for the scopes of one limit.
#[derive(Serialize)]
struct Peer {
    /// Null: a limit or nodes this replica has not met.
    limit_id: Option<String>,
    limit_type: Option<&'static str>,
    /// Who published it last, and what that replica is on the roster: its heartbeats decide, not this burn. `unknown`: the
    /// roster has nobody of that name, or nothing but a copy knows it.
    replica: String,
    state: &'static str,
    ledger_id: String,
    /// Nothing was published for ten minutes; it counts all the same until its period ends.
    departed: bool,
    scopes: u64,
    /// In the limit's unit.
    burn: Option<Value>,
    rows: u64,
    /// Since the youngest of these scopes was published. One that does not change is published again about once a minute.
    published_age_ms: u64,
}

#[derive(Serialize)]
struct Exchange {
    /// Since the last complete round; null: none since boot.
    age_ms: Option<u64>,
    suspended: Option<&'static str>,
    /// What the store said last instead of an answer, or what became of the way there; null while exchanges succeed.
    trouble: Option<LastError>,
    /// Own rows that peers cannot know of yet.
    unsent_rows: u64,
    /// Scopes peers have burned in that no counter here stands for.
    unmet_scopes: usize,
}

/// Whether Redis is asked for admissions.
#[derive(Serialize)]
struct Breaker {
    state: &'static str,
    consecutive_failures: u32,
    /// What the last call met, or while open the last attempt to connect; null after a success.
    last_failure: Option<&'static str>,
    /// In the words of the server or of the system, where that failure had any; null after a success.
    last_error: Option<LastError>,
    /// Until a call may find out whether Redis is back; null while closed.
    next_probe_ms: Option<u64>,
    /// Replies that came after their verdict was given, since boot.
    late_replies: u64,
}

#[derive(Serialize)]
struct LastError {
    error: String,
    at: String,
}

impl LastError {
    fn of(trouble: &LastTrouble) -> Option<Self> {
        trouble.get().map(|trouble| LastError { error: trouble.error.clone(), at: when::text(trouble.at) })
    }
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
    /// A revoked key is served no longer than this, wherever it was revoked.
    revocation_bound: String,
    /// Keys that were not refreshed for this long are called stale.
    staleness_bound: String,
    stale: bool,
    seeded: bool,
    /// Null when there are no keys at all yet.
    last_refresh: Option<String>,
    /// Why the store is not followed right now.
    trouble: Option<StoreTrouble>,
}

#[derive(Serialize)]
struct StoreTrouble {
    error: String,
    since: String,
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
pub async fn governance(Extracted(admin): Extracted<Arc<Admin>>) -> Answer {
    let shared = admin.shared();
    let (convergence, exchange) = match &shared.coordination {
        None => (Vec::new(), None),
        Some(coordination) => (peers(shared, coordination).await, exchange(coordination)),
    };
    ok(&Health {
        kind: "governance/distributed-health",
        capability: capability(shared),
        replica: &shared.replica.name,
        suspensions: suspensions(shared),
        convergence,
        exchange,
        identity: identity(shared),
        breaker: shared.coordination.as_deref().map(breaker),
        ledger: ledger(shared),
        cores: cores(shared),
        warnings: warnings(shared),
    })
}

/// Of the config, and of the store.
fn warnings(shared: &Shared) -> Vec<String> {
    let coordination = shared.coordination.as_ref();
    let store = coordination.and_then(|coordination| coordination.fleet.eviction_warning());
    shared.rules.load().warnings.iter().cloned().chain(store).collect()
}

/// Peers' cells by limit and ledger. Empty when the coordinator is too busy to say.
async fn peers(shared: &Shared, coordination: &Coordination) -> Vec<Peer> {
    let (answer, answered) = oneshot::channel();
    if !coordination.fleet.ask(Command::Peers { answer }) {
        return Vec::new();
    }
    let shown = tokio::time::timeout(PEERS_WITHIN, answered).await.ok().and_then(Result::ok).unwrap_or_default();
    let rules = shared.rules.load();
    let now = now();
    let limits: HashMap<&LimitIdentity, &Arc<Limit>> =
        rules.limits.limits.iter().map(|limit| (&limit.identity, limit)).collect();
    // By limit id and ledger: the limit's type, the burn so far, and the rest.
    type Sums = BTreeMap<(Option<String>, String), (Option<LimitType>, u64, Peer)>;
    let mut sums = Sums::new();
    for peer in shown.into_iter().filter(|peer| peer.period.contains(now.wall)) {
        let key = coordination.fleet.convergence.terms.key_of(peer.scope);
        let limit = key.and_then(|key| limits.get(&key.identity).copied());
        let id = limit.map(|limit| limit.id.to_string());
        let (_, burn, sum) = sums.entry((id.clone(), peer.cell.ledger.to_string())).or_insert_with(|| {
            let sum = Peer {
                limit_id: id,
                limit_type: limit.map(|limit| limit.kind.as_str()),
                replica: peer.cell.replica.to_string(),
                state: "unknown",
                ledger_id: peer.cell.ledger.to_string(),
                departed: true,
                scopes: 0,
                burn: None,
                rows: 0,
                published_age_ms: u64::MAX,
            };
            (limit.map(|limit| limit.kind), 0, sum)
        });
        *burn = burn.saturating_add(peer.cell.burn);
        sum.scopes += 1;
        sum.rows = sum.rows.saturating_add(peer.cell.rows);
        sum.published_age_ms = sum.published_age_ms.min(peer.age_us / 1_000);
        if !peer.is_departed() {
            sum.departed = false;
            sum.replica = peer.cell.replica.to_string(); // the newest name of a ledger that was renamed
        }
    }
    let roster = coordination.fleet.roster.load();
    let state = |replica: &str| fleet::state(roster.find(replica).and_then(|entry| roster.state(entry)));
    let peers = sums.into_values().map(|(kind, burn, peer)| Peer {
        burn: kind.map(|kind| me::amount(kind, burn)),
        state: state(&peer.replica),
        ..peer
    });
    peers.collect()
}

fn exchange(coordination: &Coordination) -> Option<Exchange> {
    let (convergence, now) = (&coordination.fleet.convergence, now());
    convergence.is_attached().then(|| Exchange {
        age_ms: convergence.flushed().map(|flushed| now.mono.since(flushed) / 1_000_000),
        suspended: coordination.fleet.burn_suspended(now.mono).map(|reason| reason.as_str()),
        trouble: LastError::of(&coordination.exchange_trouble),
        unsent_rows: convergence.unsent_rows(),
        unmet_scopes: convergence.terms.unclaimed(),
    })
}

fn capability(shared: &Shared) -> Capability {
    let (limits, keys) = (shared.coordination.is_some(), shared.keys.followed().is_some());
    let tiers = [("redis", limits), ("postgres", keys)].into_iter().filter_map(|(tier, is_on)| is_on.then_some(tier));
    let note = match (limits, keys) {
        (true, _) => COORDINATED,
        (false, true) => KEYS_SHARED,
        (false, false) => AIR_GAPPED,
    };
    Capability { shared_state_enabled: limits || keys, tiers: tiers.collect(), note }
}

fn breaker(coordination: &Coordination) -> Breaker {
    let state = coordination.breaker.state();
    let now_ms = now().mono.0 / 1_000_000;
    let (consecutive_failures, next_probe_ms) = match state {
        State::Closed { failures } => (failures, None),
        State::Open { until_ms } => (BREAKER_FAILURES, Some(until_ms.saturating_sub(now_ms))),
        State::HalfOpen { .. } => (BREAKER_FAILURES, Some(0)),
    };
    Breaker {
        state: state.as_str(),
        consecutive_failures,
        last_failure: coordination.breaker.last_failure().map(Reason::as_str),
        last_error: coordination.breaker.last_failure().and_then(|_| LastError::of(&coordination.admissions_trouble)),
        next_probe_ms,
        late_replies: coordination.late_reply_count(),
    }
}

/// Every limit whose guarantee is not held right now, and the keys when they are not what the store says.
fn suspensions(shared: &Shared) -> Vec<Suspension> {
    let now = now();
    let rules = shared.rules.load();
    let suspended = rules.limits.limits.iter().filter_map(|limit| {
        let reason = me::suspension(shared, limit, now)?;
        Some(Suspension {
            limit_id: limit.id.to_string(),
            limit_type: limit.kind.as_str(),
            reason: reason.as_str(),
            bound: outage_note(limit.kind.class(), reason),
        })
    });
    let identity = (shared.keys.standing(now.mono) != Standing::Fresh).then(|| Suspension {
        limit_id: IDENTITY.to_owned(),
        limit_type: "identity",
        reason: Reason::IdentityStale.as_str(),
        bound: IDENTITY_STALE,
    });
    identity.into_iter().chain(suspended).collect()
}

/// A revoke through this replica acts at once. One on the command line beside an embedded key file acts within half a
/// second, one on another replica at once or within the bound; that holds as long as file or store can be read.
fn identity(shared: &Shared) -> Identity {
    let now = now();
    let refreshed = shared.keys.refreshed();
    let standing = shared.keys.standing(now.mono);
    let (store, stale) = match &shared.keys {
        KeyStore::File(_) => {
            let age_ms = now.wall.0.saturating_sub(refreshed.map_or(0, |at| at.0));
            ("file", age_ms > FILE_STALE_AFTER_MS)
        }
        KeyStore::Postgres(_) => ("postgres", standing != Standing::Fresh),
    };
    let trouble = shared.keys.followed().and_then(|followed| followed.trouble());
    Identity {
        store,
        revocation_bound: duration_text(Times::FIXED.revocation_bound),
        staleness_bound: duration_text(Times::FIXED.stale()),
        stale,
        seeded: standing != Standing::NeverSeeded,
        last_refresh: refreshed.map(when::text),
        trouble: trouble.map(|trouble| StoreTrouble { error: trouble.error, since: when::text(trouble.since) }),
    }
}

/// `1m0s`.
fn duration_text(duration: std::time::Duration) -> String {
    let mut text = Vec::new();
    go_duration(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), &mut text);
    String::from_utf8_lossy(&text).into_owned()
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
