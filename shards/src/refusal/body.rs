//! The JSON body of a 429, one shape for every limit type, in the caller's provider's envelope.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::text::{integer, is_plain, rfc3339, usd};
use super::wording::spelled;
use super::{Family, Refusal, Wait, bounds, word_of};
use crate::limit::{Class, LimitType, Period, Posture};

pub(super) fn write(refusal: &Refusal, family: Family, request_id: &[u8], out: &mut Vec<u8>) {
    let wording = &refusal.limit.wording;
    let envelope = wording.envelope(family);
    out.extend_from_slice(&envelope.opening);
    if refusal.wait == Wait::Never {
        out.extend_from_slice(b": it asks for more ");
        out.extend_from_slice(refusal.limit.kind.unit().as_bytes());
        out.extend_from_slice(b" at once than the ");
        integer(refusal.burst, out);
        out.extend_from_slice(b" the limit can ever hold");
    }
    out.extend_from_slice(&envelope.up_to_node);
    out.extend_from_slice(refusal.node.as_str().as_bytes());
    out.extend_from_slice(&wording.node_ends);
    let mut json = Json { out, is_first: false };
    until_when(refusal, &mut json);
    json.end();
    json.out.extend_from_slice(&wording.enforcement);
    how_exact(refusal, &mut json);
    json.end();
    json.end();
    if family == Family::Anthropic {
        json.key("request_id");
        json.out.push(b'"');
        json.out.extend_from_slice(request_id);
        json.out.push(b'"');
    }
    json.end();
}

/// How the body of one family begins: as far as the limit alone decides it.
#[derive(Clone, Debug)]
pub(super) struct Envelope {
    /// Up to the limit's id in the message.
    opening: Box<[u8]>,
    /// From the end of the message to the node.
    up_to_node: Box<[u8]>,
}

impl Envelope {
    /// An id is `[a-z0-9_-]`, so nothing of it needs escaping.
    pub(super) fn of(id: &str, kind: LimitType, family: Family) -> Envelope {
        let opening = spelled(|out| {
            let mut json = Json { out, is_first: true };
            json.brace();
            if family == Family::Anthropic {
                json.text("type", "error");
            }
            json.object("error");
            json.text("type", if family == Family::Anthropic { "rate_limit_error" } else { word_of(kind) });
            json.key("message");
            json.out.extend_from_slice(b"\"request refused by limit ");
            json.out.extend_from_slice(id.as_bytes());
        });
        let up_to_node = spelled(|out| {
            out.push(b'"');
            let mut json = Json { out, is_first: false };
            if family == Family::OpenAi {
                json.raw("param", b"null");
            }
            json.text("code", word_of(kind));
            json.object("refused_by");
            json.text("limit_id", id);
            json.text("limit_type", kind.as_str());
            json.text("unit", kind.unit());
            json.key("node");
            json.out.push(b'"');
        });
        Envelope { opening, up_to_node }
    }
}

/// What follows the name of the node.
pub(super) fn node_ends(period: Option<Period>, out: &mut Vec<u8>) {
    out.push(b'"');
    if let Some(period) = period {
        Json { out, is_first: false }.text("period", &period.to_string());
    }
}

/// What the limit says of itself.
pub(super) fn enforcement(kind: LimitType, posture: Posture, out: &mut Vec<u8>) {
    let mut json = Json { out, is_first: false };
    json.object("enforcement");
    json.text("posture", posture.as_str());
    json.raw("approximate", if bounds::is_approximate(kind) { b"true" } else { b"false" });
}

/// The end of `refused_by`.
fn until_when(refusal: &Refusal, json: &mut Json) {
    if let Some(end) = refusal.resets_at {
        json.key("resets_at");
        json.out.push(b'"');
        rfc3339(end, json.out);
        json.out.push(b'"');
    }
    if let Some(seconds) = refusal.wait.seconds() {
        json.number("retry_after_s", seconds);
    }
    if let Some(observed) = refusal.observed {
        let kind = refusal.limit.kind;
        json.amount("observed", kind, observed);
        json.amount("limit", kind, refusal.amount);
    }
}

/// The end of `enforcement`.
fn how_exact(refusal: &Refusal, json: &mut Json) {
    let kind = refusal.limit.kind;
    if kind.class() == Class::LedgerSettled {
        json.object("bound");
        json.number("tee_lag_rows", refusal.bound.tee_lag_rows);
        json.number("dropped_rows", refusal.bound.dropped_rows);
        if let Some(rows) = refusal.bound.convergence_lag_rows {
            json.number("convergence_lag_rows", rows);
        }
        if let Some(age_ms) = refusal.bound.convergence_age_ms {
            json.number("convergence_age_ms", age_ms);
        }
        json.end();
    }
    let parts = [bounds::lag_note(kind).map(Cow::Borrowed), overdue(refusal), outage(refusal)];
    for (place, part) in parts.iter().flatten().enumerate() {
        if place == 0 {
            json.text("note", part);
        } else {
            json.more("; ", part);
        }
    }
    if !refusal.suspended.is_empty() {
        json.key("suspended");
        json.out.push(b'[');
        for (at, (id, reason)) in refusal.suspended.iter().enumerate() {
            if at > 0 {
                json.out.push(b',');
            }
            json.brace();
            json.text("limit_id", id);
            json.text("reason", reason.as_str());
            json.end();
        }
        json.out.push(b']');
    }
}

/// Peers' burn that no exchange has brought: from the moment that exchanges fail, not only when they are given up as stale.
/// Rates and gauges do not add up burn, so nothing of theirs is missing.
fn overdue(refusal: &Refusal) -> Option<Cow<'static, str>> {
    let counts_burn = refusal.limit.kind.class() == Class::LedgerSettled;
    let age_ms =
        refusal.bound.convergence_age_ms.filter(|age_ms| counts_burn && *age_ms > bounds::EXCHANGE_OVERDUE_MS)?;
    Some(Cow::Owned(format!("peers' burn of the last {} s is missing", age_ms / 1_000)))
}

/// What the limit that refused has lost; where it has lost nothing, which others of this request have, by name: their
/// bounds say nothing about the number that refused.
fn outage(refusal: &Refusal) -> Option<Cow<'static, str>> {
    let suspended = &refusal.suspended;
    if let Some((_, reason)) = suspended.iter().find(|(id, _)| *id == refusal.limit.id) {
        return Some(Cow::Borrowed(bounds::outage_note(refusal.limit.kind.class(), *reason)));
    }
    let others: SmallVec<[String; 4]> =
        suspended.iter().map(|(id, reason)| format!("{id} ({})", reason.as_str())).collect();
    (!others.is_empty()).then(|| Cow::Owned(format!("not held for this request: {}", others.join(", "))))
}

/// Writes nested JSON objects in order. Small on purpose: the order of members is a contract.
struct Json<'o> {
    out: &'o mut Vec<u8>,
    /// No member stands in the innermost object yet.
    is_first: bool,
}

impl Json<'_> {
    /// Keys are words of ours that need no escaping. Inlined, so that they are copied by a few instructions.
    #[inline(always)]
    fn key(&mut self, key: &'static str) {
        self.out.extend_from_slice(if self.is_first { b"\"" } else { b",\"" });
        self.is_first = false;
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn brace(&mut self) {
        self.out.push(b'{');
        self.is_first = true;
    }

    #[inline(always)]
    fn object(&mut self, key: &'static str) {
        self.key(key);
        self.brace();
    }

    fn end(&mut self) {
        self.out.push(b'}');
        self.is_first = false;
    }

    /// Values are words of ours, ids and nodes: none of them needs escaping, as the config's and the scope's readers see to.
    #[inline(always)]
    fn text(&mut self, key: &'static str, value: &str) {
        debug_assert!(is_plain(value), "{value:?} needs escaping");
        self.key(key);
        self.out.push(b'"');
        self.out.extend_from_slice(value.as_bytes());
        self.out.push(b'"');
    }

    /// Lengthens the text that was written last.
    fn more(&mut self, between: &'static str, value: &str) {
        debug_assert!(is_plain(value), "{value:?} needs escaping");
        let closing_quote = self.out.pop();
        self.out.extend_from_slice(between.as_bytes());
        self.out.extend_from_slice(value.as_bytes());
        self.out.extend(closing_quote);
    }

    #[inline(always)]
    fn raw(&mut self, key: &'static str, value: &[u8]) {
        self.key(key);
        self.out.extend_from_slice(value);
    }

    #[inline(always)]
    fn number(&mut self, key: &'static str, value: u64) {
        self.key(key);
        integer(value, self.out);
    }

    /// Money as plain decimal dollars, everything else as a whole number.
    fn amount(&mut self, key: &'static str, kind: LimitType, value: u64) {
        self.key(key);
        if kind == LimitType::BudgetUsd { usd(value, self.out) } else { integer(value, self.out) }
    }
}
