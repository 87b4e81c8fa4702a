//! A line to a row, or to the part of it that folding needs.

use std::borrow::Cow;
use std::sync::Arc;

use super::scan::{Fault, Pair, Scan, members};
use super::{RowError, StoredRow, VERSION, quick};
use crate::limit::LimitType;
use crate::price::PriceSource;
use crate::row::{Decision, Outcome, RefusedBy, RequestId, Row, RowFacts, instant};
use crate::scope::{Endpoint, Node};
use crate::suspend::{Reason, Suspensions};
use crate::units::NanoUsd;
use crate::usage::{Usage, UsageSource};

/// Reads a whole row, with or without its newline.
pub fn decode(line: &[u8]) -> Result<StoredRow, RowError> {
    let fields = Fields::of(line)?;
    let ts = word("ts", &fields.ts, instant::decode)?;
    let end = word_if_any("end", &fields.end, instant::decode)?;
    let row = Row {
        seq: given("seq", fields.seq)?,
        ts,
        end: end.unwrap_or(ts),
        request_id: word("request_id", &fields.request_id, RequestId::parse)?,
        node: node("node", &fields.node)?,
        key_id: fields.key_id.map(Arc::from),
        endpoint: word("endpoint", &fields.endpoint, Endpoint::parse)?,
        model: given("model", fields.model)?.into(),
        upstream: fields.upstream.map(Arc::from),
        decision: word("decision", &fields.decision, Decision::parse)?,
        outcome: word_if_any("outcome", &fields.outcome, Outcome::parse)?,
        attempts: fields.attempts,
        refused_by: fields.refused_by.map(RefusedByFields::read).transpose()?,
        shadow: fields.shadow.into_iter().map(Arc::from).collect(),
        suspended: suspended(fields.suspended, &fields.reasons),
        status: given("status", fields.status)?,
        forwarded: given("forwarded", fields.forwarded)?,
        stream: fields.stream,
        usage: given("usage", fields.usage)?.read()?,
        cost: fields.cost_nanousd.map(NanoUsd),
        price: word("price", &fields.price, PriceSource::parse)?,
        reserved_tokens: fields.reserved_tokens,
        latency_us: fields.latency_us,
        first_byte_us: fields.first_byte_us,
        overhead_us: fields.overhead_us,
        traceparent: fields.traceparent.map(Into::into),
    };
    let replica = fields.replica.unwrap_or_default().into_owned();
    Ok(StoredRow { row, replica, has_interval: end.is_some() })
}

/// Reads what folding needs; copies no text unless it is escaped.
pub fn decode_facts(line: &[u8]) -> Result<RowFacts<'_>, RowError> {
    quick::facts(line).map_or_else(|| any_facts(line), Ok)
}

/// Facts of a line of any shape.
pub(super) fn any_facts(line: &[u8]) -> Result<RowFacts<'_>, RowError> {
    let fields = Fields::of(line)?;
    Ok(RowFacts {
        seq: given("seq", fields.seq)?,
        end: match word_if_any("end", &fields.end, instant::decode)? {
            Some(end) => end,
            None => word("ts", &fields.ts, instant::decode)?,
        },
        node: given("node", fields.node)?,
        key_id: fields.key_id,
        endpoint: word("endpoint", &fields.endpoint, Endpoint::parse)?,
        model: given("model", fields.model)?,
        upstream: fields.upstream,
        decision: word("decision", &fields.decision, Decision::parse)?,
        outcome: fields.outcome.as_deref().and_then(Outcome::parse),
        refused_by: fields.refused_by.map(|by| given("refused_by.limit_id", by.limit_id)).transpose()?,
        forwarded: given("forwarded", fields.forwarded)?,
        usage: given("usage", fields.usage)?.read()?,
        cost: fields.cost_nanousd.map(NanoUsd),
        latency_us: fields.latency_us,
    })
}

type Text<'a> = Option<Cow<'a, str>>;

members!(Member {
    V = "v",
    Seq = "seq",
    Ts = "ts",
    End = "end",
    RequestId = "request_id",
    Replica = "replica",
    Node = "node",
    KeyId = "key_id",
    Endpoint = "endpoint",
    Model = "model",
    Upstream = "upstream",
    Decision = "decision",
    Outcome = "outcome",
    Attempts = "attempts",
    RefusedBy = "refused_by",
    Shadow = "shadow",
    Suspended = "suspended",
    SuspendedReasons = "suspended_reasons",
    Status = "status",
    Forwarded = "forwarded",
    Stream = "stream",
    Usage = "usage",
    CostNanousd = "cost_nanousd",
    Price = "price",
    ReservedTokens = "reserved_tokens",
    LatencyUs = "latency_us",
    FirstByteUs = "first_byte_us",
    OverheadUs = "overhead_us",
    Traceparent = "traceparent",
});

/// The members of a line as they stand there; what a row cannot be without is asked for later, by name.
#[derive(Default)]
struct Fields<'a> {
    v: Option<u32>,
    seq: Option<u64>,
    ts: Text<'a>,
    end: Text<'a>,
    request_id: Text<'a>,
    replica: Text<'a>,
    node: Text<'a>,
    key_id: Text<'a>,
    endpoint: Text<'a>,
    model: Text<'a>,
    upstream: Text<'a>,
    decision: Text<'a>,
    outcome: Text<'a>,
    attempts: u32,
    refused_by: Option<RefusedByFields<'a>>,
    shadow: Vec<Cow<'a, str>>,
    suspended: Vec<Cow<'a, str>>,
    reasons: Vec<Pair<'a>>,
    status: Option<u16>,
    forwarded: Option<bool>,
    stream: bool,
    usage: Option<UsageFields<'a>>,
    cost_nanousd: Option<u64>,
    price: Text<'a>,
    reserved_tokens: u64,
    latency_us: u64,
    first_byte_us: Option<u64>,
    overhead_us: u64,
    traceparent: Text<'a>,
}

impl<'a> Fields<'a> {
    fn of(line: &'a [u8]) -> Result<Fields<'a>, RowError> {
        let mut fields = Fields::default();
        let mut scan = Scan::new(line)?;
        scan.object(Member::NAMES, |scan, member| fields.read(scan, member))?;
        scan.end()?;
        match given("v", fields.v)? {
            VERSION => Ok(fields),
            newer => Err(RowError::Version(newer)),
        }
    }

    fn read(&mut self, scan: &mut Scan<'a>, member: Option<Member>) -> Result<(), Fault> {
        match member {
            Some(Member::V) => self.v = Some(scan.number()?),
            Some(Member::Seq) => self.seq = Some(scan.number()?),
            Some(Member::Ts) => self.ts = Some(scan.text()?),
            Some(Member::End) => self.end = scan.maybe(Scan::text)?,
            Some(Member::RequestId) => self.request_id = Some(scan.text()?),
            Some(Member::Replica) => self.replica = Some(scan.text()?),
            Some(Member::Node) => self.node = Some(scan.text()?),
            Some(Member::KeyId) => self.key_id = scan.maybe(Scan::text)?,
            Some(Member::Endpoint) => self.endpoint = Some(scan.text()?),
            Some(Member::Model) => self.model = Some(scan.text()?),
            Some(Member::Upstream) => self.upstream = scan.maybe(Scan::text)?,
            Some(Member::Decision) => self.decision = Some(scan.text()?),
            Some(Member::Outcome) => self.outcome = scan.maybe(Scan::text)?,
            Some(Member::Attempts) => self.attempts = scan.number()?,
            Some(Member::RefusedBy) => self.refused_by = scan.maybe(RefusedByFields::of)?,
            Some(Member::Shadow) => self.shadow = texts(scan)?,
            Some(Member::Suspended) => self.suspended = texts(scan)?,
            Some(Member::SuspendedReasons) => self.reasons = scan.pairs()?,
            Some(Member::Status) => self.status = Some(scan.number()?),
            Some(Member::Forwarded) => self.forwarded = Some(scan.flag()?),
            Some(Member::Stream) => self.stream = scan.flag()?,
            Some(Member::Usage) => self.usage = Some(UsageFields::of(scan)?),
            Some(Member::CostNanousd) => self.cost_nanousd = scan.maybe(Scan::number)?,
            Some(Member::Price) => self.price = Some(scan.text()?),
            Some(Member::ReservedTokens) => self.reserved_tokens = scan.number()?,
            Some(Member::LatencyUs) => self.latency_us = scan.number()?,
            Some(Member::FirstByteUs) => self.first_byte_us = scan.maybe(Scan::number)?,
            Some(Member::OverheadUs) => self.overhead_us = scan.number()?,
            Some(Member::Traceparent) => self.traceparent = scan.maybe(Scan::text)?,
            None => scan.skip()?, // a newer version's
        }
        Ok(())
    }
}

members!(ByMember {
    LimitId = "limit_id",
    Node = "node",
    LimitType = "limit_type",
});

#[derive(Default)]
struct RefusedByFields<'a> {
    limit_id: Text<'a>,
    node: Text<'a>,
    limit_type: Text<'a>,
}

impl<'a> RefusedByFields<'a> {
    fn of(scan: &mut Scan<'a>) -> Result<RefusedByFields<'a>, Fault> {
        let mut by = RefusedByFields::default();
        scan.object(ByMember::NAMES, |scan, member| {
            match member {
                Some(ByMember::LimitId) => by.limit_id = Some(scan.text()?),
                Some(ByMember::Node) => by.node = Some(scan.text()?),
                Some(ByMember::LimitType) => by.limit_type = Some(scan.text()?),
                None => scan.skip()?,
            }
            Ok(())
        })?;
        Ok(by)
    }

    fn read(self) -> Result<RefusedBy, RowError> {
        Ok(RefusedBy {
            node: node("refused_by.node", &self.node)?,
            limit_type: word("refused_by.limit_type", &self.limit_type, LimitType::parse)?,
            limit_id: given("refused_by.limit_id", self.limit_id)?.into(),
        })
    }
}

members!(UsageMember {
    Input = "input",
    Output = "output",
    CachedInput = "cached_input",
    CacheWrite = "cache_write",
    Reasoning = "reasoning",
    Source = "source",
});

#[derive(Default)]
struct UsageFields<'a> {
    input: Option<u64>,
    output: Option<u64>,
    cached_input: u64,
    cache_write: u64,
    reasoning: u64,
    source: Text<'a>,
}

impl<'a> UsageFields<'a> {
    fn of(scan: &mut Scan<'a>) -> Result<UsageFields<'a>, Fault> {
        let mut usage = UsageFields::default();
        scan.object(UsageMember::NAMES, |scan, member| {
            match member {
                Some(UsageMember::Input) => usage.input = Some(scan.number()?),
                Some(UsageMember::Output) => usage.output = Some(scan.number()?),
                Some(UsageMember::CachedInput) => usage.cached_input = scan.number()?,
                Some(UsageMember::CacheWrite) => usage.cache_write = scan.number()?,
                Some(UsageMember::Reasoning) => usage.reasoning = scan.number()?,
                Some(UsageMember::Source) => usage.source = Some(scan.text()?),
                None => scan.skip()?,
            }
            Ok(())
        })?;
        Ok(usage)
    }

    fn read(self) -> Result<Usage, RowError> {
        Ok(Usage {
            input: given("usage.input", self.input)?,
            output: given("usage.output", self.output)?,
            cached_input: self.cached_input,
            cache_write: self.cache_write,
            cache_write_long: 0,
            reasoning: self.reasoning,
            source: word("usage.source", &self.source, UsageSource::parse)?,
        })
    }
}

fn texts<'a>(scan: &mut Scan<'a>) -> Result<Vec<Cow<'a, str>>, Fault> {
    let mut texts = Vec::new();
    scan.array(|scan| scan.text().map(|text| texts.push(text)))?;
    Ok(texts)
}

fn given<T>(field: &'static str, value: Option<T>) -> Result<T, RowError> {
    value.ok_or(RowError::Missing { field })
}

fn word<T>(field: &'static str, text: &Text<'_>, parse: impl Fn(&str) -> Option<T>) -> Result<T, RowError> {
    given(field, word_if_any(field, text, parse)?)
}

fn word_if_any<T>(
    field: &'static str,
    text: &Text<'_>,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, RowError> {
    let Some(text) = text.as_deref() else { return Ok(None) };
    // A line of any length may be no row; its error stays short.
    let unknown = || RowError::Unknown { field, found: text.chars().take(64).collect() };
    parse(text).map(Some).ok_or_else(unknown)
}

fn node(field: &'static str, text: &Text<'_>) -> Result<Node, RowError> {
    word(field, text, |text| Node::parse(text).ok())
}

/// Ids with their reasons. A reason this version does not know leaves its id out: the row still counts.
fn suspended(ids: Vec<Cow<'_, str>>, reasons: &[Pair<'_>]) -> Suspensions {
    let reason_of = |id: &str| reasons.iter().find(|(of, _)| of == id).and_then(|(_, reason)| Reason::parse(reason));
    ids.into_iter().filter_map(|id| reason_of(&id).map(|reason| (Arc::from(id), reason))).collect()
}
