//! A row to its line.

use std::sync::Arc;

use super::VERSION;
use crate::refusal::text::{integer, json_string};
use crate::row::{Outcome, RefusedBy, Row, instant};
use crate::suspend::Reason;
use crate::units::WallMs;
use crate::usage::Usage;

/// The version is spelled here, [`VERSION`] is what readers compare with.
const FIRST: &str = "{\"v\":1,\"seq\":";
const _: () = assert!(VERSION == 1);
/// The usage of a row that used nothing.
const NO_USAGE: &str = concat!(
    ",\"usage\":{\"input\":0,\"output\":0,\"cached_input\":0,\"cache_write\":0,\"reasoning\":0,",
    "\"source\":\"none\""
);

/// Appends one row as one line, newline included.
pub fn encode(row: &Row, replica: &str, out: &mut Vec<u8>) {
    let mut line = Line { out };
    line.number(FIRST, row.seq);
    line.instants(row.ts, row.end);
    line.bytes("\",\"request_id\":\"", row.request_id.as_bytes());
    line.text(",\"replica\":", replica);
    line.word(",\"node\":\"", row.node.as_str());
    line.maybe(",\"key_id\":", row.key_id.as_deref(), Line::text);
    line.word(",\"endpoint\":\"", row.endpoint.as_str());
    line.text(",\"model\":", &row.model);
    line.maybe(",\"upstream\":", row.upstream.as_deref(), Line::text);
    line.word(",\"decision\":\"", row.decision.as_str());
    line.maybe(",\"outcome\":", row.outcome.map(Outcome::as_str), Line::quoted);
    line.number(",\"attempts\":", row.attempts.into());
    line.maybe(",\"refused_by\":", row.refused_by.as_ref(), Line::refused_by);
    // What is empty nearly always is one piece then.
    if row.shadow.is_empty() && row.suspended.is_empty() {
        line.raw(",\"shadow\":[],\"suspended\":[],\"suspended_reasons\":{}");
    } else {
        line.list(",\"shadow\":[", row.shadow.iter().map(|id| &**id));
        line.list(",\"suspended\":[", row.suspended.iter().map(|(id, _)| &**id));
        line.reasons(",\"suspended_reasons\":{", &row.suspended);
    }
    line.number(",\"status\":", row.status.into());
    line.flag(",\"forwarded\":", row.forwarded);
    line.flag(",\"stream\":", row.stream);
    if row.usage == Usage::default() {
        line.raw(NO_USAGE);
    } else {
        line.number(",\"usage\":{\"input\":", row.usage.input);
        line.number(",\"output\":", row.usage.output);
        line.number(",\"cached_input\":", row.usage.cached_input);
        line.number(",\"cache_write\":", row.usage.cache_write);
        line.number(",\"reasoning\":", row.usage.reasoning);
        line.word(",\"source\":\"", row.usage.source.as_str());
    }
    line.maybe("},\"cost_nanousd\":", row.cost.map(|cost| cost.0), Line::number);
    line.word(",\"price\":\"", row.price.as_str());
    line.number(",\"reserved_tokens\":", row.reserved_tokens);
    line.number(",\"latency_us\":", row.latency_us);
    line.maybe(",\"first_byte_us\":", row.first_byte_us, Line::number);
    line.number(",\"overhead_us\":", row.overhead_us);
    line.maybe(",\"traceparent\":", row.traceparent.as_deref(), Line::text);
    line.raw("}\n");
}

/// Writes `key` (punctuation included) and a value behind it.
struct Line<'o> {
    out: &'o mut Vec<u8>,
}

// Inlined with their keys, so that these are copied by a few instructions instead of a call each.
impl Line<'_> {
    #[inline(always)]
    fn raw(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    #[inline(always)]
    fn number(&mut self, key: &str, value: u64) {
        self.raw(key);
        integer(value, self.out);
    }

    #[inline(always)]
    fn flag(&mut self, key: &str, value: bool) {
        self.raw(key);
        self.raw(if value { "true" } else { "false" });
    }

    /// A word of ours, or a node, that needs no escaping; the opening quote is part of the key.
    #[inline(always)]
    fn word(&mut self, key: &str, value: &str) {
        self.bytes(key, value.as_bytes());
    }

    /// The same.
    #[inline(always)]
    fn bytes(&mut self, key: &str, value: &[u8]) {
        self.raw(key);
        self.out.extend_from_slice(value);
        self.raw("\"");
    }

    #[inline(always)]
    fn text(&mut self, key: &str, value: &str) {
        self.raw(key);
        json_string(value, self.out);
    }

    /// A word without an opening quote in its key.
    #[inline(always)]
    fn quoted(&mut self, key: &str, value: &str) {
        self.raw(key);
        self.word("\"", value);
    }

    /// When the request came and when it was settled: often the same tick of the clock, which is spelled once then. The
    /// quote behind them is the next key's.
    #[inline(always)]
    fn instants(&mut self, ts: WallMs, end: WallMs) {
        let began = instant::encode(ts);
        let ended = if end == ts { began } else { instant::encode(end) };
        self.raw(",\"ts\":\"");
        self.out.extend_from_slice(&began);
        self.raw("\",\"end\":\"");
        self.out.extend_from_slice(&ended);
    }

    #[inline(always)]
    fn maybe<T>(&mut self, key: &str, value: Option<T>, write: impl FnOnce(&mut Self, &str, T)) {
        match value {
            Some(value) => write(self, key, value),
            None => {
                self.raw(key);
                self.raw("null");
            }
        }
    }

    #[inline(always)]
    fn list<'t>(&mut self, key: &str, values: impl Iterator<Item = &'t str>) {
        self.raw(key);
        for (place, value) in values.enumerate() {
            self.text(if place == 0 { "" } else { "," }, value);
        }
        self.raw("]");
    }

    #[inline(always)]
    fn reasons(&mut self, key: &str, reasons: &[(Arc<str>, Reason)]) {
        self.raw(key);
        for (place, (id, reason)) in reasons.iter().enumerate() {
            self.text(if place == 0 { "" } else { "," }, id);
            self.word(":\"", reason.as_str());
        }
        self.raw("}");
    }

    fn refused_by(&mut self, key: &str, by: &RefusedBy) {
        self.raw(key);
        self.text("{\"limit_id\":", &by.limit_id);
        self.word(",\"node\":\"", by.node.as_str());
        self.word(",\"limit_type\":\"", by.limit_type.as_str());
        self.raw("}");
    }
}
