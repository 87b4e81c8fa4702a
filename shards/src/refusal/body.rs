//! The JSON body of a 429, one shape for every limit type, in the caller's provider's envelope.

use super::text::{integer, json_string, rfc3339, usd};
use super::{Family, Refusal, Wait, bounds};
use crate::limit::{Class, LimitType};

pub(super) fn write(refusal: &Refusal, family: Family, request_id: &str) -> Vec<u8> {
    let mut json = Json { out: Vec::with_capacity(640), is_first: true };
    json.brace();
    match family {
        Family::OpenAi => {
            json.object("error");
            json.text("type", refusal.kind());
            json.text("message", &message(refusal));
            json.raw("param", b"null");
            json.text("code", refusal.kind());
        }
        Family::Anthropic => {
            json.raw("type", b"\"error\"");
            json.object("error");
            json.text("type", "rate_limit_error");
            json.text("message", &message(refusal));
            json.text("code", refusal.kind());
        }
    }
    refused_by(refusal, &mut json);
    enforcement(refusal, &mut json);
    json.end();
    if family == Family::Anthropic {
        json.text("request_id", request_id);
    }
    json.end();
    json.out
}

fn message(refusal: &Refusal) -> String {
    let id = &refusal.limit.id;
    match refusal.wait {
        Wait::Never => format!(
            "request refused by limit {id}: it asks for more {} at once than the {} the limit can ever hold",
            refusal.limit.kind.unit(),
            refusal.burst
        ),
        Wait::After { .. } | Wait::Unknown => format!("request refused by limit {id}"),
    }
}

fn refused_by(refusal: &Refusal, json: &mut Json) {
    let limit = &refusal.limit;
    json.object("refused_by");
    json.text("limit_id", &limit.id);
    json.text("limit_type", limit.kind.as_str());
    json.text("unit", limit.kind.unit());
    json.text("node", refusal.node.as_str());
    if let Some(period) = limit.period {
        json.text("period", &period.to_string());
    }
    if let Some(end) = refusal.resets_at {
        json.key("resets_at");
        json.out.push(b'"');
        rfc3339(end, &mut json.out);
        json.out.push(b'"');
    }
    if let Some(seconds) = refusal.wait.seconds() {
        json.number("retry_after_s", seconds);
    }
    if let Some(observed) = refusal.observed {
        json.amount("observed", limit.kind, observed);
        json.amount("limit", limit.kind, refusal.amount);
    }
    json.end();
}

fn enforcement(refusal: &Refusal, json: &mut Json) {
    let kind = refusal.limit.kind;
    json.object("enforcement");
    json.text("posture", refusal.limit.posture.as_str());
    json.raw("approximate", if bounds::is_approximate(kind) { b"true" } else { b"false" });
    if kind.class() == Class::LedgerSettled {
        json.object("bound");
        json.number("tee_lag_rows", refusal.bound.tee_lag_rows);
        json.number("dropped_rows", refusal.bound.dropped_rows);
        if let Some(rows) = refusal.bound.convergence_lag_rows {
            json.number("convergence_lag_rows", rows);
        }
        json.end();
    }
    let own = refusal.suspended.iter().find(|(id, _)| *id == refusal.limit.id);
    let outage = own.or(refusal.suspended.first()).map(|(_, reason)| bounds::outage_note(*reason));
    match (bounds::lag_note(kind), outage) {
        (None, None) => {}
        (Some(note), None) | (None, Some(note)) => json.text("note", note),
        (Some(lag), Some(outage)) => json.text("note", &format!("{lag}; {outage}")),
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
    json.end();
}

/// Writes nested JSON objects in order. Small on purpose: the order of members is a contract, and a refusal is written
/// often exactly when there is no time to spare.
struct Json {
    out: Vec<u8>,
    /// No member stands in the innermost object yet.
    is_first: bool,
}

impl Json {
    fn key(&mut self, key: &str) {
        if !self.is_first {
            self.out.push(b',');
        }
        self.is_first = false;
        json_string(key, &mut self.out);
        self.out.push(b':');
    }

    fn brace(&mut self) {
        self.out.push(b'{');
        self.is_first = true;
    }

    fn object(&mut self, key: &str) {
        self.key(key);
        self.brace();
    }

    fn end(&mut self) {
        self.out.push(b'}');
        self.is_first = false;
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        json_string(value, &mut self.out);
    }

    fn raw(&mut self, key: &str, value: &[u8]) {
        self.key(key);
        self.out.extend_from_slice(value);
    }

    fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        integer(value, &mut self.out);
    }

    /// Money as plain decimal dollars, everything else as a whole number.
    fn amount(&mut self, key: &str, kind: LimitType, value: u64) {
        self.key(key);
        if kind == LimitType::BudgetUsd { usd(value, &mut self.out) } else { integer(value, &mut self.out) }
    }
}
