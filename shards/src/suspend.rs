//! The one fact that row, header, panel and 429 render when a guarantee is not held right now: the limit, and why.
//!
//! Decides the spelling of each reason and whether the response header discloses it. Who is suspended, and when, is
//! decided where the guarantee is lost: the gates, the coordinator, the identity snapshot.

use std::sync::Arc;

use smallvec::SmallVec;

/// Stands in for a limit id where the key snapshot, not a limit, is what is stale.
pub const IDENTITY: &str = "__identity";

/// What one verdict could not guarantee. Empty on nearly every request, so one is kept inline.
pub type Suspensions = SmallVec<[(Arc<str>, Reason); 1]>;

/// Why a limit's guarantee is suspended. Every one of them over-admits; none refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Meters were last published more than 30 s ago: admitted without a check of this limit.
    MeterStale,
    /// The verdict missed its 5 ms; the local cell answered, so the fleet may admit N × limit.
    RedisDeadlineExceeded,
    /// Five calls in a row failed; nobody asks until a probe succeeds, local cells answer.
    RedisBreakerOpen,
    /// The server answered with an error, or the connection to it broke; the local cell answered.
    RedisEvalError,
    /// The server answered something the script cannot say; the local cell answered.
    RedisReplyMalformed,
    /// Heartbeats are older than the liveness window: N counts as 1, each replica enforces the full amount.
    MembershipStale,
    /// No flush of burn for 30 s: peers' newer burn is missing from `observed`.
    ConvergenceStale,
    /// This replica has not reached the store since it started: peers' burn is missing altogether.
    NeverSynced,
    /// Keys were last refreshed more than 60 s ago: a revoked key may still be served.
    IdentityStale,
    /// Two live processes share one replica id and overwrite each other's published burn.
    ReplicaIdConflict,
}

impl Reason {
    pub const ALL: [Reason; 10] = [
        Reason::MeterStale,
        Reason::RedisDeadlineExceeded,
        Reason::RedisBreakerOpen,
        Reason::RedisEvalError,
        Reason::RedisReplyMalformed,
        Reason::MembershipStale,
        Reason::ConvergenceStale,
        Reason::NeverSynced,
        Reason::IdentityStale,
        Reason::ReplicaIdConflict,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::MeterStale => "meter_stale",
            Reason::RedisDeadlineExceeded => "redis deadline exceeded",
            Reason::RedisBreakerOpen => "redis breaker open",
            Reason::RedisEvalError => "redis eval error",
            Reason::RedisReplyMalformed => "redis reply malformed",
            Reason::MembershipStale => "membership_stale",
            Reason::ConvergenceStale => "convergence_stale",
            Reason::NeverSynced => "never_synced",
            Reason::IdentityStale => "identity_stale",
            Reason::ReplicaIdConflict => "replica_id_conflict",
        }
    }

    /// Why a verdict of `store: redis` came from the local cell: the labels of the fallback metric.
    pub const FALLBACKS: [Reason; 4] =
        [Reason::RedisDeadlineExceeded, Reason::RedisBreakerOpen, Reason::RedisEvalError, Reason::RedisReplyMalformed];

    /// `None` for a text no version of ours has written.
    pub fn parse(text: &str) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| reason.as_str() == text)
    }

    /// Whether `x-tt-coordination: suspended` discloses it. A stale meter is this replica's own trouble and shows in
    /// row, body, panel and metric only.
    pub const fn is_shared_store(self) -> bool {
        !matches!(self, Reason::MeterStale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_read_back_as_it_was_written() {
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(reason));
        }
        assert_eq!(Reason::parse("redis down"), None);
    }

    #[test]
    fn only_a_stale_meter_stays_off_the_response_header() {
        let silent: Vec<_> = Reason::ALL.into_iter().filter(|reason| !reason.is_shared_store()).collect();
        assert_eq!(silent, [Reason::MeterStale]);
    }
}
