//! How exact each limit is, in the words we publish: on refusals, on `/tt/v1/me` and on the limits page.
//!
//! Decides the wording and which wording holds in which state. The state itself comes from whoever watches the store.

use serde::Serialize;

use crate::limit::{Class, Limit, LimitType, Store};
use crate::suspend::Reason;

/// `store: local`, and LedgerSettled limits of a replica without Redis.
pub const LOCAL: &str = "per-replica only: fleet ≤ N×limit";
/// `store: redis`.
pub const REDIS: &str = "exact; ≤ N×limit during store outage";
/// `store: redis` while its verdicts come from local cells.
pub const REDIS_SUSPENDED: &str = "suspended: fleet ≤ N×limit until the coordination store recovers";
/// `store: share` on rpm and tpm.
pub const SHARE: &str = "fleet ≤ N×ceil(limit/N_live) ≈ limit (over-admission ≤ N−1 from ÷N rounding, + joiners×share \
                         per liveness window on scale-up); under-service under LB skew";
/// `store: share` on concurrency.
pub const SHARE_CONCURRENCY: &str = "per-replica cap = ceil(C/N_live); fleet in-flight ≤ N×ceil(C/N_live) ≈ C \
                                     (over-admission ≤ N−1 from ÷N rounding)";
/// `store: share` without a trusted membership.
pub const SHARE_STALE: &str =
    "membership_stale: N decayed to self — fleet ≤ N×limit until the coordination store recovers";
/// LedgerSettled limits of a replica that exchanges burn with its peers.
pub const CONVERGED: &str = "fleet ≤ limit + what is in flight + peers' burn since their last publication";
/// The same, with nothing fresh from peers.
pub const CONVERGENCE_STALE: &str =
    "convergence_stale: peers' newer burn is missing — fleet ≤ N×limit until the coordination store recovers";
/// The same, with nothing from peers at all.
pub const NEVER_SYNCED: &str =
    "never_synced: peers' burn is missing since boot — fleet ≤ N×limit until the coordination store answers";
/// LedgerSettled limits while meters are stale.
pub const METER_STALE: &str = "meter_stale: not checked until burn is published again — no bound holds meanwhile";
/// Keys older than they may be.
pub const IDENTITY_STALE: &str = "identity_stale: a key revoked elsewhere may still be served until keys are refreshed";
/// LedgerSettled limits while two processes overwrite each other's published burn.
pub const REPLICA_ID_CONFLICT: &str =
    "replica_id_conflict: two processes publish under one id — fleet ≤ limit + the burn of one of them";
/// `store: share` meanwhile: the same two beat under one name.
pub const SHARE_CONFLICT: &str =
    "replica_id_conflict: two processes count as one of N_live — fleet ≤ limit + the share of one of them";

/// Burn is exchanged twice a second; peers know of it within two. An exchange older than this is late, and a refusal says so.
pub const EXCHANGE_OVERDUE_MS: u64 = 2_000;

/// Whether the refusal rests on an estimate or on numbers that lag. A suspended guarantee does not make it so: the local
/// cell holds the full amount and has counted along, so what it refuses the fleet's counter would refuse too. What is
/// lost meanwhile is that the others may admit as much again, and that is what the note says.
pub fn is_approximate(kind: LimitType) -> bool {
    matches!(kind.class(), Class::LedgerSettled | Class::ReserveReconcile)
}

/// What a LedgerSettled number lags behind; `None` for the other classes, which lag behind nothing.
pub fn lag_note(kind: LimitType) -> Option<&'static str> {
    match kind {
        LimitType::BudgetUsd => {
            Some("spend from in-flight and streaming requests admitted before this refusal may not yet be reflected")
        }
        LimitType::QuotaTokens => {
            Some("tokens of in-flight and streaming requests admitted before this refusal may not yet be reflected")
        }
        LimitType::QuotaRequests => {
            Some("requests admitted before this refusal and still in flight may not yet be reflected")
        }
        LimitType::Rpm | LimitType::Tpm | LimitType::Concurrency => None,
    }
}

/// What the guarantee of a limit is worth while it is suspended, in terms of what its class loses.
pub fn outage_note(class: Class, reason: Reason) -> &'static str {
    match reason {
        Reason::RedisDeadlineExceeded
        | Reason::RedisBreakerOpen
        | Reason::RedisEvalError
        | Reason::RedisReplyMalformed => REDIS_SUSPENDED,
        Reason::MembershipStale => SHARE_STALE,
        Reason::ConvergenceStale => CONVERGENCE_STALE,
        Reason::NeverSynced => NEVER_SYNCED,
        Reason::MeterStale => METER_STALE,
        Reason::IdentityStale => IDENTITY_STALE,
        Reason::ReplicaIdConflict if class == Class::LedgerSettled => REPLICA_ID_CONFLICT,
        Reason::ReplicaIdConflict => SHARE_CONFLICT,
    }
}

/// The `enforcement` block of one limit as it holds right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Enforcement {
    /// `per-replica`, `exact-fleet`, `share` or `converging`.
    pub mode: &'static str,
    /// The bound that holds now: the widened one while suspended.
    pub bound: &'static str,
    pub live: Live,
}

/// What the bound depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Live {
    /// Replicas the amount is split over; null unless `store: share`, which alone splits it.
    pub n_live: Option<u32>,
    /// Why the guarantee is not held; null when it is.
    pub suspended: Option<&'static str>,
}

/// `converges`: burn is exchanged through Redis. `suspended`: why this limit's guarantee is not held right now.
pub fn enforcement(limit: &Limit, n_live: u32, converges: bool, suspended: Option<Reason>) -> Enforcement {
    let (mode, healthy) = match (limit.kind.class(), limit.store) {
        (Class::LedgerSettled, _) if converges => ("converging", CONVERGED),
        (Class::LedgerSettled, _) | (_, Store::Local) => ("per-replica", LOCAL),
        (_, Store::Redis) => ("exact-fleet", REDIS),
        (Class::InflightLease, Store::Share) => ("share", SHARE_CONCURRENCY),
        (_, Store::Share) => ("share", SHARE),
    };
    let n_live = (limit.store == Store::Share).then_some(limit.parts(n_live));
    let live = Live { n_live, suspended: suspended.map(Reason::as_str) };
    Enforcement { mode, bound: suspended.map_or(healthy, |reason| outage_note(limit.kind.class(), reason)), live }
}
