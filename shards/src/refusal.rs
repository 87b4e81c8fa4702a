//! What a refused caller is told, and how a served one is told what is left.
//!
//! Holds the facts of one refusal; the files below spell them: `body` the JSON, `headers` the header lines, `wording` what
//! every refusal by one limit says alike, `bounds` how exact the number is, `text` the small formats. Decides no verdict:
//! the gates make a [`Refusal`], `request.rs` writes it out.

mod body;
pub mod bounds;
mod headers;
pub mod text;
mod wording;

use std::sync::Arc;

pub use bounds::{Enforcement, enforcement};
pub(crate) use headers::policy;
pub use headers::rate_headers;
pub use text::go_duration;
pub use wording::Wording;

use crate::gauge::Full;
use crate::limit::{Class, Limit, LimitType};
use crate::meter::Reading;
use crate::plan::Armed;
use crate::rate::{self, RateParams};
use crate::scope::Node;
use crate::suspend::Suspensions;
use crate::units::{Now, WallMs};

/// From here on a client should not wait but give up: current SDKs sleep through a Retry-After of 22 days, or ignore one
/// over 60 s and hammer.
pub const WAIT_MAX_S: u64 = 60;

/// Whose shape of answer the caller's SDK understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    OpenAi,
    Anthropic,
}

/// When the same request would be admitted if nobody else came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Rounded up, at least 1.
    After { ms: u64 },
    /// It asks for more than the limit can ever hold.
    Never,
    /// When somebody finishes: concurrency.
    Unknown,
}

impl Wait {
    /// Whole seconds, rounded up, at least 1: equal in `Retry-After`, body and `RateLimit`.
    pub fn seconds(self) -> Option<u64> {
        match self {
            Wait::After { ms } => Some(ms.div_ceil(1_000).max(1)),
            Wait::Never | Wait::Unknown => None,
        }
    }
}

/// How far `observed` of a LedgerSettled limit may lag behind, in rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerBound {
    /// Handed to the accountant and not folded yet.
    pub tee_lag_rows: u64,
    /// Given up since this process started.
    pub dropped_rows: u64,
    /// Not exchanged with peers yet, as far as it can be told; `None` without Redis.
    pub convergence_lag_rows: Option<u64>,
    /// Since the last exchange with peers, whose rows after it nobody here can count. `None`: without Redis, or none yet.
    pub convergence_age_ms: Option<u64>,
}

/// The facts of one refusal, frozen at the verdict. Row, header and body all come from here.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub limit: Arc<Limit>,
    /// The node whose counter was over.
    pub node: Node,
    /// Burn or live slots; `None` for rates, which have no single number.
    pub observed: Option<u64>,
    /// The amount as enforced: this replica's share under `store: share`.
    pub amount: u64,
    /// The most a rate can hold at once.
    pub burst: u64,
    pub wait: Wait,
    /// End of the calendar period; LedgerSettled only.
    pub resets_at: Option<WallMs>,
    /// Every limit of this verdict whose guarantee is not held right now.
    pub suspended: Suspensions,
    /// LedgerSettled only. The gate knows no ring: the caller fills it in before it writes the body.
    pub bound: LedgerBound,
}

impl Refusal {
    pub(crate) fn by_rate(armed: &Armed, rate: &RateParams, retry: rate::Retry) -> Refusal {
        let wait = match retry {
            rate::Retry::Never => Wait::Never,
            rate::Retry::After { ns } => Wait::After { ms: ns.div_ceil(1_000_000).max(1) },
            rate::Retry::Now => Wait::After { ms: 1 },
        };
        Refusal { amount: rate.amount(), burst: rate.burst(), wait, ..Refusal::plain(armed) }
    }

    pub(crate) fn by_gauge(armed: &Armed, full: Full) -> Refusal {
        let Full { used, cap } = full;
        Refusal { observed: Some(used.into()), amount: cap.into(), ..Refusal::plain(armed) }
    }

    pub(crate) fn by_meter(armed: &Armed, reading: Reading, now: Now) -> Refusal {
        let wait = match reading.resets_at {
            Some(end) => Wait::After { ms: u64::try_from(end.0.saturating_sub(now.wall.0)).unwrap_or(1).max(1) },
            None => Wait::Unknown, // a meter without a period reads 0, which is under every amount
        };
        Refusal { observed: Some(reading.observed), wait, resets_at: reading.resets_at, ..Refusal::plain(armed) }
    }

    fn plain(armed: &Armed) -> Refusal {
        Refusal {
            limit: armed.limit.clone(),
            node: armed.node.clone(),
            observed: None,
            amount: armed.limit.amount,
            burst: armed.limit.burst,
            wait: Wait::Unknown,
            resets_at: None,
            suspended: Suspensions::new(),
            bound: LedgerBound::default(),
        }
    }

    /// `error.type` and `x-tt-refusal-type`.
    pub fn kind(&self) -> &'static str {
        word_of(self.limit.kind)
    }

    /// Whether waiting for it is pointless or too long: `x-should-retry: false`, which every SDK obeys.
    pub fn should_give_up(&self) -> bool {
        let is_too_long = self.wait.seconds().is_some_and(|seconds| seconds > WAIT_MAX_S);
        self.limit.kind.class() == Class::LedgerSettled || self.wait == Wait::Never || is_too_long
    }

    /// Appends the JSON body of the 429.
    pub fn body(&self, family: Family, request_id: &[u8], out: &mut Vec<u8>) {
        body::write(self, family, request_id, out);
    }

    /// Appends the header lines that belong to the refusal, each with its CRLF.
    pub fn headers(&self, out: &mut Vec<u8>) {
        headers::refusal(self, out);
    }
}

/// What a refusal by a limit of this type is called.
fn word_of(kind: LimitType) -> &'static str {
    match kind {
        LimitType::BudgetUsd => "budget_exceeded",
        LimitType::QuotaTokens | LimitType::QuotaRequests => "quota_exceeded",
        LimitType::Rpm | LimitType::Tpm => "rate_limited",
        LimitType::Concurrency => "concurrency_exceeded",
    }
}
