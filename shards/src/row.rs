//! One decision, as the ledger keeps it: what was asked, what was decided, what was used, what it cost.
//!
//! Plain data. The core that served the request fills it from facts that were frozen when the response head was
//! written; nothing here is recomputed. Prompts, completions and keys have no field. [`codec`] gives it its one
//! spelling on disk; the accountant folds it.

pub mod codec;
mod instant;
mod request_id;

use std::borrow::Cow;
use std::sync::Arc;

use compact_str::CompactString;
use smallvec::SmallVec;

use crate::limit::LimitType;
use crate::price::PriceSource;
use crate::scope::{Endpoint, Node};
use crate::suspend::Suspensions;
use crate::units::{NanoUsd, WallMs};
use crate::usage::Usage;

pub use codec::{RowError, StoredRow, decode, decode_facts, encode};
pub use request_id::RequestId;

/// What the gates said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    Admitted,
    Refused,
    /// A fault before a verdict could be carried out to its end; nobody was refused by a limit.
    Error,
}

impl Decision {
    pub fn as_str(self) -> &'static str {
        match self {
            Decision::Admitted => "admitted",
            Decision::Refused => "refused",
            Decision::Error => "error",
        }
    }

    pub fn parse(text: &str) -> Option<Decision> {
        [Decision::Admitted, Decision::Refused, Decision::Error].into_iter().find(|word| word.as_str() == text)
    }
}

/// How an admitted request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    Completed,
    ClientGone,
    UpstreamCut,
    UpstreamError,
    Timeout,
}

impl Outcome {
    const ALL: [Outcome; 5] =
        [Outcome::Completed, Outcome::ClientGone, Outcome::UpstreamCut, Outcome::UpstreamError, Outcome::Timeout];

    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Completed => "completed",
            Outcome::ClientGone => "client_gone",
            Outcome::UpstreamCut => "upstream_cut",
            Outcome::UpstreamError => "upstream_error",
            Outcome::Timeout => "timeout",
        }
    }

    /// Whether the answer failed to come whole and good, and not because the caller left. A provider's own error is one.
    pub fn is_failure(self) -> bool {
        match self {
            Outcome::Completed | Outcome::ClientGone => false,
            Outcome::UpstreamCut | Outcome::UpstreamError | Outcome::Timeout => true,
        }
    }

    pub fn parse(text: &str) -> Option<Outcome> {
        Outcome::ALL.into_iter().find(|word| word.as_str() == text)
    }
}

/// The limit that answered no, and the node whose counter was over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedBy {
    pub limit_id: Arc<str>,
    pub node: Node,
    pub limit_type: LimitType,
}

/// One decision. The accountant gives it its `seq`; the replica's name is the ledger's and is added when encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub seq: u64,
    /// When the head was read.
    pub ts: WallMs,
    /// When everything was settled; the period the row counts in is the one of this instant.
    pub end: WallMs,
    pub request_id: RequestId,
    pub node: Node,
    /// `None` for an anonymous caller.
    pub key_id: Option<Arc<str>>,
    pub endpoint: Endpoint,
    /// As requested; empty when the request was decided before its body was read.
    pub model: CompactString,
    /// `None` when none was chosen.
    pub upstream: Option<Arc<str>>,
    pub decision: Decision,
    /// `None` unless the caller or the provider ended it: also of a request that we cut.
    pub outcome: Option<Outcome>,
    /// Request heads written to upstreams.
    pub attempts: u32,
    pub refused_by: Option<RefusedBy>,
    /// Shadow limits that would have refused.
    pub shadow: SmallVec<[Arc<str>; 2]>,
    /// Limits whose guarantee did not hold, each once.
    pub suspended: Suspensions,
    /// As sent to the caller.
    pub status: u16,
    /// A request head was written to an upstream: what a request quota counts.
    pub forwarded: bool,
    pub stream: bool,
    pub usage: Usage,
    /// `None`: unknown, which is not nothing.
    pub cost: Option<NanoUsd>,
    pub price: PriceSource,
    pub reserved_tokens: u64,
    pub latency_us: u64,
    /// `None` when no byte of an answer came.
    pub first_byte_us: Option<u64>,
    /// The part of the latency that was ours.
    pub overhead_us: u64,
    pub traceparent: Option<CompactString>,
}

impl Row {
    /// A row that says nothing yet: an error of ours, should it be written as it is.
    pub fn blank() -> Row {
        Row {
            seq: 0,
            ts: WallMs(0),
            end: WallMs(0),
            request_id: RequestId::ZERO,
            node: Node::global(),
            key_id: None,
            endpoint: Endpoint::Passthrough,
            model: CompactString::const_new(""),
            upstream: None,
            decision: Decision::Error,
            outcome: None,
            attempts: 0,
            refused_by: None,
            shadow: SmallVec::new(),
            suspended: SmallVec::new(),
            status: 0,
            forwarded: false,
            stream: false,
            usage: Usage::default(),
            cost: None,
            price: PriceSource::Unpriced,
            reserved_tokens: 0,
            latency_us: 0,
            first_byte_us: None,
            overhead_us: 0,
            traceparent: None,
        }
    }

    /// The part of the row that meters and rollups are made of.
    pub fn facts(&self) -> RowFacts<'_> {
        RowFacts {
            seq: self.seq,
            end: self.end,
            node: Cow::Borrowed(self.node.as_str()),
            key_id: self.key_id.as_deref().map(Cow::Borrowed),
            endpoint: self.endpoint,
            model: Cow::Borrowed(&self.model),
            upstream: self.upstream.as_deref().map(Cow::Borrowed),
            decision: self.decision,
            outcome: self.outcome,
            refused_by: self.refused_by.as_ref().map(|refused_by| Cow::Borrowed(&*refused_by.limit_id)),
            forwarded: self.forwarded,
            usage: self.usage,
            cost: self.cost,
            latency_us: self.latency_us,
        }
    }
}

/// What folding needs of a row, borrowed from the row or straight from its line: a restart reads a million lines
/// and keeps none of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowFacts<'a> {
    pub seq: u64,
    pub end: WallMs,
    /// Canonical text of the node; not checked to be one.
    pub node: Cow<'a, str>,
    pub key_id: Option<Cow<'a, str>>,
    pub endpoint: Endpoint,
    pub model: Cow<'a, str>,
    pub upstream: Option<Cow<'a, str>>,
    pub decision: Decision,
    /// `None` also for a word of a newer version: what the row spent counts all the same.
    pub outcome: Option<Outcome>,
    /// Id of the limit that refused.
    pub refused_by: Option<Cow<'a, str>>,
    pub forwarded: bool,
    pub usage: Usage,
    pub cost: Option<NanoUsd>,
    pub latency_us: u64,
}

impl RowFacts<'_> {
    /// What a query counts as an error: how it ended, or, where it never began, that a fault was in the way.
    pub fn is_error(&self) -> bool {
        self.outcome.map_or(self.decision == Decision::Error, Outcome::is_failure)
    }
}
